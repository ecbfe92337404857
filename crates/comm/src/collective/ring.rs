//! The ring: every rank sends to one neighbour and receives from the other; all links carry the same number of bytes.
//!
//! The buffer is divided into n chunks. In the first n - 1 steps partial sums go round the ring, and each rank adds its own
//! contribution, until each rank holds one complete chunk; in the next n - 1 steps the complete chunks go round once more.
//! Bandwidth-optimal: 2 (n-1)/n of the buffer per rank. The latency of 2 (n-1) steps is high for short buffers.
//!
//! Delay (Langer et al., section 3.4.1): `2 (n-1)/n T + (n-1)/n R`, with T and R the times to transmit and to reduce
//! the whole buffer.
//!
//! Broadcast and reduce use an open ring, a chain: while a rank receives one of n chunks it sends the one before, so that no
//! link carries more than one buffer. The chain is ordered by host and enters each host once.

use super::cost::Cost;
use super::hierarchical::host_by_host;
use super::partition::chunk_range;
use super::schedule::{Action, Chunks, ReceiveChunks, Schedule, SendChunks, Step};

/// Every rank ends with the sum of all buffers, the same bits on each.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    reduce_scatter(rank, world).then(all_gather(rank, world))
}

/// Rank r ends with chunk r of the sum; its other chunks contain partial sums.
pub fn reduce_scatter(rank: usize, world: usize) -> Schedule {
    // In step s a rank sends the chunk that it received in step s - 1.
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

/// Every rank ends with the root's buffer; `hosts[r]` identifies the host of rank r.
pub fn broadcast(rank: usize, hosts: &[usize], root: usize) -> Schedule {
    let (chunks, (previous, next)) = (hosts.len().max(1), neighbours(rank, hosts, root));
    let receive_from = |at: usize| (at < chunks).then_some(previous).flatten();
    let send_to = |at: usize| (at > 0).then_some(next).flatten();
    let step = |at: usize| Step {
        sends: send_to(at).map(|to| SendChunks { to, chunks: Chunks::one(at - 1) }).into_iter().collect(),
        receives: receive_from(at)
            .map(|from| ReceiveChunks::new(from, Chunks::one(at), Action::Copy))
            .into_iter()
            .collect(),
    };
    let is_active = |at: &usize| receive_from(*at).or(send_to(*at)).is_some();
    Schedule { chunks, steps: (0..=chunks).filter(is_active).map(step).collect() }
}

/// The root ends with the sum of all buffers, accumulated along the chain.
pub fn reduce(rank: usize, hosts: &[usize], root: usize) -> Schedule {
    broadcast(rank, hosts, root).reversed(Action::Reduce)
}

/// The predecessor and successor of a rank in the chain from the root.
fn neighbours(rank: usize, hosts: &[usize], root: usize) -> (Option<usize>, Option<usize>) {
    let chain = host_by_host(hosts, root);
    let position = chain.iter().position(|&other| other == rank).unwrap_or(0);
    (position.checked_sub(1).map(|before| chain[before]), chain.get(position + 1).copied())
}

/// One step round the ring: sends chunk `rank + lead` and receives the one before it.
fn step(rank: usize, world: usize, lead: usize, action: Action) -> Step {
    let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
    let chunk = |lead: usize| Chunks::one((rank + lead) % world);
    Step {
        sends: vec![SendChunks { to: next, chunks: chunk(lead) }],
        receives: vec![ReceiveChunks::new(previous, chunk(lead + world - 1), action)],
    }
}

/// The cost of [`all_reduce`] for `length` elements of `width` bytes.
///
/// Each half sends every chunk but one: exactly 2 (n-1)/n of the buffer if n divides its length.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    reduce_scatter_cost(rank, world, length, width) + all_gather_cost(rank, world, length, width)
}

/// The cost of [`reduce_scatter`]: sends all chunks but the rank's own, receives all but the one before it.
pub fn reduce_scatter_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let received = all_but(length, world, rank + world.max(1) - 1);
    Cost::of(world.saturating_sub(1), all_but(length, world, rank), received, received, width)
}

/// The cost of [`all_gather`]: sends all chunks but the next one, receives all but the rank's own.
pub fn all_gather_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let (sent, received) = (all_but(length, world, rank + 1), all_but(length, world, rank));
    Cost::of(world.saturating_sub(1), sent, received, 0, width)
}

/// The cost of [`broadcast`]: receives one buffer and sends one, except at the ends of the chain.
pub fn broadcast_cost(rank: usize, hosts: &[usize], root: usize, length: usize, width: usize) -> Cost {
    let (previous, next) = neighbours(rank, hosts, root);
    let buffers = |peer: Option<usize>| if peer.is_some() { length } else { 0 };
    Cost::of(2 * hosts.len().saturating_sub(1), buffers(next), buffers(previous), 0, width)
}

/// The cost of [`reduce`], the dual of [`broadcast`].
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
