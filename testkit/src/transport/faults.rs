//! Cases in which something goes wrong: it ends soon, for everybody, and names the right rank.

use super::{Mesh, PLENTY, collective, each, tag};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use thalweg_comm::collective::{Executor, Goal, Sum, all_gather, ring};
use thalweg_comm::transport::{Cause, Fault, Incoming, Outgoing, Tag, Transport, culprit};
use thalweg_comm::wire::{Header, MAX_PAYLOAD, tensor};

/// A deadline short enough for a test.
const SHORT: Duration = Duration::from_millis(200);

/// What takes longer hangs: how soon a fault is noticed is measured where nothing else runs.
const HANGS: Duration = Duration::from_secs(60);

/// Receives one byte from a rank.
fn await_byte(
    transport: &mut dyn Transport,
    from: usize,
    operation: u64,
    deadline: Duration,
) -> Result<u8, Fault> {
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
fn send_byte(transport: &mut dyn Transport, to: usize, operation: u64) -> Result<(), Fault> {
    transport.transfer(tag(operation), &[Outgoing { to, chunk: 0, bytes: &[7] }], &mut [], PLENTY)
}

/// Sends one byte to a rank and receives one from it, at once.
fn swap_bytes(transport: &mut dyn Transport, peer: usize, operation: u64) -> Result<(), Fault> {
    let sends = [Outgoing { to: peer, chunk: 0, bytes: &[7] }];
    let mut receives = [Incoming { from: peer, chunk: 0, bytes: &mut [0] }];
    transport.transfer(tag(operation), &sends, &mut receives, PLENTY)
}

/// Two ranks wait for a third that does nothing: both name it, one of them by its own deadline.
pub fn the_silent_rank_is_named<M: Mesh>() {
    let mut ranks = M::connect(3);
    let idle = ranks.pop();
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    for fault in each(ranks, |mut rank| await_byte(&mut rank, 2, 1, SHORT).expect_err("nobody sends")) {
        assert_eq!((fault.peer, &fault.suspects[..]), (Some(2), &[2][..]), "{fault}");
        match fault.cause {
            Cause::Silent { waited } => longest = longest.max(waited),
            cause => panic!("{cause}"),
        }
    }
    assert!(longest >= SHORT && start.elapsed() < HANGS, "{longest:?}, {:?}", start.elapsed());
    drop(idle);
}

/// In a ring with one idle rank the others wait for each other; from what they report the idle one is found.
pub fn the_end_of_a_chain_of_waiting_is_found<M: Mesh>() {
    for silent in 0..4 {
        let mut ranks = M::connect(4);
        let idle = ranks.remove(silent);
        let reports = each(ranks, |mut transport| {
            let rank = transport.rank();
            let schedule = ring::all_reduce(rank, 4);
            let run = Executor::new().run(&schedule, &mut transport, tag(1), &mut [1.0f32; 64], &Sum, SHORT);
            (rank, run.expect_err("one rank is idle"))
        });
        assert_eq!(culprit(&reports), Some(silent), "{reports:?}");
        drop(idle);
    }
}

/// A rank dies while the others wait for each other and not for it: all end at once and name it, though they flee
/// as soon as they notice.
pub fn a_death_is_named_by_everybody<M: Mesh>() {
    let start = Instant::now();
    let reports = each(M::connect(5), |mut transport| match transport.rank() {
        3 => None,
        rank => {
            let waits_for = [1, 2, 4, 3, 0][rank];
            Some(await_byte(&mut transport, waits_for, 1, PLENTY).expect_err("nobody sends"))
        }
    });
    assert!(start.elapsed() < HANGS, "{:?}", start.elapsed());
    for fault in reports.into_iter().flatten() {
        assert_eq!(fault.peer, Some(3), "{fault}");
        assert!(matches!(fault.cause, Cause::Closed | Cause::Reported { .. }), "{fault}");
    }
}

/// A rank that was busy meanwhile finds several ranks gone and still names the one that died.
pub fn a_rank_that_comes_late_names_the_dead_and_not_those_who_fled<M: Mesh>() {
    let mut ranks = M::connect(4);
    let mut late = ranks.pop().expect("four ranks");
    each(ranks, |mut transport| match transport.rank() {
        2 => {}
        rank => drop(await_byte(&mut transport, 1 - rank, 1, PLENTY).expect_err("nobody sends")),
    });
    let fault = await_byte(&mut late, 0, 1, PLENTY).expect_err("all are gone");
    assert_eq!((fault.peer, fault.cause), (Some(2), Cause::Closed));
}

/// The same, if those who fled had sent it something that it has not read: their last words stand behind that.
pub fn unread_bytes_do_not_hide_who_died<M: Mesh>() {
    let mut ranks = M::connect(4);
    let mut late = ranks.pop().expect("four ranks");
    each(ranks, |mut transport| match transport.rank() {
        2 => {}
        rank => {
            let sent = send_byte(&mut transport, 3, 1);
            let fault = sent.and_then(|()| await_byte(&mut transport, 1 - rank, 1, PLENTY));
            assert_eq!(fault.expect_err("one has died").peer, Some(2));
        }
    });
    let fault = await_byte(&mut late, 2, 1, PLENTY).expect_err("all are gone");
    assert_eq!((fault.peer, fault.cause), (Some(2), Cause::Closed));
}

/// A rank that sent all it owed and died fails the next transfer, not the one it took part in.
pub fn what_was_sent_before_a_death_still_arrives<M: Mesh>() {
    each(M::connect(2), |mut transport| match transport.rank() {
        0 => {
            assert_eq!(await_byte(&mut transport, 1, 1, PLENTY), Ok(7));
            let fault = await_byte(&mut transport, 1, 2, PLENTY).expect_err("it is dead");
            assert_eq!(fault, Fault::of(1, Cause::Closed));
            assert_eq!(await_byte(&mut transport, 1, 3, PLENTY), Err(fault), "a fault is final");
        }
        _ => send_byte(&mut transport, 0, 1).expect("it is received"),
    });
}

/// A rank that dies with bytes it never read (a socket is reset then, not just closed) is still one that died.
pub fn a_death_with_unread_bytes_is_a_death<M: Mesh>() {
    each(M::connect(2), |mut transport| {
        if transport.rank() == 0 {
            assert_eq!(swap_bytes(&mut transport, 1, 1), Err(Fault::of(1, Cause::Closed)));
        }
    });
}

/// A rank that is done leaves while the others are still busy with each other and with what it sent last.
pub fn an_orderly_leave_is_no_fault<M: Mesh>() {
    let (left, has_left) = mpsc::channel();
    let has_left = std::sync::Mutex::new(has_left);
    each(M::connect(3), |mut transport| match transport.rank() {
        0 => {
            assert_eq!(await_byte(&mut transport, 2, 1, PLENTY), Ok(7));
            has_left.lock().expect("one user").recv().expect("rank 2 leaves");
            send_byte(&mut transport, 1, 2).expect("rank 2 is not needed");
            assert_eq!(await_byte(&mut transport, 1, 3, PLENTY), Ok(7));
            transport.close();
        }
        1 => {
            assert_eq!(await_byte(&mut transport, 0, 2, PLENTY), Ok(7));
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

/// Ranks come to the end at slightly different times; over many repeats nobody takes a farewell for a loss.
pub fn leaving_right_after_the_last_step_fails_nobody<M: Mesh>() {
    for round in 0..100 {
        each(M::connect(5), |mut transport| {
            let schedule = ring::all_reduce(transport.rank(), 5);
            let run =
                Executor::new().run(&schedule, &mut transport, tag(round), &mut [1.0f32; 64], &Sum, PLENTY);
            assert_eq!(run, Ok(()), "round {round}");
            transport.close();
        });
    }
}

/// A rank that leaves although another still waits for it is named, as one that left.
pub fn leaving_while_needed_is_a_fault<M: Mesh>() {
    each(M::connect(2), |mut transport| match transport.rank() {
        0 => {
            // What it never read must not hide its farewell.
            assert_eq!(swap_bytes(&mut transport, 1, 1), Err(Fault::of(1, Cause::Left)));
        }
        _ => {
            transport.close();
            assert_eq!(send_byte(&mut transport, 0, 1), Err(Fault::of(1, Cause::Left)), "it left itself");
        }
    });
}

/// What rank 0 makes of forged bytes from rank 1, and what rank 2 hears of it.
fn forged<M: Mesh>(bytes: &[u8]) -> Cause {
    let (ranks, inject) = M::forge(3);
    inject(1, 0, bytes);
    let mut faults = each(ranks, |mut transport| match transport.rank() {
        0 => Some(await_byte(&mut transport, 1, 1, PLENTY).expect_err("it is forged")),
        1 => {
            let fault = await_byte(&mut transport, 2, 1, PLENTY).expect_err("nobody sends");
            assert_eq!(fault.peer, Some(1), "{fault}");
            None
        }
        _ => {
            let fault = await_byte(&mut transport, 1, 1, PLENTY).expect_err("nobody sends");
            assert_eq!(fault.peer, Some(1), "{fault}");
            None
        }
    });
    let fault = faults[0].take().expect("rank 0 reports");
    assert_eq!(fault.peer, Some(1), "{fault}");
    fault.cause
}

/// Bytes that are no frame, and a frame too large to be one.
pub fn strangers_bytes_are_refused<M: Mesh>() {
    let cause = forged::<M>(b"GET / HTTP/1.1\r\nHost: a.web.server.example\r\n\r\n");
    assert!(matches!(cause, Cause::Protocol(_)), "{cause}");
    let huge = Header { length: MAX_PAYLOAD as u32 + 1, ..Header::data(tag(1), 0, &[7]) };
    let cause = forged::<M>(&huge.encode());
    assert!(matches!(cause, Cause::Protocol(_)), "{cause}");
}

/// The right header with the wrong payload.
pub fn a_forged_checksum_is_noticed<M: Mesh>() {
    let header = Header::data(tag(1), 0, &[7]).encode();
    assert_eq!(forged::<M>(&[&header[..], &[8]].concat()), Cause::Corrupt);
}

/// An intact frame of another generation, operation, group, tensor or chunk: the fault says what was expected and what
/// came, and whether its sender is in another operation.
pub fn another_operation_is_noticed<M: Mesh>() {
    let (generation, operation, group, tensor) = (2, 9, 3, 5);
    for (tag, chunk, elsewhere) in [
        (Tag { generation, ..tag(1) }, 0, false),
        (tag(1), 4, false),
        (Tag { operation, ..tag(1) }, 0, true),
        (Tag { group, ..tag(1) }, 4, true),
        (Tag { tensor, ..tag(1) }, 0, true),
    ] {
        let other = Header::data(tag, chunk, &[7]);
        let what = match forged::<M>(&[&other.encode()[..], &[7]].concat()) {
            Cause::Protocol(what) if !elsewhere => what,
            Cause::Elsewhere(what) if elsewhere => what,
            cause => panic!("{cause}"),
        };
        let expected = "expected generation 1, operation 1, group 0, tensor 00000000, chunk 0";
        assert!(what.contains(expected) && what.contains(&format!("got {other}")), "{what}");
    }
}

/// Two ranks whose operations of one number add up different tensors of one length: nobody gets a sum of both, alone or in
/// company.
pub fn another_tensor_is_noticed<M: Mesh>() {
    for alone in [true, false] {
        let faults = each(M::connect(2), |mut transport| {
            if !alone {
                transport.admit_groups();
            }
            let rank = transport.rank();
            let tag = Tag { tensor: tensor(["gradients of a", "gradients of b"][rank]), ..tag(1) };
            let mut buffer = [1.0f32; 100];
            (
                rank,
                collective(&mut transport, tag, Goal::AllReduce, &mut buffer).expect_err("different tensors"),
            )
        });
        // Whoever comes second may hear of it from the first.
        assert!(
            faults.iter().any(|(rank, fault)| fault.peer == Some(1 - rank) && is_elsewhere(fault)),
            "{faults:?}"
        );
        assert!(
            faults
                .iter()
                .all(|(_, fault)| is_elsewhere(fault) || matches!(fault.cause, Cause::Reported { .. })),
            "{faults:?}"
        );
    }
}

/// So it is with a frame that came before anybody asked for it.
pub fn another_tensor_is_noticed_aside<M: Mesh>() {
    let (mut ranks, inject) = M::forge(2);
    let ahead = Header::data(Tag { tensor: 5, ..tag(2) }, 0, &[7]);
    inject(1, 0, &[&ahead.encode()[..], &[7], &Header::data(tag(1), 0, &[7]).encode()[..], &[7]].concat());
    ranks[0].admit_groups();
    assert_eq!(await_byte(&mut ranks[0], 1, 1, PLENTY), Ok(7), "what stands before it is put aside");
    let fault = await_byte(&mut ranks[0], 1, 2, PLENTY).expect_err("it is of another tensor");
    assert!(is_elsewhere(&fault) && fault.peer == Some(1), "{fault}");
}

fn is_elsewhere(fault: &Fault) -> bool {
    matches!(fault.cause, Cause::Elsewhere(_))
}

/// Buffers of different lengths in one collective are a protocol fault, not a wrong result.
pub fn different_lengths_are_noticed<M: Mesh>() {
    let faults = each(M::connect(2), |mut transport| {
        let mut buffer = vec![0; 10 + transport.rank()];
        collective(&mut transport, tag(1), Goal::Broadcast { root: 0 }, &mut buffer).err()
    });
    let fault = faults[1].clone().expect("rank 1 notices");
    assert!(matches!(&fault.cause, Cause::Protocol(_)) && fault.peer == Some(0), "{fault}");
}

/// A peer cannot make this rank allocate what it likes.
pub fn an_announced_length_is_bounded<M: Mesh>() {
    let (ranks, inject) = M::forge(2);
    let length = u64::MAX.to_le_bytes();
    inject(1, 0, &[&Header::data(tag(1), 1, &length).encode()[..], &length].concat());
    each(ranks, |mut transport| match transport.rank() {
        0 => {
            let fault = all_gather(&mut transport, tag(1), b"abc", PLENTY).expect_err("too long");
            assert!(matches!(&fault.cause, Cause::Protocol(_)) && fault.peer == Some(1), "{fault}");
        }
        _ => {
            let mut length = [0; 8];
            let receive = Incoming { from: 0, chunk: 0, bytes: &mut length };
            transport.transfer(tag(1), &[], &mut [receive], PLENTY).expect("the other's length");
            assert_eq!(u64::from_le_bytes(length), 3);
        }
    });
}

/// An abort ends a transfer in progress, here and on the ranks that wait for this one.
pub fn an_abort_ends_a_transfer<M: Mesh>() {
    let ranks = M::connect(2);
    let abort = ranks[0].abort_handle();
    let start = Instant::now();
    let faults = std::thread::scope(|scope| {
        scope.spawn(|| abort.abort());
        each(ranks, |mut transport| {
            let peer = 1 - transport.rank();
            await_byte(&mut transport, peer, 1, PLENTY).expect_err("aborted")
        })
    });
    // Whoever was told by another says by whom.
    assert_eq!(faults, [Fault::aborted(), Fault { suspects: vec![0], ..Fault::aborted() }]);
    assert!(start.elapsed() < HANGS, "{:?}", start.elapsed());
}

/// A rank cannot exchange with itself or with one that does not exist.
pub fn impossible_partners_are_refused<M: Mesh>() {
    for partner in [0, 2] {
        let mut ranks = M::connect(2);
        let fault = send_byte(&mut ranks[0], partner, 1).expect_err("no such partner");
        assert!(matches!(&fault.cause, Cause::Protocol(_)) && fault.peer == Some(0), "{fault}");
        assert_eq!(
            collective(&mut ranks[0], tag(2), Goal::Barrier, &mut [0u8]),
            Err(fault),
            "a fault is final"
        );
    }
}

/// A rank with work of its own, who waits for nobody, sees at a glance that another has died; one that left is no fault.
pub fn a_death_is_seen_at_a_glance<M: Mesh>() {
    let mut ranks = M::connect(4);
    let mut leaver = ranks.remove(1);
    each(ranks, |mut transport| {
        assert_eq!(transport.glance(), Ok(()));
        if transport.rank() == 2 {
            return;
        }
        let start = Instant::now();
        let fault = loop {
            match transport.glance() {
                Err(fault) => break fault,
                Ok(()) => std::thread::yield_now(),
            }
            assert!(start.elapsed() < HANGS, "nobody noticed");
        };
        assert_eq!(fault.peer, Some(2), "{fault}");
        assert_eq!(transport.glance(), Err(fault), "and it stays so");
    });
    leaver.close();
    // Where ranks are processes there is one group at a time.
    drop(leaver);
    let mut ranks = M::connect(3);
    let mut busy = ranks.pop().expect("three");
    let mut leaver = ranks.pop().expect("two");
    leaver.close();
    drop(leaver);
    let start = Instant::now();
    while start.elapsed() < SHORT {
        assert_eq!(busy.glance(), Ok(()));
    }
}
