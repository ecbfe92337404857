//! Cases with faults: all ranks fail soon and name the right rank.

use super::{LONG_TIMEOUT, Mesh, run_collective, run_ranks, tag};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use thalweg_comm::collective::{Collective, Executor, Sum, ring};
use thalweg_comm::transport::{Cause, Incoming, Outgoing, Transport, TransportError, culprit};

pub(super) const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

/// What takes longer hangs. Detection times are measured elsewhere, on an idle machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Receives one byte from a rank.
pub(super) fn receive_byte(
    transport: &mut dyn Transport,
    from: usize,
    operation: u64,
    deadline: Duration,
) -> Result<u8, TransportError> {
    let mut byte = [0];
    transport.transfer(
        tag(operation),
        &[],
        &mut [Incoming { from, chunk: 0, bytes: &mut byte }],
        deadline,
    )?;
    Ok(byte[0])
}

/// Sends one byte to a rank.
fn send_byte(transport: &mut dyn Transport, to: usize, operation: u64) -> Result<(), TransportError> {
    transport.transfer(tag(operation), &[Outgoing { to, chunk: 0, bytes: &[7] }], &mut [], LONG_TIMEOUT)
}

/// Concurrently sends one byte to a rank and receives one from it.
fn exchange_bytes(transport: &mut dyn Transport, peer: usize, operation: u64) -> Result<(), TransportError> {
    let sends = [Outgoing { to: peer, chunk: 0, bytes: &[7] }];
    let mut receives = [Incoming { from: peer, chunk: 0, bytes: &mut [0] }];
    transport.transfer(tag(operation), &sends, &mut receives, LONG_TIMEOUT)
}

/// Two ranks wait for a third that does nothing: both name it, at least one by its own deadline.
pub fn the_silent_rank_is_named<M: Mesh>() {
    let mut ranks = M::connect(3);
    let idle = ranks.pop();
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    for error in
        run_ranks(ranks, |mut rank| receive_byte(&mut rank, 2, 1, SHORT_TIMEOUT).expect_err("no rank sends"))
    {
        assert_eq!((error.peer, &error.suspects[..]), (Some(2), &[2][..]), "{error}");
        match error.cause {
            Cause::Silent { waited } => longest = longest.max(waited),
            cause => panic!("{cause}"),
        }
    }
    assert!(longest >= SHORT_TIMEOUT && start.elapsed() < HANG_TIMEOUT, "{longest:?}, {:?}", start.elapsed());
    drop(idle);
}

/// In a ring with one idle rank the others wait for each other; their reports identify the idle one.
pub fn the_end_of_a_chain_of_waiting_is_found<M: Mesh>() {
    for silent in 0..4 {
        let mut ranks = M::connect(4);
        let idle = ranks.remove(silent);
        let reports = run_ranks(ranks, |mut transport| {
            let rank = transport.rank();
            let schedule = ring::all_reduce(rank, 4);
            let run = Executor::new().run(
                &schedule,
                &mut transport,
                tag(1),
                &mut [1.0f32; 64],
                &Sum,
                SHORT_TIMEOUT,
            );
            (rank, run.expect_err("one rank is idle"))
        });
        assert_eq!(culprit(&reports), Some(silent), "{reports:?}");
        drop(idle);
    }
}

/// A rank dies while the others wait for each other and not for it: all fail at once and name it, although each
/// closes its connections as soon as it notices.
pub fn a_death_is_named_by_all_ranks<M: Mesh>() {
    let start = Instant::now();
    let reports = run_ranks(M::connect(5), |mut transport| match transport.rank() {
        3 => None,
        rank => {
            let waits_for = [1, 2, 4, 3, 0][rank];
            Some(receive_byte(&mut transport, waits_for, 1, LONG_TIMEOUT).expect_err("no rank sends"))
        }
    });
    assert!(start.elapsed() < HANG_TIMEOUT, "{:?}", start.elapsed());
    for error in reports.into_iter().flatten() {
        assert_eq!(error.peer, Some(3), "{error}");
        assert!(matches!(error.cause, Cause::Closed | Cause::Reported { .. }), "{error}");
    }
}

/// A rank that was busy meanwhile finds several peers closed and still names the one that died.
pub fn a_late_rank_names_the_dead_rank_and_not_those_that_closed<M: Mesh>() {
    let mut ranks = M::connect(4);
    let mut late = ranks.pop().expect("four ranks");
    run_ranks(ranks, |mut transport| match transport.rank() {
        2 => {}
        rank => drop(receive_byte(&mut transport, 1 - rank, 1, LONG_TIMEOUT).expect_err("no rank sends")),
    });
    let error = receive_byte(&mut late, 0, 1, LONG_TIMEOUT).expect_err("all peers have closed");
    assert_eq!((error.peer, error.cause), (Some(2), Cause::Closed));
}

/// The same, if the closed peers had sent data that is unread: their close frames are behind it.
pub fn unread_bytes_do_not_hide_the_dead_rank<M: Mesh>() {
    let mut ranks = M::connect(4);
    let mut late = ranks.pop().expect("four ranks");
    run_ranks(ranks, |mut transport| match transport.rank() {
        2 => {}
        rank => {
            let sent = send_byte(&mut transport, 3, 1);
            let error = sent.and_then(|()| receive_byte(&mut transport, 1 - rank, 1, LONG_TIMEOUT));
            assert_eq!(error.expect_err("a rank has died").peer, Some(2));
        }
    });
    let error = receive_byte(&mut late, 2, 1, LONG_TIMEOUT).expect_err("all peers have closed");
    assert_eq!((error.peer, error.cause), (Some(2), Cause::Closed));
}

/// A rank that sent all frames of a transfer and died fails the next transfer, not that one.
pub fn what_was_sent_before_a_death_still_arrives<M: Mesh>() {
    run_ranks(M::connect(2), |mut transport| match transport.rank() {
        0 => {
            assert_eq!(receive_byte(&mut transport, 1, 1, LONG_TIMEOUT), Ok(7));
            let error = receive_byte(&mut transport, 1, 2, LONG_TIMEOUT).expect_err("it is dead");
            assert_eq!(error, TransportError::new(1, Cause::Closed));
            assert_eq!(receive_byte(&mut transport, 1, 3, LONG_TIMEOUT), Err(error), "an error is final");
        }
        _ => send_byte(&mut transport, 0, 1).expect("it is received"),
    });
}

/// A rank that dies with unread bytes (its socket is reset then, not just closed) counts as dead.
pub fn a_death_with_unread_bytes_is_a_death<M: Mesh>() {
    run_ranks(M::connect(2), |mut transport| {
        if transport.rank() == 0 {
            assert_eq!(exchange_bytes(&mut transport, 1, 1), Err(TransportError::new(1, Cause::Closed)));
        }
    });
}

/// A rank that is done leaves while the others still exchange with each other and read its last frames.
pub fn leaving_in_good_order_is_no_error<M: Mesh>() {
    let (left, has_left) = mpsc::channel();
    let has_left = std::sync::Mutex::new(has_left);
    run_ranks(M::connect(3), |mut transport| match transport.rank() {
        0 => {
            assert_eq!(receive_byte(&mut transport, 2, 1, LONG_TIMEOUT), Ok(7));
            has_left.lock().expect("one user").recv().expect("rank 2 leaves");
            send_byte(&mut transport, 1, 2).expect("rank 2 is not needed");
            assert_eq!(receive_byte(&mut transport, 1, 3, LONG_TIMEOUT), Ok(7));
            transport.close();
        }
        1 => {
            assert_eq!(receive_byte(&mut transport, 0, 2, LONG_TIMEOUT), Ok(7));
            send_byte(&mut transport, 0, 3).expect("rank 2 is not needed");
            transport.close();
        }
        _ => {
            send_byte(&mut transport, 0, 1).expect("it is received");
            transport.close();
            drop(transport);
            left.send(()).expect("rank 0 listens");
        }
    });
}

/// Ranks finish at slightly different times; over many rounds no rank takes a close frame for a loss.
pub fn leaving_right_after_the_last_step_fails_no_rank<M: Mesh>() {
    for round in 0..100 {
        run_ranks(M::connect(5), |mut transport| {
            let schedule = ring::all_reduce(transport.rank(), 5);
            let run = Executor::new().run(
                &schedule,
                &mut transport,
                tag(round),
                &mut [1.0f32; 64],
                &Sum,
                LONG_TIMEOUT,
            );
            assert_eq!(run, Ok(()), "round {round}");
            transport.close();
        });
    }
}

/// A rank that leaves although another still waits for it is named, with that cause.
pub fn leaving_while_needed_is_an_error<M: Mesh>() {
    run_ranks(M::connect(2), |mut transport| match transport.rank() {
        0 => {
            // Bytes that rank 1 never read must not hide its close frame.
            assert_eq!(exchange_bytes(&mut transport, 1, 1), Err(TransportError::new(1, Cause::Left)));
        }
        _ => {
            transport.close();
            assert_eq!(
                send_byte(&mut transport, 0, 1),
                Err(TransportError::new(1, Cause::Left)),
                "it has left"
            );
        }
    });
}

/// An abort ends a transfer in progress, here and on the ranks that wait for this one.
pub fn an_abort_ends_a_transfer<M: Mesh>() {
    let ranks = M::connect(2);
    let abort = ranks[0].abort_handle();
    let start = Instant::now();
    let errors = std::thread::scope(|scope| {
        scope.spawn(|| abort.abort());
        run_ranks(ranks, |mut transport| {
            let peer = 1 - transport.rank();
            receive_byte(&mut transport, peer, 1, LONG_TIMEOUT).expect_err("aborted")
        })
    });
    // The rank that received the close frame names its sender as suspect.
    assert_eq!(
        errors,
        [TransportError::aborted(), TransportError { suspects: vec![0], ..TransportError::aborted() }]
    );
    assert!(start.elapsed() < HANG_TIMEOUT, "{:?}", start.elapsed());
}

/// A rank cannot exchange with itself or with one that does not exist.
pub fn impossible_peers_are_refused<M: Mesh>() {
    for peer in [0, 2] {
        let mut ranks = M::connect(2);
        let error = send_byte(&mut ranks[0], peer, 1).expect_err("no such peer");
        assert!(matches!(&error.cause, Cause::Protocol(_)) && error.peer == Some(0), "{error}");
        assert_eq!(
            run_collective(&mut ranks[0], tag(2), Collective::Barrier, &mut [0u8]),
            Err(error),
            "an error is final"
        );
    }
}

/// A rank that computes and waits for no peer detects the death of another by polling; a rank that left is no error.
pub fn a_death_is_detected_by_polling<M: Mesh>() {
    let mut ranks = M::connect(4);
    let mut leaver = ranks.remove(1);
    run_ranks(ranks, |mut transport| {
        assert_eq!(transport.poll(Duration::ZERO), Ok(()));
        if transport.rank() == 2 {
            return;
        }
        let start = Instant::now();
        let error = loop {
            match transport.poll(Duration::ZERO) {
                Err(error) => break error,
                Ok(()) => std::thread::yield_now(),
            }
            assert!(start.elapsed() < HANG_TIMEOUT, "not detected");
        };
        assert_eq!(error.peer, Some(2), "{error}");
        assert_eq!(transport.poll(Duration::ZERO), Err(error), "an error is final");
    });
    leaver.close();
    // If ranks are processes, there is one group at a time.
    drop(leaver);
    let mut ranks = M::connect(3);
    let mut busy = ranks.pop().expect("three");
    let mut leaver = ranks.pop().expect("two");
    leaver.close();
    drop(leaver);
    let start = Instant::now();
    while start.elapsed() < SHORT_TIMEOUT {
        assert_eq!(busy.poll(Duration::ZERO), Ok(()));
    }
}
