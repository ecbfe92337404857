//! Recursive doubling: the fewest steps of all.
//!
//! In step k ranks whose numbers differ in bit k exchange their whole buffers and both add: after log2 n steps
//! everybody has everything. Every rank computes the sum itself; as all compute the same tree of additions and an
//! addition gives the same bits either way round, all have the same bits. For short buffers.
//!
//! Delay (Langer et al., section 3.4.1): `ceil(log2 n) (T + R)`; here for powers of two, others are folded first.

use super::fold::Fold;
use super::schedule::{Action, Chunks, Cost, ReceiveChunks, Schedule, SendChunks, Step, ceil_log2};

/// Every rank ends with the sum of all buffers.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    let fold = Fold::new(rank, world);
    fold.around(1, |position| {
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

/// What [`all_reduce`] costs a rank for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let fold = Fold::new(rank, world);
    let steps = ceil_log2(fold.active);
    fold.cost(length, width, |_| Cost::of(steps, steps * length, steps * length, steps * length, width))
}

/// Nobody leaves before all have come: in step k every rank tells the one 2^k behind it that it has heard of the 2^k
/// before it (dissemination, any n). The buffer is one element whose value does not matter: what arrives is only the news,
/// but with an empty buffer no step would wait for the one before.
pub fn barrier(rank: usize, world: usize) -> Schedule {
    let news = |bit: usize| {
        let distance = (1 << bit) % world;
        let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
        Step {
            sends: vec![SendChunks { to, chunks: Chunks::one(0) }],
            receives: vec![ReceiveChunks::new(from, Chunks::one(0), Action::Reduce)],
        }
    };
    Schedule { chunks: 1, steps: (0..ceil_log2(world)).map(news).collect() }
}

/// What [`barrier`] costs, besides its element: nothing but its steps.
pub fn barrier_cost(world: usize) -> Cost {
    Cost::of(ceil_log2(world), 0, 0, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::super::checker::{prove, prove_costs};
    use super::super::goal::Goal;
    use super::*;

    #[test]
    fn proven_and_costs_what_it_states() {
        prove(Goal::AllReduce, all_reduce, all_reduce_cost);
        prove_costs(Goal::Barrier, &[0], barrier, |_, world, _, _| barrier_cost(world));
    }

    #[test]
    fn costs_what_the_literature_says() {
        for log in 0..=6u64 {
            let cost = all_reduce_cost(0, 1 << log, 120, 4);
            assert_eq!((cost.steps, cost.bytes_sent, cost.additions), (log, log * 4 * 120, log * 120));
        }
    }
}
