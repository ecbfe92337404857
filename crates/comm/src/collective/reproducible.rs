//! All-reduce over messages whose result has the same bits on any number of ranks.
//!
//! Every rank reduces one shard: it receives the shard of every term, evaluates the [`ReductionTree`], and sends the
//! sum to all ranks. Two steps, each with all other ranks at once.
//!
//! A rank with k terms of B bytes sends k (n - 1) / n B, then (n - 1) / n B: with one term per rank that is what a ring
//! sends. The tails of all ranks (see [`PartialSums`]) are sent to every rank as they are. It is not a
//! [`Schedule`](super::Schedule), so the checker does not cover it; the conformance tests of the transports compare its
//! bits and bytes.

use super::byte_collectives::remaining;
use super::cost::Cost;
use super::group::Group;
use super::partition::shard_range;
use super::reduction_tree::{PartialSums, ReductionTree};
use crate::transport::{Incoming, Outgoing, Tag, Transport, TransportError};
use std::time::Duration;

/// Runs reproducible all-reduces of one group; reuses its memory.
pub struct ReproducibleAllReduce {
    group: Group,
    /// This rank's shard of the terms of other ranks.
    received: Vec<f32>,
    /// This rank's shard of the sum.
    sum: Vec<f32>,
    /// By group rank.
    tails: Vec<f32>,
}

/// The cost for a rank: its terms except for its own shard, then that shard of the sum and its tail to each.
pub fn all_reduce_cost(tree: &ReductionTree, partial_sums: PartialSums, rank: usize, world: usize) -> Cost {
    let (terms, others) = (tree.terms().len(), world - 1);
    let held = tree.terms().iter().filter(|term| term.rank == rank).count();
    let (shard, tail) =
        (shard_range(partial_sums.head, rank, world).len(), partial_sums.length - partial_sums.head);
    let rest = partial_sums.head - shard;
    Cost::of(
        2 * others.min(1),
        held * rest + others * (shard + tail),
        (terms - held) * shard + rest + others * tail,
        (terms - 1) * shard + world * tail,
        size_of::<f32>(),
    )
}

impl ReproducibleAllReduce {
    pub fn new(group: Group) -> ReproducibleAllReduce {
        ReproducibleAllReduce { group, received: Vec::new(), sum: Vec::new(), tails: Vec::new() }
    }

    /// Reduces the partial sums of all members; the terms of the tree name group ranks. The result is in slot 0 of every
    /// member: the sum of the terms, and in the tail the sum of all tails.
    pub fn all_reduce(
        &mut self,
        transport: &mut dyn Transport,
        tag: Tag,
        tree: &ReductionTree,
        partial_sums: PartialSums,
        memory: &mut [f32],
        deadline: Duration,
    ) -> Result<(), TransportError> {
        let start = transport.now();
        self.reduce_scatter(transport, tag, tree, partial_sums, memory, deadline)?;
        let remaining = remaining(transport, start, deadline);
        self.all_gather(transport, tag, tree.terms().len() as u32, partial_sums, memory, remaining)
    }

    /// Receives and reduces this rank's shard of all terms.
    fn reduce_scatter(
        &mut self,
        transport: &mut dyn Transport,
        tag: Tag,
        tree: &ReductionTree,
        partial_sums: PartialSums,
        memory: &[f32],
        deadline: Duration,
    ) -> Result<(), TransportError> {
        let (ranks, rank, world) = (self.group.ranks(), self.group.group_rank(), self.group.size());
        let (shard_of, terms) = (|rank: usize| shard_range(partial_sums.head, rank, world), tree.terms());
        let mine = shard_of(rank);
        // A frame's chunk index is the index of its term.
        let held = |holder: usize| (0..terms.len()).filter(move |&term| terms[term].rank == holder);
        let mut sends = Vec::new();
        for to in (0..world).filter(|&to| to != rank && !shard_of(to).is_empty()) {
            for term in held(rank) {
                let values = &partial_sums.slice(memory, terms[term].slot)[shard_of(to)];
                sends.push(Outgoing {
                    to: ranks[to],
                    chunk: term as u32,
                    bytes: bytemuck::cast_slice(values),
                });
            }
        }
        let others = terms.iter().filter(|term| term.rank != rank).count();
        self.received.resize(others * mine.len(), 0.0);
        let mut pieces = self.received.chunks_exact_mut(mine.len().max(1));
        let mut receives = Vec::new();
        for (chunk, term) in terms.iter().enumerate().filter(|(_, term)| term.rank != rank) {
            if let Some(piece) = pieces.next() {
                let bytes = bytemuck::cast_slice_mut(piece);
                receives.push(Incoming { from: ranks[term.rank], chunk: chunk as u32, bytes });
            }
        }
        transport.transfer(tag, &sends, &mut receives, deadline)?;
        self.sum.resize(mine.len(), 0.0);
        if !mine.is_empty() {
            let mut pieces = self.received.chunks_exact(mine.len());
            let values: Vec<&[f32]> = terms
                .iter()
                .map(|term| match term.rank == rank {
                    true => &partial_sums.slice(memory, term.slot)[mine.clone()],
                    false => pieces.next().unwrap_or_default(),
                })
                .collect();
            tree.evaluate(&mut self.sum, &values);
        }
        Ok(())
    }

    /// Exchanges the shards of the sum and the tails.
    fn all_gather(
        &mut self,
        transport: &mut dyn Transport,
        tag: Tag,
        chunk: u32,
        partial_sums: PartialSums,
        memory: &mut [f32],
        deadline: Duration,
    ) -> Result<(), TransportError> {
        let (ranks, rank, world) = (self.group.ranks(), self.group.group_rank(), self.group.size());
        let (head, tail) = partial_sums.slice_mut(memory, 0).split_at_mut(partial_sums.head);
        let (sum, own_tail) = (&self.sum[..], &*tail);
        self.tails.resize(own_tail.len() * world, 0.0);
        let mut tails = self.tails.chunks_exact_mut(own_tail.len().max(1));
        let (mut sends, mut receives, mut rest) = (Vec::new(), Vec::new(), head);
        for (index, &peer) in ranks.iter().enumerate() {
            let (piece, after) = rest.split_at_mut(shard_range(partial_sums.head, index, world).len());
            rest = after;
            let peer_tail = tails.next().unwrap_or_default();
            if index == rank {
                piece.copy_from_slice(sum);
                peer_tail.copy_from_slice(own_tail);
                continue;
            }
            for (chunk, values) in [(chunk, sum), (chunk + 1, own_tail)] {
                if !values.is_empty() {
                    sends.push(Outgoing { to: peer, chunk, bytes: bytemuck::cast_slice(values) });
                }
            }
            for (chunk, values) in [(chunk, piece), (chunk + 1, peer_tail)] {
                if !values.is_empty() {
                    receives.push(Incoming { from: peer, chunk, bytes: bytemuck::cast_slice_mut(values) });
                }
            }
        }
        transport.transfer(tag, &sends, &mut receives, deadline)?;
        tail.fill(0.0);
        for peer_tail in self.tails.chunks_exact(tail.len().max(1)).take(world) {
            tail.iter_mut().zip(peer_tail).for_each(|(sum, value)| *sum += value);
        }
        Ok(())
    }
}
