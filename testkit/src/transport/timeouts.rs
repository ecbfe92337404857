//! Cases in which a deadline passes: a rank that never entered is distinguished from one that is slow.

use super::{LONG_TIMEOUT, Mesh, run_ranks, tag};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg_comm::transport::{Cause, Incoming, Interest, Outgoing, Transport, TransportError, WaitState};

/// Long compared with the pauses of a slow rank.
const DEADLINE: Duration = Duration::from_secs(1);

/// Bytes that a slow rank moves at a time.
const PIECE: usize = 64 << 10;

/// Waits for some time of the transport's clock, real or virtual.
fn pause(transport: &mut dyn Transport) -> Result<(), TransportError> {
    let mut wait = WaitState::new(transport.now(), LONG_TIMEOUT);
    let nothing = vec![Interest::default(); transport.world()];
    while wait.waited() < DEADLINE / 50 {
        transport.wait(&mut wait, &nothing, false)?;
    }
    Ok(())
}

/// Receives chunks of operation 2, far more than are sent.
fn receive_chunks(transport: &mut dyn Transport, from: usize) -> TransportError {
    let mut memory = vec![0; 10_000];
    let chunks = memory.chunks_mut(1).enumerate();
    let mut receives: Vec<Incoming<'_>> =
        chunks.map(|(chunk, bytes)| Incoming { from, chunk: chunk as u32, bytes }).collect();
    transport.transfer(tag(2), &[], &mut receives, DEADLINE).expect_err("it never completes")
}

/// Sends chunks of operation 2, far more than are received.
fn send_chunks(transport: &mut dyn Transport, to: usize) -> TransportError {
    let bytes = vec![7; PIECE];
    let sends: Vec<Outgoing<'_>> = (0..10_000).map(|chunk| Outgoing { to, chunk, bytes: &bytes }).collect();
    transport.transfer(tag(2), &sends, &mut [], DEADLINE).expect_err("it never completes")
}

/// The cause that rank 0 reports in operation 2, while rank 1, after operation 1, repeats `act` with pauses.
fn blamed<M: Mesh>(
    waits: impl Fn(&mut dyn Transport, usize) -> TransportError + Sync,
    act: impl Fn(&mut dyn Transport, u32) -> Result<(), TransportError> + Sync,
) -> Cause {
    let over = AtomicBool::new(false);
    let mut errors = run_ranks(M::connect(2), |mut transport| {
        let peer = 1 - transport.rank();
        let sends = [Outgoing { to: peer, chunk: 0, bytes: &[7] }];
        let receive = Incoming { from: peer, chunk: 0, bytes: &mut [0] };
        transport.transfer(tag(1), &sends, &mut [receive], LONG_TIMEOUT).expect("both ranks run");
        if transport.rank() == 0 {
            let error = waits(&mut transport, peer);
            over.store(true, Ordering::Relaxed);
            return Some(error);
        }
        // A rank that does not read may never reach the close frame behind unread data.
        let mut done = 0;
        while !over.load(Ordering::Relaxed) {
            if act(&mut transport, done).and_then(|()| pause(&mut transport)).is_err() {
                break;
            }
            done += 1;
        }
        None
    });
    let error = errors.swap_remove(0).expect("rank 0 reports");
    assert_eq!((error.peer, &error.suspects[..]), (Some(1), &[1][..]), "{error}");
    error.cause
}

fn assert_silent(cause: &Cause) {
    assert!(matches!(cause, Cause::Silent { waited } if *waited >= DEADLINE), "{cause}");
}

fn assert_slow(cause: &Cause) {
    assert!(
        matches!(cause, Cause::Slow { waited, quiet } if *waited >= DEADLINE && quiet < waited),
        "{cause}"
    );
}

/// A rank that completed an operation and does not enter the next, as sender or as receiver.
pub fn a_rank_that_never_enters_is_silent<M: Mesh>() {
    assert_silent(&blamed::<M>(receive_chunks, |_, _| Ok(())));
    assert_silent(&blamed::<M>(send_chunks, |_, _| Ok(())));
}

pub fn a_rank_that_sends_byte_by_byte_is_slow<M: Mesh>() {
    assert_slow(&blamed::<M>(receive_chunks, |transport, chunk| {
        transport.transfer(tag(2), &[Outgoing { to: 0, chunk, bytes: &[7] }], &mut [], LONG_TIMEOUT)
    }));
}

/// A rank that receives chunk by chunk and sends nothing.
pub fn a_rank_that_receives_slowly_is_slow<M: Mesh>() {
    assert_slow(&blamed::<M>(send_chunks, |transport, chunk| {
        let receive = Incoming { from: 0, chunk, bytes: &mut vec![0; PIECE] };
        transport.transfer(tag(2), &[], &mut [receive], LONG_TIMEOUT)
    }));
}
