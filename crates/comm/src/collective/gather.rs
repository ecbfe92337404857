//! Byte strings whose lengths only their owners know: reports, counts, agreements, a checkpoint's pieces.
//!
//! Lengths travel first and are bounded, so that no peer decides how much memory is allocated here; then the contents, in
//! chunks of those lengths. Both are ordinary schedules: all-gathers straight between all ranks, a single latency each,
//! and broadcasts down a tree.

use super::executor::Executor;
use super::operator::Sum;
use super::schedule::{Counts, Partition};
use super::{Circle, binomial, direct, pairwise};
use crate::transport::{Cause, Fault, Tag, Transport};
use std::time::Duration;

/// The longest byte string one rank may contribute.
pub const MAX_LENGTH: usize = 256 << 20;

/// Every rank gives a byte string and gets those of all ranks, by rank.
pub fn all_gather(
    transport: &mut dyn Transport,
    tag: Tag,
    mine: &[u8],
    deadline: Duration,
) -> Result<Vec<Vec<u8>>, Fault> {
    let everybody = Circle::everybody(transport.rank(), transport.world());
    all_gather_among(&everybody, transport, tag, mine, deadline)
}

/// The same among the members of a circle, by their places in it.
pub fn all_gather_among(
    circle: &Circle,
    transport: &mut dyn Transport,
    tag: Tag,
    mine: &[u8],
    deadline: Duration,
) -> Result<Vec<Vec<u8>>, Fault> {
    let (rank, world, start) = (circle.place(), circle.size(), transport.now());
    check_length(transport.rank(), mine.len() as u64)?;
    let (schedule, mut executor) = (circle.carry(direct::all_gather(rank, world)), Executor::new());
    let mut lengths = vec![0u64; world];
    lengths[rank] = mine.len() as u64;
    executor.run(&schedule, transport, tag, &mut lengths, &Sum, deadline)?;
    let mut ends = Vec::with_capacity(world);
    for (peer, length) in lengths.into_iter().enumerate() {
        ends.push(ends.last().copied().unwrap_or(0) + check_length(circle.ranks()[peer], length)?);
    }
    let mut all = vec![0u8; ends.last().copied().unwrap_or(0)];
    all[ends[rank] - mine.len()..ends[rank]].copy_from_slice(mine);
    let left = left(transport, start, deadline);
    executor.run_ragged(&schedule, transport, tag, (&mut all, Partition::Ends(&ends)), &Sum, left)?;
    let starts = std::iter::once(0).chain(ends.iter().copied());
    Ok(starts.zip(&ends).map(|(start, end)| all[start..*end].to_vec()).collect())
}

/// Every rank gets the byte string of `root`; what the others give is ignored.
pub fn broadcast(
    transport: &mut dyn Transport,
    tag: Tag,
    root: usize,
    bytes: Vec<u8>,
    deadline: Duration,
) -> Result<Vec<u8>, Fault> {
    let everybody = Circle::everybody(transport.rank(), transport.world());
    broadcast_among(&everybody, transport, tag, root, bytes, deadline)
}

/// The same among the members of a circle; `root` is a place in it.
pub fn broadcast_among(
    circle: &Circle,
    transport: &mut dyn Transport,
    tag: Tag,
    root: usize,
    bytes: Vec<u8>,
    deadline: Duration,
) -> Result<Vec<u8>, Fault> {
    let (place, start) = (circle.place(), transport.now());
    let Some(&sender) = circle.ranks().get(root) else {
        let words = format!("there is no place {root} in a circle of {}", circle.size());
        return Err(Fault::of(transport.rank(), Cause::Protocol(words)));
    };
    if place == root {
        check_length(sender, bytes.len() as u64)?;
    }
    let schedule = circle.carry(binomial::broadcast(place, circle.size(), root));
    let (mut executor, mut length) = (Executor::new(), [bytes.len() as u64]);
    executor.run(&schedule, transport, tag, &mut length, &Sum, deadline)?;
    let length = check_length(sender, length[0])?;
    let mut bytes = if place == root { bytes } else { vec![0; length] };
    let left = left(transport, start, deadline);
    executor.run(&schedule, transport, tag, &mut bytes, &Sum, left)?;
    Ok(bytes)
}

/// Every rank gives a byte string to each, itself included, and gets what each has for it, by rank.
pub fn all_to_all(
    transport: &mut dyn Transport,
    tag: Tag,
    pieces: &[&[u8]],
    deadline: Duration,
) -> Result<Vec<Vec<u8>>, Fault> {
    let everybody = Circle::everybody(transport.rank(), transport.world());
    all_to_all_among(&everybody, transport, tag, pieces, deadline)
}

/// The same among the members of a circle, by their places in it.
pub fn all_to_all_among(
    circle: &Circle,
    transport: &mut dyn Transport,
    tag: Tag,
    pieces: &[&[u8]],
    deadline: Duration,
) -> Result<Vec<Vec<u8>>, Fault> {
    let (place, world, start) = (circle.place(), circle.size(), transport.now());
    if pieces.len() != world {
        let what = format!("{} pieces for {world} ranks", pieces.len());
        return Err(Fault::of(transport.rank(), Cause::Protocol(what)));
    }
    check_length(transport.rank(), pieces.iter().map(|piece| piece.len() as u64).sum())?;
    let mut executor = Executor::new();
    let mut counts = vec![0u64; world * world];
    for (count, piece) in counts[place * world..].iter_mut().zip(pieces) {
        *count = piece.len() as u64;
    }
    let schedule = circle.carry(direct::all_gather(place, world));
    executor.run(&schedule, transport, tag, &mut counts, &Sum, deadline)?;
    for (peer, row) in circle.ranks().iter().zip(counts.chunks(world)) {
        check_length(*peer, row.iter().fold(0, |sum, count| sum.saturating_add(*count)))?;
    }
    let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
    let arriving = (0..world).map(|from| counts[from * world + place]);
    let mut buffer = pieces.concat();
    let mut end = buffer.len();
    buffer.resize(end + arriving.clone().sum::<usize>(), 0);
    let partition = Partition::Pairs(Counts { counts: &counts, world }, place);
    let schedule = circle.carry(pairwise::all_to_all_apart(place, world));
    let left = left(transport, start, deadline);
    executor.run_ragged(&schedule, transport, tag, (&mut buffer, partition), &Sum, left)?;
    let mut take = |length: usize| {
        end += length;
        buffer[end - length..end].to_vec()
    };
    let mut arrived: Vec<Vec<u8>> = arriving.map(&mut take).collect();
    arrived[place] = pieces[place].to_vec();
    Ok(arrived)
}

/// What is left of a deadline that began at `start`.
fn left(transport: &dyn Transport, start: Duration, deadline: Duration) -> Duration {
    deadline.saturating_sub(transport.now().saturating_sub(start))
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
