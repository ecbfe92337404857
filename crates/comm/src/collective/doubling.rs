//! Recursive doubling: the fewest steps of all algorithms, for short buffers.
//!
//! In step k ranks that differ in bit k exchange their whole buffers and both add: after log2 n steps every rank has the
//! sum. Every rank computes it itself; the bits are the same because all compute the same tree of additions and addition is
//! commutative.
//!
//! Delay (Langer et al., section 3.4.1): `ceil(log2 n) (T + R)` for powers of two; other world sizes are folded first.

use super::cost::{Cost, ceil_log2};
use super::fold::Fold;
use super::partition::chunk_range;
use super::schedule::{Action, Chunks, ReceiveChunks, Schedule, SendChunks, Step};

/// Every rank ends with the sum of all buffers.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    let fold = Fold::new(rank, world);
    fold.wrap(1, |position| {
        let exchange = |bit: usize| {
            let peer = fold.rank_at(position ^ (1 << bit));
            Step {
                sends: vec![SendChunks { to: peer, chunks: Chunks::one(0) }],
                receives: vec![ReceiveChunks::new(peer, Chunks::one(0), Action::Reduce)],
            }
        };
        (0..ceil_log2(fold.active)).map(exchange).collect()
    })
}

/// The cost of [`all_reduce`] for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let fold = Fold::new(rank, world);
    let steps = ceil_log2(fold.active);
    fold.cost(length, width, steps, |_| (steps * length, steps * length))
}

/// Rank r begins with chunk r and ends with all chunks. In step k it has the 2^k chunks from its own on, and sends them, or
/// as many as are missing there, to the rank 2^k before it. For any n, with as few bytes as the ring.
pub fn all_gather(rank: usize, world: usize) -> Schedule {
    let step = |(distance, count): (usize, usize)| {
        let (to, from) = ((rank + world - distance) % world, (rank + distance) % world);
        Step {
            sends: wrapping_chunks(rank, count, world).map(|chunks| SendChunks { to, chunks }).collect(),
            receives: wrapping_chunks(from, count, world)
                .map(|chunks| ReceiveChunks::new(from, chunks, Action::Copy))
                .collect(),
        }
    };
    Schedule { chunks: world.max(1), steps: doublings(world).map(step).collect() }
}

/// For each step of [`all_gather`]: the distance to the peer and the number of chunks.
fn doublings(world: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..ceil_log2(world)).map(move |bit| (1 << bit, (1 << bit).min(world - (1 << bit))))
}

/// `count` chunks from `first` on, modulo the world size.
fn wrapping_chunks(first: usize, count: usize, world: usize) -> impl Iterator<Item = Chunks> {
    let before = count.min(world - first);
    let parts = [Chunks { first, count: before }, Chunks { first: 0, count: count - before }];
    parts.into_iter().filter(|chunks| chunks.count > 0)
}

/// The cost of [`all_gather`]: sends the chunks it has in each step, receives all chunks but its own.
pub fn all_gather_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let elements = |chunks: Chunks| chunks.elements(length, world).len();
    let sent =
        doublings(world).flat_map(|(_, count)| wrapping_chunks(rank, count, world)).map(elements).sum();
    let received = length - chunk_range(length, world, rank).len();
    Cost::of(ceil_log2(world), sent, received, 0, width)
}

/// Dissemination barrier, for any n: in step k every rank sends to the one 2^k behind it, after the 2^k ranks before it have
/// reached it. The buffer is one element of any value: with an empty buffer no step would wait for the one before.
pub fn barrier(rank: usize, world: usize) -> Schedule {
    let step = |bit: usize| {
        let distance = (1 << bit) % world;
        let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
        Step {
            sends: vec![SendChunks { to, chunks: Chunks::one(0) }],
            receives: vec![ReceiveChunks::new(from, Chunks::one(0), Action::Reduce)],
        }
    };
    Schedule { chunks: 1, steps: (0..ceil_log2(world)).map(step).collect() }
}

/// The cost of [`barrier`]: the buffer once per step, both ways.
pub fn barrier_cost(_: usize, world: usize, length: usize, width: usize) -> Cost {
    let steps = ceil_log2(world);
    Cost::of(steps, steps * length, steps * length, steps * length, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_what_the_literature_says() {
        for log in 0..=6u64 {
            let cost = all_reduce_cost(0, 1 << log, 120, 4);
            assert_eq!((cost.steps, cost.bytes_sent, cost.additions), (log, log * 4 * 120, log * 120));
        }
    }
}
