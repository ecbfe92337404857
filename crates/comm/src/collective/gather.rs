//! Small byte strings between all ranks, directly.
//!
//! For what accompanies the tensors: reports, counts, agreements, a checkpoint's pieces. Every rank sends straight
//! to every other: n - 1 messages per rank and a single latency. Lengths travel first and are bounded, so that no
//! peer decides how much memory is allocated here.

use crate::transport::{Cause, Fault, Incoming, Outgoing, Tag, Transport};
use std::time::Duration;

/// The longest byte string one rank may contribute.
pub const MAX_LENGTH: usize = 256 << 20;

/// The frames of the two phases are told apart by their chunk.
const LENGTH: u32 = 0;
const CONTENTS: u32 = 1;

/// Every rank gives a byte string and gets those of all ranks, by rank.
pub fn all_gather(
    transport: &mut dyn Transport,
    tag: Tag,
    mine: &[u8],
    deadline: Duration,
) -> Result<Vec<Vec<u8>>, Fault> {
    let start = transport.now();
    let (rank, world) = (transport.rank(), transport.world());
    check_length(rank, mine.len() as u64)?;
    let mut lengths = vec![(mine.len() as u64).to_le_bytes().to_vec(); world];
    let my_length = lengths[rank].clone();
    exchange(transport, tag, LENGTH, &my_length, &mut lengths, deadline)?;
    let mut all = Vec::with_capacity(world);
    for (peer, bytes) in lengths.iter().enumerate() {
        let length = check_length(peer, length_of(bytes))?;
        all.push(if peer == rank { mine.to_vec() } else { vec![0; length] });
    }
    let left = left(transport, start, deadline);
    exchange(transport, tag, CONTENTS, mine, &mut all, left)?;
    Ok(all)
}

/// Returns when every rank has called it.
pub fn barrier(transport: &mut dyn Transport, tag: Tag, deadline: Duration) -> Result<(), Fault> {
    let mut nothing = vec![Vec::new(); transport.world()];
    exchange(transport, tag, CONTENTS, &[], &mut nothing, deadline)
}

/// Every rank gets the byte string of `root`; what the others give is ignored.
pub fn broadcast(
    transport: &mut dyn Transport,
    tag: Tag,
    root: usize,
    bytes: Vec<u8>,
    deadline: Duration,
) -> Result<Vec<u8>, Fault> {
    let start = transport.now();
    if transport.rank() == root {
        check_length(root, bytes.len() as u64)?;
    }
    let mut length = (bytes.len() as u64).to_le_bytes();
    fan_out(transport, tag, root, LENGTH, &mut length, deadline)?;
    let length = check_length(root, u64::from_le_bytes(length))?;
    let mut bytes = if transport.rank() == root { bytes } else { vec![0; length] };
    let left = left(transport, start, deadline);
    fan_out(transport, tag, root, CONTENTS, &mut bytes, left)?;
    Ok(bytes)
}

/// Every rank's buffer becomes that of `root`. All must have the same length; another one is a protocol fault.
pub fn broadcast_into(
    transport: &mut dyn Transport,
    tag: Tag,
    root: usize,
    buffer: &mut [u8],
    deadline: Duration,
) -> Result<(), Fault> {
    let start = transport.now();
    if buffer.is_empty() {
        return fan_out(transport, tag, root, CONTENTS, buffer, deadline);
    }
    for (piece, bytes) in buffer.chunks_mut(MAX_LENGTH).enumerate() {
        let left = left(transport, start, deadline);
        fan_out(transport, tag, root, CONTENTS + piece as u32, bytes, left)?;
    }
    Ok(())
}

/// What is left of a deadline that began at `start`.
fn left(transport: &dyn Transport, start: Duration, deadline: Duration) -> Duration {
    deadline.saturating_sub(transport.now().saturating_sub(start))
}

/// Sends `mine` to every other rank and receives theirs into `all`, which has the right lengths already.
fn exchange(
    transport: &mut dyn Transport,
    tag: Tag,
    chunk: u32,
    mine: &[u8],
    all: &mut [Vec<u8>],
    deadline: Duration,
) -> Result<(), Fault> {
    let rank = transport.rank();
    let sends: Vec<Outgoing<'_>> =
        (0..all.len()).filter(|&to| to != rank).map(|to| Outgoing { to, chunk, bytes: mine }).collect();
    let others = all.iter_mut().enumerate().filter(|(from, _)| *from != rank);
    let mut receives: Vec<Incoming<'_>> =
        others.map(|(from, bytes)| Incoming { from, chunk, bytes }).collect();
    transport.transfer(tag, &sends, &mut receives, deadline)
}

/// Sends `bytes` from the root to every other rank.
fn fan_out(
    transport: &mut dyn Transport,
    tag: Tag,
    root: usize,
    chunk: u32,
    bytes: &mut [u8],
    deadline: Duration,
) -> Result<(), Fault> {
    if transport.rank() != root {
        return transport.transfer(tag, &[], &mut [Incoming { from: root, chunk, bytes }], deadline);
    }
    let others = (0..transport.world()).filter(|&to| to != root);
    let sends: Vec<Outgoing<'_>> = others.map(|to| Outgoing { to, chunk, bytes }).collect();
    transport.transfer(tag, &sends, &mut [], deadline)
}

fn length_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// Refuses lengths that nobody may ask for.
fn check_length(rank: usize, length: u64) -> Result<usize, Fault> {
    match usize::try_from(length) {
        Ok(length) if length <= MAX_LENGTH => Ok(length),
        _ => {
            let what = format!("a contribution of {length} bytes is longer than the {MAX_LENGTH} allowed");
            Err(Fault::of(rank, Cause::Protocol(what)))
        }
    }
}
