//! The ring: every rank talks to its two neighbours only, and every link carries the same amount.
//!
//! The buffer is cut into n chunks. In the first n - 1 steps partial sums travel round the ring, each rank adding
//! its own part, until each rank holds one finished chunk; in the next n - 1 steps the finished chunks travel round
//! once more. Bandwidth-optimal: 2 (n-1)/n of the buffer per rank. Its 2 (n-1) latencies hurt short buffers.
//!
//! Delay (Langer et al., section 3.4.1): `2 (n-1)/n T + (n-1)/n R`, with T and R the times to transmit and to reduce
//! the whole buffer.
//!
//! A broadcast travels along an open ring, a chain: while a rank receives one of n chunks it passes on the one before, so
//! that no link carries more than one buffer. The chain goes host by host and enters each of them once.

use super::cost::Cost;
use super::hierarchical::host_by_host;
use super::partition::chunk_range;
use super::schedule::{Action, Chunks, ReceiveChunks, Schedule, SendChunks, Step};

/// Every rank ends with the sum of all buffers, the same bits on each.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    reduce_scatter(rank, world).then(all_gather(rank, world))
}

/// Rank r ends with chunk r of the sum; its other chunks hold partial sums.
pub fn reduce_scatter(rank: usize, world: usize) -> Schedule {
    // In step s the chunks have moved on by s: a rank sends what it received in step s - 1.
    Schedule {
        chunks: world.max(1),
        steps: (1..world).map(|s| step(rank, world, world - s, Action::Reduce)).collect(),
    }
}

/// Rank r begins with chunk r and ends with all chunks.
pub fn all_gather(rank: usize, world: usize) -> Schedule {
    Schedule {
        chunks: world.max(1),
        steps: (1..world).map(|s| step(rank, world, world - s + 1, Action::Copy)).collect(),
    }
}

/// Every rank ends with the root's buffer; `hosts[r]` says on which host rank r is.
pub fn broadcast(rank: usize, hosts: &[usize], root: usize) -> Schedule {
    let (chunks, (previous, next)) = (hosts.len().max(1), neighbours(rank, hosts, root));
    let arriving = |at: usize| (at < chunks).then_some(previous).flatten();
    let leaving = |at: usize| (at > 0).then_some(next).flatten();
    let step = |at: usize| Step {
        sends: leaving(at).map(|to| SendChunks { to, chunks: Chunks::one(at - 1) }).into_iter().collect(),
        receives: arriving(at)
            .map(|from| ReceiveChunks::new(from, Chunks::one(at), Action::Copy))
            .into_iter()
            .collect(),
    };
    let moves = |at: &usize| arriving(*at).or(leaving(*at)).is_some();
    Schedule { chunks, steps: (0..=chunks).filter(moves).map(step).collect() }
}

/// The root ends with the sum of all buffers, which grows on its way along the chain.
pub fn reduce(rank: usize, hosts: &[usize], root: usize) -> Schedule {
    broadcast(rank, hosts, root).reversed(Action::Reduce)
}

/// Who stands before a rank and behind it in the chain from the root.
fn neighbours(rank: usize, hosts: &[usize], root: usize) -> (Option<usize>, Option<usize>) {
    let chain = host_by_host(hosts, root);
    let place = chain.iter().position(|&other| other == rank).unwrap_or(0);
    (place.checked_sub(1).map(|before| chain[before]), chain.get(place + 1).copied())
}

/// One step round the ring: the chunk `lead` places ahead of the rank leaves, the one before it arrives.
fn step(rank: usize, world: usize, lead: usize, action: Action) -> Step {
    let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
    let chunk = |lead: usize| Chunks::one((rank + lead) % world);
    Step {
        sends: vec![SendChunks { to: next, chunks: chunk(lead) }],
        receives: vec![ReceiveChunks::new(previous, chunk(lead + world - 1), action)],
    }
}

/// What [`all_reduce`] costs a rank for `length` elements of `width` bytes.
///
/// Each half sends every chunk but one, so for lengths that divide by n it is exactly 2 (n-1)/n of the buffer.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    reduce_scatter_cost(rank, world, length, width) + all_gather_cost(rank, world, length, width)
}

/// What [`reduce_scatter`] costs: every chunk but the own one leaves, every chunk but the one before arrives.
pub fn reduce_scatter_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let received = all_but(length, world, rank + world.max(1) - 1);
    Cost::of(world.saturating_sub(1), all_but(length, world, rank), received, received, width)
}

/// What [`all_gather`] costs: every chunk but the next one leaves, every chunk but the own one arrives.
pub fn all_gather_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let (sent, received) = (all_but(length, world, rank + 1), all_but(length, world, rank));
    Cost::of(world.saturating_sub(1), sent, received, 0, width)
}

/// What [`broadcast`] costs: one buffer from the rank before, one to the next.
pub fn broadcast_cost(rank: usize, hosts: &[usize], root: usize, length: usize, width: usize) -> Cost {
    let (previous, next) = neighbours(rank, hosts, root);
    let buffers = |peer: Option<usize>| if peer.is_some() { length } else { 0 };
    Cost::of(2 * hosts.len().saturating_sub(1), buffers(next), buffers(previous), 0, width)
}

/// What [`reduce`] costs: the other way round.
pub fn reduce_cost(rank: usize, hosts: &[usize], root: usize, length: usize, width: usize) -> Cost {
    broadcast_cost(rank, hosts, root, length, width).reversed(width)
}

fn all_but(length: usize, world: usize, chunk: usize) -> usize {
    length - chunk_range(length, world, chunk % world.max(1)).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_what_the_literature_says() {
        for world in 1..=64usize {
            let (length, n) = (120 * world, world as u64);
            let cost = all_reduce_cost(0, world, length, 4);
            assert_eq!(cost.bytes_sent, 2 * (n - 1) * 4 * length as u64 / n);
            assert_eq!(cost.additions, (n - 1) * length as u64 / n);
            assert_eq!(cost.steps, 2 * (n - 1));
        }
    }
}
