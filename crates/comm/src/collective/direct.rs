//! Direct: every rank sends to every other rank at once.
//!
//! Rank r reduces chunk r: in one step it receives that chunk from all other ranks and adds them in the order of the list;
//! in a second step it sends the sum to all. Two steps for any n and as few bytes as the ring, but n - 1 messages at a time:
//! each worker is a parameter server for 1/n of the model.
//!
//! Delay (Langer et al., section 3.4.1): `2 (n-1)/n T + (n-1)/n R`.

use super::cost::Cost;
use super::partition::chunk_range;
use super::schedule::{Action, Chunks, ReceiveChunks, Schedule, SendChunks, Step};

/// Every rank ends with the sum of all buffers, the same bits on each.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    reduce_scatter(rank, world).then(all_gather(rank, world))
}

/// Rank r ends with chunk r of the sum; its other chunks are unchanged.
pub fn reduce_scatter(rank: usize, world: usize) -> Schedule {
    in_one_step(rank, world, Chunks::one, |_| Chunks::one(rank), Action::Reduce)
}

/// Rank r begins with chunk r and ends with all chunks.
pub fn all_gather(rank: usize, world: usize) -> Schedule {
    in_one_step(rank, world, |_| Chunks::one(rank), Chunks::one, Action::Copy)
}

/// Every rank ends with the root's buffer.
pub fn broadcast(rank: usize, world: usize, root: usize) -> Schedule {
    let others = (1..world).map(|distance| (root + distance) % world);
    let steps = match rank == root {
        true => step_if_any(Step {
            sends: others.map(|to| SendChunks { to, chunks: Chunks::one(0) }).collect(),
            receives: Vec::new(),
        }),
        false => vec![Step::receiving(root, Chunks::one(0), Action::Copy)],
    };
    Schedule { chunks: 1, steps }
}

/// The root ends with the sum of all buffers.
pub fn reduce(rank: usize, world: usize, root: usize) -> Schedule {
    broadcast(rank, world, root).reversed(Action::Reduce)
}

/// The root ends with chunk r of every rank r.
pub fn gather(rank: usize, world: usize, root: usize) -> Schedule {
    let others = (1..world).map(|distance| (root + distance) % world);
    let receive = |from: usize| ReceiveChunks::new(from, Chunks::one(from), Action::Copy);
    let steps = match rank == root {
        true => step_if_any(Step { sends: Vec::new(), receives: others.map(receive).collect() }),
        false => vec![Step::sending(root, Chunks::one(rank))],
    };
    Schedule { chunks: world.max(1), steps }
}

/// Every rank r ends with chunk r of the root.
pub fn scatter(rank: usize, world: usize, root: usize) -> Schedule {
    gather(rank, world, root).reversed(Action::Copy)
}

/// One chunk to each other rank and one from each. Starts with the neighbours, so that not all ranks begin with rank 0.
fn in_one_step(
    rank: usize,
    world: usize,
    sent_to: impl Fn(usize) -> Chunks,
    received_from: impl Fn(usize) -> Chunks,
    action: Action,
) -> Schedule {
    let after = (1..world).map(|distance| (rank + distance) % world);
    let before = (1..world).map(|distance| (rank + world - distance) % world);
    let step = Step {
        sends: after.map(|to| SendChunks { to, chunks: sent_to(to) }).collect(),
        receives: before.map(|from| ReceiveChunks::new(from, received_from(from), action)).collect(),
    };
    Schedule { chunks: world.max(1), steps: step_if_any(step) }
}

/// One step, or none in a world of one rank.
fn step_if_any(step: Step) -> Vec<Step> {
    if step == Step::default() { Vec::new() } else { vec![step] }
}

/// The cost of [`all_reduce`] for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    reduce_scatter_cost(rank, world, length, width) + all_gather_cost(rank, world, length, width)
}

/// The cost of [`reduce_scatter`]: sends all chunks but the rank's own, which it receives n - 1 times.
pub fn reduce_scatter_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let (own, others) = (chunk_range(length, world, rank).len(), world.saturating_sub(1));
    Cost::of(others.min(1), length - own, others * own, others * own, width)
}

/// The cost of [`all_gather`], the dual of [`reduce_scatter`].
pub fn all_gather_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let (own, others) = (chunk_range(length, world, rank).len(), world.saturating_sub(1));
    Cost::of(others.min(1), others * own, length - own, 0, width)
}

/// The cost of [`broadcast`]: one buffer from the root to each rank.
pub fn broadcast_cost(rank: usize, world: usize, root: usize, length: usize, width: usize) -> Cost {
    let others = world.saturating_sub(1);
    match rank == root {
        true => Cost::of(others.min(1), others * length, 0, 0, width),
        false => Cost::of(1, 0, length, 0, width),
    }
}

/// The cost of [`reduce`], the dual of [`broadcast`].
pub fn reduce_cost(rank: usize, world: usize, root: usize, length: usize, width: usize) -> Cost {
    broadcast_cost(rank, world, root, length, width).reversed(width)
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
            assert_eq!(cost.additions, (n - 1) * length / n);
        }
    }
}
