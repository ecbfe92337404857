//! Cases in which something does not come in time: the rank that never came is told from the one that is slow.

use super::{Mesh, PLENTY, each, tag};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg_comm::transport::{Cause, Fault, Incoming, Interest, Outgoing, Transport, Vigil};

/// Long beside the pauses of one who goes slowly.
const DEADLINE: Duration = Duration::from_secs(1);

/// What one who goes slowly moves at a time.
const PIECE: usize = 64 << 10;

/// Lets some time of the transport's pass, real or virtual.
fn pause(transport: &mut dyn Transport) -> Result<(), Fault> {
    let mut vigil = Vigil::new(transport.now(), PLENTY);
    let nothing = vec![Interest::default(); transport.world()];
    while vigil.waited() < DEADLINE / 50 {
        transport.attend(&mut vigil, &nothing, false)?;
    }
    Ok(())
}

/// Receives pieces of operation 2, far more than will come.
fn await_pieces(transport: &mut dyn Transport, from: usize) -> Fault {
    let mut memory = vec![0; 10_000];
    let pieces = memory.chunks_mut(1).enumerate();
    let mut receives: Vec<Incoming<'_>> =
        pieces.map(|(chunk, bytes)| Incoming { from, chunk: chunk as u32, bytes }).collect();
    transport.transfer(tag(2), &[], &mut receives, DEADLINE).expect_err("it never ends")
}

/// Sends pieces of operation 2, far more than will be taken.
fn send_pieces(transport: &mut dyn Transport, to: usize) -> Fault {
    let bytes = vec![7; PIECE];
    let sends: Vec<Outgoing<'_>> = (0..10_000).map(|chunk| Outgoing { to, chunk, bytes: &bytes }).collect();
    transport.transfer(tag(2), &sends, &mut [], DEADLINE).expect_err("it never ends")
}

/// Rank 1 takes part in one operation, and then does something little by little; what rank 0 says of it in the next.
fn blamed<M: Mesh>(
    waits: impl Fn(&mut dyn Transport, usize) -> Fault + Sync,
    act: impl Fn(&mut dyn Transport, u32) -> Result<(), Fault> + Sync,
) -> Cause {
    let over = AtomicBool::new(false);
    let mut faults = each(M::connect(2), |mut transport| {
        let peer = 1 - transport.rank();
        let sends = [Outgoing { to: peer, chunk: 0, bytes: &[7] }];
        let receive = Incoming { from: peer, chunk: 0, bytes: &mut [0] };
        transport.transfer(tag(1), &sends, &mut [receive], PLENTY).expect("both are there");
        if transport.rank() == 0 {
            let fault = waits(&mut transport, peer);
            over.store(true, Ordering::Relaxed);
            return Some(fault);
        }
        // One that does not read may never see the other's end behind what it did not read.
        let mut done = 0;
        while !over.load(Ordering::Relaxed) {
            if act(&mut transport, done).and_then(|()| pause(&mut transport)).is_err() {
                break;
            }
            done += 1;
        }
        None
    });
    let fault = faults.swap_remove(0).expect("rank 0 reports");
    assert_eq!((fault.peer, &fault.suspects[..]), (Some(1), &[1][..]), "{fault}");
    fault.cause
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

/// A rank that was there before and does not come to this operation, whichever way its bytes would go.
pub fn who_never_comes_is_silent<M: Mesh>() {
    assert_silent(&blamed::<M>(await_pieces, |_, _| Ok(())));
    assert_silent(&blamed::<M>(send_pieces, |_, _| Ok(())));
}

/// A rank that sends byte by byte.
pub fn who_drips_is_slow<M: Mesh>() {
    assert_slow(&blamed::<M>(await_pieces, |transport, chunk| {
        transport.transfer(tag(2), &[Outgoing { to: 0, chunk, bytes: &[7] }], &mut [], PLENTY)
    }));
}

/// A rank that takes piece by piece what another sends, and sends nothing itself.
pub fn who_takes_little_is_slow<M: Mesh>() {
    assert_slow(&blamed::<M>(send_pieces, |transport, chunk| {
        let receive = Incoming { from: 0, chunk, bytes: &mut vec![0; PIECE] };
        transport.transfer(tag(2), &[], &mut [receive], PLENTY)
    }));
}
