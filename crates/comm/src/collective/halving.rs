//! Recursive halving and doubling (Rabenseifner): as few bytes as the ring in as few steps as a tree.
//!
//! First, ranks that differ in the highest bit exchange halves of the buffer and each adds the half it keeps; then quarters
//! with the next bit, until each rank has one complete chunk. Then the same in reverse: chunks, quarters and halves are
//! exchanged until every rank has the whole buffer. 2 log2 n steps, 2 (n-1)/n of the buffer per rank, (n-1)/n additions;
//! other world sizes than powers of two are folded first, which costs a pair one buffer each way.

use super::cost::{Cost, ceil_log2};
use super::doubling;
use super::fold::Fold;
use super::schedule::{Action, Chunks, ReceiveChunks, Schedule, SendChunks, Step};

/// Every rank ends with the sum of all buffers, the same bits on each.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    let fold = Fold::new(rank, world);
    fold.wrap(fold.active, |position| {
        let bits = ceil_log2(fold.active);
        let step = |bit: usize, sent: Chunks, received: Chunks, action: Action| {
            let peer = fold.rank_at(position ^ (1 << bit));
            Step {
                sends: vec![SendChunks { to: peer, chunks: sent }],
                receives: vec![ReceiveChunks::new(peer, received, action)],
            }
        };
        // At each bit, a rank keeps the 2^bit chunks whose higher bits are its own.
        let mine = |bit: usize| half(position, bit);
        let theirs = |bit: usize| half(position ^ (1 << bit), bit);
        let halve = (0..bits).rev().map(|bit| step(bit, theirs(bit), mine(bit), Action::Reduce));
        let double = (0..bits).map(|bit| step(bit, mine(bit), theirs(bit), Action::Copy));
        halve.chain(double).collect()
    })
}

fn half(position: usize, bit: usize) -> Chunks {
    Chunks { first: position >> bit << bit, count: 1 << bit }
}

/// Rank r ends with chunk r of the sum: the dual of [`doubling::all_gather`], for any n without folding.
pub fn reduce_scatter(rank: usize, world: usize) -> Schedule {
    doubling::all_gather(rank, world).reversed(Action::Reduce)
}

/// The cost of [`reduce_scatter`].
pub fn reduce_scatter_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    doubling::all_gather_cost(rank, world, length, width).reversed(width)
}

/// The cost of [`all_reduce`] for `length` elements of `width` bytes.
///
/// What a rank keeps while halving it sends while doubling, and vice versa: in total all chunks but its own once, and the
/// kept halves once.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let fold = Fold::new(rank, world);
    let bits = ceil_log2(fold.active);
    fold.cost(length, width, 2 * bits, |position| {
        let elements = |chunks: Chunks| chunks.elements(length, fold.active).len();
        let halves: usize = (0..bits).map(|bit| elements(half(position, bit))).sum();
        let moved = halves + length - elements(Chunks::one(position));
        (moved, halves)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_what_the_literature_says() {
        for log in 0..=6u64 {
            let (n, length) = (1 << log, 120 << log);
            let cost = all_reduce_cost(0, n as usize, length as usize, 4);
            assert_eq!(cost.bytes_sent, 2 * (n - 1) * 4 * length / n);
            assert_eq!((cost.additions, cost.steps), ((n - 1) * length / n, 2 * log));
        }
    }
}
