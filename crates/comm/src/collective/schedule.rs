//! What one rank does in a collective, as data: steps of sends and receives over numbered chunks of its buffer.

use super::cost::Cost;
use super::partition::{Partition, chunk_range};
use std::ops::Range;

/// What one rank does in a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Number of chunks the buffer is divided into, see [`Partition`].
    pub chunks: usize,
    /// One after the other; all that a step contains happens at once.
    pub steps: Vec<Step>,
}

/// Sends and receives that happen at once.
///
/// Sends read the buffer as it was before the step. A chunk that is overwritten in place ([`Action::Copy`]) is touched
/// by nothing else in its step; received chunks are combined in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Chunks that leave.
    pub sends: Vec<SendChunks>,
    /// Chunks that arrive.
    pub receives: Vec<ReceiveChunks>,
}

/// Neighbouring chunks that travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// The first one.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl Chunks {
    /// A single chunk.
    pub fn one(chunk: usize) -> Chunks {
        Chunks { first: chunk, count: 1 }
    }

    /// All chunks of a buffer.
    pub fn all(chunks: usize) -> Chunks {
        Chunks { first: 0, count: chunks }
    }

    /// Their numbers.
    pub fn numbers(self) -> Range<usize> {
        self.first..self.first.saturating_add(self.count)
    }

    /// The elements they hold of a buffer of `length` elements in `chunks` chunks.
    pub fn elements(self, length: usize, chunks: usize) -> Range<usize> {
        let start = chunk_range(length, chunks, self.first).start;
        start..chunk_range(length, chunks, self.first + self.count).start
    }

    /// Whether any chunk is in both.
    pub fn overlaps(self, other: Chunks) -> bool {
        self.numbers().start < other.numbers().end && other.numbers().start < self.numbers().end
    }
}

/// Chunks that leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendChunks {
    /// The rank that receives them.
    pub to: usize,
    /// Which.
    pub chunks: Chunks,
}

/// Chunks that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveChunks {
    /// The rank that sends them.
    pub from: usize,
    /// The number of the first at the sender. Only an all-to-all puts chunks in another place than they came from.
    pub sent: usize,
    /// Where they go.
    pub chunks: Chunks,
    /// What becomes of those that are already there.
    pub action: Action,
}

impl ReceiveChunks {
    /// Chunks that go to the place they have at the sender.
    pub fn new(from: usize, chunks: Chunks, action: Action) -> ReceiveChunks {
        ReceiveChunks { from, sent: chunks.first, chunks, action }
    }
}

/// What becomes of the chunk that is already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is replaced, straight from the network: no one may still be reading it.
    Copy,
    /// It is replaced when all that the step sends of it has left: the two may change places.
    Exchange,
    /// The arriving one is combined with it, in most cases added.
    Reduce,
}

impl Step {
    /// A step that only sends.
    pub fn sending(to: usize, chunks: Chunks) -> Step {
        Step { sends: vec![SendChunks { to, chunks }], receives: Vec::new() }
    }

    /// A step that only receives.
    pub fn receiving(from: usize, chunks: Chunks, action: Action) -> Step {
        Step { sends: Vec::new(), receives: vec![ReceiveChunks::new(from, chunks, action)] }
    }

    /// Whether every rank and every chunk it names exists, and none of the ranks is its own.
    pub fn is_within(&self, rank: usize, world: usize, chunks: usize) -> bool {
        let fits = |peer: usize, of: Chunks| peer < world && peer != rank && of.numbers().end <= chunks;
        self.sends.iter().all(|send| fits(send.to, send.chunks))
            && self.receives.iter().all(|receive| {
                fits(receive.from, receive.chunks)
                    && receive.sent.saturating_add(receive.chunks.count) <= chunks
            })
    }

    /// Chunks that it overwrites although it also sends them, or that it receives a second time.
    pub fn overwritten(&self) -> Option<Chunks> {
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
    /// What it costs its rank to move elements of `width` bytes so, counted one by one, in a collective of so many rounds.
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

    /// The same steps among some ranks of a larger world: `members[r]` does what rank `r` does here.
    pub fn among(mut self, members: &[usize]) -> Schedule {
        for step in &mut self.steps {
            step.sends.iter_mut().for_each(|send| send.to = members[send.to]);
            step.receives.iter_mut().for_each(|receive| receive.from = members[receive.from]);
        }
        self
    }

    /// The same steps over so many chunks: `block(c)` are those that are moved in place of chunk `c`. For schedules that
    /// leave chunks in their places.
    pub fn over(mut self, chunks: usize, block: impl Fn(usize) -> Vec<Chunks>) -> Schedule {
        let blocks = |of: Chunks| of.numbers().flat_map(&block).collect::<Vec<_>>();
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

    /// The same way backwards: what was handed out comes back, and is added up or put in its place. A broadcast becomes a
    /// reduce to its root, an all-gather in which nothing arrives twice a reduce-scatter. For schedules that leave chunks in
    /// their places.
    pub fn reversed(self, action: Action) -> Schedule {
        let back = |step: Step| {
            let take = |&SendChunks { to, chunks }: &_| ReceiveChunks::new(to, chunks, action);
            let give = |&ReceiveChunks { from, chunks, .. }: &_| SendChunks { to: from, chunks };
            Step {
                sends: step.receives.iter().map(give).collect(),
                receives: step.sends.iter().map(take).collect(),
            }
        };
        Schedule { chunks: self.chunks, steps: self.steps.into_iter().rev().map(back).collect() }
    }

    /// This, then that, over the same chunks.
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
    fn neighbours_overlap_only_where_they_share_a_chunk() {
        let chunks = Chunks { first: 2, count: 3 };
        assert!(chunks.overlaps(Chunks::one(4)) && chunks.overlaps(Chunks::all(3)));
        assert!(!chunks.overlaps(Chunks::one(5)) && !chunks.overlaps(Chunks::all(2)));
    }
}
