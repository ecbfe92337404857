//! An all-reduce by messages whose brackets do not depend on the world.
//!
//! Every rank adds up a share of the elements for all: it receives that share of every term, adds them as the
//! [`Brackets`] say, and hands out the sum. Two steps, each with every other rank at once.
//!
//! A rank with k terms of B bytes sends k (n - 1) / n B, then (n - 1) / n B: with one term each that is what a ring
//! sends. Behind the terms everybody says a few numbers for itself; these go to all, as they are.

use super::brackets::{Brackets, Slots};
use crate::arena::share;
use crate::transport::{Fault, Incoming, Outgoing, Tag, Transport};
use std::time::Duration;

/// Adds up the terms in all ranks' slots. The sum is in everybody's first slot; what is behind it there are the sums
/// over all ranks.
pub fn all_reduce(
    transport: &mut dyn Transport,
    tag: Tag,
    brackets: &Brackets,
    slots: Slots,
    memory: &mut [f32],
    deadline: Duration,
) -> Result<(), Fault> {
    let start = transport.now();
    let sum = scatter(transport, tag, brackets, slots, memory, deadline)?;
    let left = deadline.saturating_sub(transport.now().saturating_sub(start));
    gather(transport, tag, brackets.terms().len() as u32, &sum, slots, memory, left)
}

/// This rank's share of the sum.
fn scatter(
    transport: &mut dyn Transport,
    tag: Tag,
    brackets: &Brackets,
    slots: Slots,
    memory: &[f32],
    deadline: Duration,
) -> Result<Vec<f32>, Fault> {
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
    let mut arrived = vec![0.0f32; others * mine.len()];
    let mut pieces = arrived.chunks_exact_mut(mine.len().max(1));
    let mut receives = Vec::new();
    for (chunk, term) in terms.iter().enumerate().filter(|(_, term)| term.rank != rank) {
        if let Some(piece) = pieces.next() {
            let bytes = bytemuck::cast_slice_mut(piece);
            receives.push(Incoming { from: term.rank, chunk: chunk as u32, bytes });
        }
    }
    transport.transfer(tag, &sends, &mut receives, deadline)?;
    let mut sum = vec![0.0; mine.len()];
    if !mine.is_empty() {
        let mut pieces = arrived.chunks_exact(mine.len());
        let values: Vec<&[f32]> = terms
            .iter()
            .map(|term| match term.rank == rank {
                true => &slots.of(memory, term.slot)[mine.clone()],
                false => pieces.next().unwrap_or_default(),
            })
            .collect();
        brackets.evaluate(&mut sum, &values);
    }
    Ok(sum)
}

/// Everybody's share of the sum, and what everybody says for itself.
fn gather(
    transport: &mut dyn Transport,
    tag: Tag,
    chunk: u32,
    sum: &[f32],
    slots: Slots,
    memory: &mut [f32],
    deadline: Duration,
) -> Result<(), Fault> {
    let (rank, world) = (transport.rank(), transport.world());
    let (head, behind) = slots.of_mut(memory, 0).split_at_mut(slots.head);
    let said = behind.to_vec();
    let mut others = vec![0.0f32; behind.len() * world];
    let mut words = others.chunks_exact_mut(behind.len().max(1));
    let (mut sends, mut receives, mut rest) = (Vec::new(), Vec::new(), head);
    for peer in 0..world {
        let (piece, after) = rest.split_at_mut(share(slots.head, peer, world).len());
        rest = after;
        let word = words.next().unwrap_or_default();
        if peer == rank {
            piece.copy_from_slice(sum);
            word.copy_from_slice(&said);
            continue;
        }
        for (chunk, values) in [(chunk, sum), (chunk + 1, &said)] {
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
    for word in others.chunks_exact(behind.len().max(1)).take(world) {
        behind.iter_mut().zip(word).for_each(|(sum, value)| *sum += value);
    }
    Ok(())
}
