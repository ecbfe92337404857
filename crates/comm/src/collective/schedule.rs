//! The schedule of one rank in a collective, as data: steps of sends and receives over numbered chunks of its buffer.

use super::cost::Cost;
use super::partition::{Partition, chunk_range};
use std::ops::Range;

/// One rank's part in a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Number of chunks the buffer is divided into, see [`Partition`].
    pub chunks: usize,
    /// Run in order.
    pub steps: Vec<Step>,
}

/// Sends and receives that run concurrently.
///
/// Sends read the buffer as it was before the step. A chunk that is overwritten in place ([`Action::Copy`]) is touched
/// by nothing else in its step; received chunks are combined in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub sends: Vec<SendChunks>,
    pub receives: Vec<ReceiveChunks>,
}

/// Consecutive chunks, sent as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    pub first: usize,
    pub count: usize,
}

impl Chunks {
    pub fn one(chunk: usize) -> Chunks {
        Chunks { first: chunk, count: 1 }
    }

    pub fn all(chunks: usize) -> Chunks {
        Chunks { first: 0, count: chunks }
    }

    pub fn indices(self) -> Range<usize> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Their elements in a buffer of `length` elements that is divided evenly into `chunks`.
    pub fn elements(self, length: usize, chunks: usize) -> Range<usize> {
        let start = chunk_range(length, chunks, self.first).start;
        start..chunk_range(length, chunks, self.first + self.count).start
    }

    pub fn overlaps(self, other: Chunks) -> bool {
        self.indices().start < other.indices().end && other.indices().start < self.indices().end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendChunks {
    pub to: usize,
    pub chunks: Chunks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveChunks {
    pub from: usize,
    /// Index of the first chunk at the sender; it differs from `chunks.first` in an all-to-all only.
    pub sent: usize,
    pub chunks: Chunks,
    pub action: Action,
}

impl ReceiveChunks {
    /// Chunks with the same indices on both sides.
    pub fn new(from: usize, chunks: Chunks, action: Action) -> ReceiveChunks {
        ReceiveChunks { from, sent: chunks.first, chunks, action }
    }
}

/// How a received chunk is combined with the one in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Received in place: nothing in the same step may read the old contents.
    Copy,
    /// Replaced after the step's sends of it are complete, so that two ranks can swap chunks.
    Exchange,
    /// Combined by the [operator](super::Operator), usually added.
    Reduce,
}

impl Step {
    pub fn sending(to: usize, chunks: Chunks) -> Step {
        Step { sends: vec![SendChunks { to, chunks }], receives: Vec::new() }
    }

    pub fn receiving(from: usize, chunks: Chunks, action: Action) -> Step {
        Step { sends: Vec::new(), receives: vec![ReceiveChunks::new(from, chunks, action)] }
    }

    /// Whether all its peers and chunks exist, and no peer is `rank` itself.
    pub(super) fn is_valid(&self, rank: usize, world: usize, chunks: usize) -> bool {
        let fits = |peer: usize, of: Chunks| peer < world && peer != rank && of.indices().end <= chunks;
        self.sends.iter().all(|send| fits(send.to, send.chunks))
            && self.receives.iter().all(|receive| {
                fits(receive.from, receive.chunks)
                    && receive.sent.saturating_add(receive.chunks.count) <= chunks
            })
    }

    /// Chunks that the step overwrites while it also sends them or receives them a second time.
    pub(super) fn overwritten_chunks(&self) -> Option<Chunks> {
        let is_sent = |chunks: Chunks| self.sends.iter().any(|send| send.chunks.overlaps(chunks));
        let is_received_beside = |index: usize, chunks: Chunks| {
            let mut others = self.receives.iter().enumerate().filter(|(other, _)| *other != index);
            others.any(|(_, other)| other.chunks.overlaps(chunks))
        };
        let mut receives = self.receives.iter().enumerate();
        let found = receives.find(|(index, receive)| match receive.action {
            Action::Copy => is_sent(receive.chunks) || is_received_beside(*index, receive.chunks),
            Action::Exchange => is_received_beside(*index, receive.chunks),
            Action::Reduce => false,
        });
        found.map(|(_, receive)| receive.chunks)
    }
}

impl Schedule {
    /// The cost, counted from the steps, with elements of `width` bytes; `rounds` is that of the whole collective.
    pub fn cost(&self, rounds: usize, partition: Partition<'_>, width: usize) -> Cost {
        let elements = |chunks: Chunks| partition.elements(chunks, self.chunks).len();
        let sends = self.steps.iter().flat_map(|step| &step.sends);
        let receives = || self.steps.iter().flat_map(|step| &step.receives);
        let reduces = receives().filter(|receive| receive.action == Action::Reduce);
        Cost::of(
            rounds,
            sends.map(|send| elements(send.chunks)).sum(),
            receives().map(|receive| elements(receive.chunks)).sum(),
            reduces.map(|receive| elements(receive.chunks)).sum(),
            width,
        )
    }

    /// Replaces every rank r by `ranks[r]`.
    pub(super) fn map_ranks(mut self, ranks: &[usize]) -> Schedule {
        for step in &mut self.steps {
            step.sends.iter_mut().for_each(|send| send.to = ranks[send.to]);
            step.receives.iter_mut().for_each(|receive| receive.from = ranks[receive.from]);
        }
        self
    }

    /// Replaces every chunk c by the chunks `block(c)` of a buffer of `chunks`. Only for schedules whose chunks have the
    /// same index at sender and receiver.
    pub(super) fn map_chunks(mut self, chunks: usize, block: impl Fn(usize) -> Vec<Chunks>) -> Schedule {
        let blocks = |of: Chunks| of.indices().flat_map(&block).collect::<Vec<_>>();
        for step in &mut self.steps {
            let sends = step.sends.iter();
            step.sends = sends
                .flat_map(|&SendChunks { to, chunks }| {
                    blocks(chunks).into_iter().map(move |chunks| SendChunks { to, chunks })
                })
                .collect();
            let receives = step.receives.iter();
            step.receives = receives
                .flat_map(|&ReceiveChunks { from, chunks, action, .. }| {
                    blocks(chunks).into_iter().map(move |chunks| ReceiveChunks::new(from, chunks, action))
                })
                .collect();
        }
        self.chunks = chunks;
        self
    }

    /// The dual schedule: steps in reverse order, sends and receives exchanged. A broadcast becomes a reduce to the same
    /// root; an all-gather in which no chunk arrives twice becomes a reduce-scatter. Only for schedules whose chunks have
    /// the same index at sender and receiver.
    pub fn reversed(self, action: Action) -> Schedule {
        let reverse = |step: Step| {
            let receive = |&SendChunks { to, chunks }: &_| ReceiveChunks::new(to, chunks, action);
            let send = |&ReceiveChunks { from, chunks, .. }: &_| SendChunks { to: from, chunks };
            Step {
                sends: step.receives.iter().map(send).collect(),
                receives: step.sends.iter().map(receive).collect(),
            }
        };
        Schedule { chunks: self.chunks, steps: self.steps.into_iter().rev().map(reverse).collect() }
    }

    /// Appends the steps of another schedule over the same chunks.
    pub fn then(mut self, next: Schedule) -> Schedule {
        self.chunks = self.chunks.max(next.chunks);
        self.steps.extend(next.steps);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_only_if_they_share_a_chunk() {
        let chunks = Chunks { first: 2, count: 3 };
        assert!(chunks.overlaps(Chunks::one(4)) && chunks.overlaps(Chunks::all(3)));
        assert!(!chunks.overlaps(Chunks::one(5)) && !chunks.overlaps(Chunks::all(2)));
    }
}
