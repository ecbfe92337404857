//! Direct: everybody sends everybody its part at once.
//!
//! Rank r is responsible for chunk r: in one step it gets that chunk from all others and adds them up in the order of
//! the list; in a second step it gives the sum to all. Two latencies whatever n, as few bytes as the ring, but n - 1
//! messages at a time: each worker is a parameter server for 1/n of the model.
//!
//! Delay (Langer et al., section 3.4.1): `2 (n-1)/n T + (n-1)/n R`.

use super::schedule::{Action, Chunks, Cost, ReceiveChunks, Schedule, SendChunks, Step, chunk_range};

/// Every rank ends with the sum of all buffers, the same bits on each.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    reduce_scatter(rank, world).then(all_gather(rank, world))
}

/// Rank r ends with chunk r of the sum; its other chunks stay as they were.
pub fn reduce_scatter(rank: usize, world: usize) -> Schedule {
    in_one_step(rank, world, Chunks::one, |_| Chunks::one(rank), Action::Reduce)
}

/// Rank r begins with chunk r and ends with all chunks.
pub fn all_gather(rank: usize, world: usize) -> Schedule {
    in_one_step(rank, world, |_| Chunks::one(rank), Chunks::one, Action::Copy)
}

/// Something to each other rank and something from each; neighbours first, so that not all begin with rank 0.
fn in_one_step(
    rank: usize,
    world: usize,
    leaving: impl Fn(usize) -> Chunks,
    arriving: impl Fn(usize) -> Chunks,
    action: Action,
) -> Schedule {
    let behind = (1..world).map(|distance| (rank + distance) % world);
    let before = (1..world).map(|distance| (rank + world - distance) % world);
    let step = Step {
        sends: behind.map(|to| SendChunks { to, chunks: leaving(to) }).collect(),
        receives: before.map(|from| ReceiveChunks::new(from, arriving(from), action)).collect(),
    };
    Schedule { chunks: world.max(1), steps: if world > 1 { vec![step] } else { Vec::new() } }
}

/// What [`all_reduce`] costs a rank for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    reduce_scatter_cost(rank, world, length, width) + all_gather_cost(rank, world, length, width)
}

/// What [`reduce_scatter`] costs: all chunks but the own one leave, the own one arrives n - 1 times.
pub fn reduce_scatter_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let (own, others) = (chunk_range(length, world, rank).len(), world.saturating_sub(1));
    Cost::of(others.min(1), length - own, others * own, others * own, width)
}

/// What [`all_gather`] costs: the other way round.
pub fn all_gather_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let (own, others) = (chunk_range(length, world, rank).len(), world.saturating_sub(1));
    Cost::of(others.min(1), others * own, length - own, 0, width)
}

#[cfg(test)]
mod tests {
    use super::super::checker::prove;
    use super::super::goal::Goal;
    use super::*;

    #[test]
    fn proven_and_costs_what_it_states() {
        prove(Goal::AllReduce, all_reduce, all_reduce_cost);
        prove(Goal::ReduceScatter, reduce_scatter, reduce_scatter_cost);
        prove(Goal::AllGather, all_gather, all_gather_cost);
    }

    #[test]
    fn costs_what_the_literature_says() {
        for log in 0..=6u64 {
            let (n, length) = (1 << log, 120 << log);
            let cost = all_reduce_cost(0, n as usize, length as usize, 4);
            assert_eq!(cost.bytes_sent, 2 * (n - 1) * 4 * length / n);
            assert_eq!(cost.additions, (n - 1) * length / n);
        }
    }
}
