//! An all-reduce by messages whose brackets do not depend on the world.
//!
//! Every rank adds up a share of the elements for all: it receives that share of every term, adds them as the
//! [`Brackets`] say, and hands out the sum. Two steps, each with every other rank at once.
//!
//! A rank with k terms of B bytes sends k (n - 1) / n B, then (n - 1) / n B: with one term each that is what a ring
//! sends. Behind the terms everybody says a few numbers for itself; these go to all, as they are. It is no
//! [`Schedule`](super::Schedule), so no checker proves it; the transports' tests run it, bits and bytes.

use super::brackets::{Brackets, Slots};
use super::cost::Cost;
use super::gather::left;
use crate::arena::share;
use crate::transport::{Fault, Incoming, Outgoing, Tag, Transport};
use std::time::Duration;

/// Sums of terms; keeps its memory between them.
#[derive(Default)]
pub struct Bracketed {
    /// This rank's share of the terms of others.
    arrived: Vec<f32>,
    /// This rank's share of the sum.
    sum: Vec<f32>,
    /// What everybody says for itself, by rank.
    words: Vec<f32>,
}

/// What it costs a rank: its terms but for its own share, then that share of the sum and what it says to each.
pub fn all_reduce_cost(brackets: &Brackets, slots: Slots, rank: usize, world: usize) -> Cost {
    let (terms, others) = (brackets.terms().len(), world - 1);
    let held = brackets.terms().iter().filter(|term| term.rank == rank).count();
    let (share, behind) = (share(slots.head, rank, world).len(), slots.length - slots.head);
    let rest = slots.head - share;
    Cost::of(
        2 * others.min(1),
        held * rest + others * (share + behind),
        (terms - held) * share + rest + others * behind,
        (terms - 1) * share + world * behind,
        size_of::<f32>(),
    )
}

impl Bracketed {
    /// Adds up the terms in all ranks' slots. The sum is in everybody's first slot; what is behind it there are the sums
    /// over all ranks.
    pub fn all_reduce(
        &mut self,
        transport: &mut dyn Transport,
        tag: Tag,
        brackets: &Brackets,
        slots: Slots,
        memory: &mut [f32],
        deadline: Duration,
    ) -> Result<(), Fault> {
        let start = transport.now();
        self.scatter(transport, tag, brackets, slots, memory, deadline)?;
        let left = left(transport, start, deadline);
        self.gather(transport, tag, brackets.terms().len() as u32, slots, memory, left)
    }

    /// This rank's share of the sum.
    fn scatter(
        &mut self,
        transport: &mut dyn Transport,
        tag: Tag,
        brackets: &Brackets,
        slots: Slots,
        memory: &[f32],
        deadline: Duration,
    ) -> Result<(), Fault> {
        let (rank, world) = (transport.rank(), transport.world());
        let (share_of, terms) = (|rank: usize| share(slots.head, rank, world), brackets.terms());
        let mine = share_of(rank);
        // Every term has a number: that of its pieces, whoever gets them.
        let held = |holder: usize| (0..terms.len()).filter(move |&term| terms[term].rank == holder);
        let mut sends = Vec::new();
        for to in (0..world).filter(|&to| to != rank && !share_of(to).is_empty()) {
            for term in held(rank) {
                let values = &slots.of(memory, terms[term].slot)[share_of(to)];
                sends.push(Outgoing { to, chunk: term as u32, bytes: bytemuck::cast_slice(values) });
            }
        }
        let others = terms.iter().filter(|term| term.rank != rank).count();
        self.arrived.resize(others * mine.len(), 0.0);
        let mut pieces = self.arrived.chunks_exact_mut(mine.len().max(1));
        let mut receives = Vec::new();
        for (chunk, term) in terms.iter().enumerate().filter(|(_, term)| term.rank != rank) {
            if let Some(piece) = pieces.next() {
                let bytes = bytemuck::cast_slice_mut(piece);
                receives.push(Incoming { from: term.rank, chunk: chunk as u32, bytes });
            }
        }
        transport.transfer(tag, &sends, &mut receives, deadline)?;
        self.sum.resize(mine.len(), 0.0);
        if !mine.is_empty() {
            let mut pieces = self.arrived.chunks_exact(mine.len());
            let values: Vec<&[f32]> = terms
                .iter()
                .map(|term| match term.rank == rank {
                    true => &slots.of(memory, term.slot)[mine.clone()],
                    false => pieces.next().unwrap_or_default(),
                })
                .collect();
            brackets.evaluate(&mut self.sum, &values);
        }
        Ok(())
    }

    /// Everybody's share of the sum, and what everybody says for itself.
    fn gather(
        &mut self,
        transport: &mut dyn Transport,
        tag: Tag,
        chunk: u32,
        slots: Slots,
        memory: &mut [f32],
        deadline: Duration,
    ) -> Result<(), Fault> {
        let (rank, world) = (transport.rank(), transport.world());
        let (head, behind) = slots.of_mut(memory, 0).split_at_mut(slots.head);
        let (sum, said) = (&self.sum[..], &*behind);
        self.words.resize(said.len() * world, 0.0);
        let mut words = self.words.chunks_exact_mut(said.len().max(1));
        let (mut sends, mut receives, mut rest) = (Vec::new(), Vec::new(), head);
        for peer in 0..world {
            let (piece, after) = rest.split_at_mut(share(slots.head, peer, world).len());
            rest = after;
            let word = words.next().unwrap_or_default();
            if peer == rank {
                piece.copy_from_slice(sum);
                word.copy_from_slice(said);
                continue;
            }
            for (chunk, values) in [(chunk, sum), (chunk + 1, said)] {
                if !values.is_empty() {
                    sends.push(Outgoing { to: peer, chunk, bytes: bytemuck::cast_slice(values) });
                }
            }
            for (chunk, values) in [(chunk, piece), (chunk + 1, word)] {
                if !values.is_empty() {
                    receives.push(Incoming { from: peer, chunk, bytes: bytemuck::cast_slice_mut(values) });
                }
            }
        }
        transport.transfer(tag, &sends, &mut receives, deadline)?;
        behind.fill(0.0);
        for word in self.words.chunks_exact(behind.len().max(1)).take(world) {
            behind.iter_mut().zip(word).for_each(|(sum, value)| *sum += value);
        }
        Ok(())
    }
}
