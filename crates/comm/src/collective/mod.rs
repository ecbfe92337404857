//! Collectives as data.
//!
//! An algorithm is a pure function from (rank, world) to a [`Schedule`]: what this rank sends and receives, step by
//! step, over numbered chunks of its buffer. One [`Executor`] runs any schedule on any transport, [`checker`] proves
//! it symbolically, [`Schedule::cost`] adds it up. A new algorithm is one file with one function.
//!
//! [`gather`] is apart from it: small byte strings of different lengths, directly between all ranks.

pub mod checker;
pub mod executor;
pub mod gather;
pub mod ring;

pub use executor::Executor;
pub use gather::{all_gather, barrier, broadcast, broadcast_into};

use std::ops::Range;

/// What one rank does in a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Number of chunks the buffer is divided into, see [`chunk_range`].
    pub chunks: usize,
    /// One after the other; all that a step contains happens at once.
    pub steps: Vec<Step>,
}

/// Sends and receives that happen at once.
///
/// Sends read the buffer as it was before the step. A chunk that is overwritten in a step is touched by nothing else
/// in it; received chunks are added in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Chunks that leave.
    pub sends: Vec<SendChunk>,
    /// Chunks that arrive.
    pub receives: Vec<ReceiveChunk>,
}

/// A chunk that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendChunk {
    /// The rank that receives it.
    pub to: usize,
    /// Its number.
    pub chunk: usize,
}

/// A chunk that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveChunk {
    /// The rank that sends it.
    pub from: usize,
    /// Its number.
    pub chunk: usize,
    /// What becomes of the chunk that is already there.
    pub action: Action,
}

/// What becomes of the chunk that is already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is replaced.
    Copy,
    /// The arriving one is added to it.
    Reduce,
}

/// What a schedule costs one rank for a buffer of a given length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Steps, each of which pays the latency once.
    pub steps: u64,
    /// Payload bytes that leave this rank.
    pub bytes_sent: u64,
    /// Payload bytes that arrive at this rank.
    pub bytes_received: u64,
    /// Additions of two elements.
    pub additions: u64,
}

impl Schedule {
    /// What this schedule costs for `length` elements of `width` bytes.
    pub fn cost(&self, length: usize, width: usize) -> Cost {
        let elements = |chunk: usize| chunk_range(length, self.chunks, chunk).len() as u64;
        let sends = self.steps.iter().flat_map(|step| &step.sends);
        let receives = || self.steps.iter().flat_map(|step| &step.receives);
        let reduces = receives().filter(|receive| receive.action == Action::Reduce);
        Cost {
            steps: self.steps.len() as u64,
            bytes_sent: sends.map(|send| elements(send.chunk)).sum::<u64>() * width as u64,
            bytes_received: receives().map(|receive| elements(receive.chunk)).sum::<u64>() * width as u64,
            additions: reduces.map(|receive| elements(receive.chunk)).sum(),
        }
    }
}

/// Chunk `index` of `chunks` of a buffer of `length` elements: all of nearly the same size, the first ones one
/// element longer where it does not divide, and empty ones at the end if there are more chunks than elements.
pub fn chunk_range(length: usize, chunks: usize, index: usize) -> Range<usize> {
    let chunks = chunks.max(1);
    let (size, longer) = (length / chunks, length % chunks);
    let start = |index: usize| index * size + index.min(longer);
    start(index)..start(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_partition_any_buffer() {
        for length in [0, 1, 2, 7, 64, 1000] {
            for chunks in 1..=9 {
                let ranges: Vec<_> = (0..chunks).map(|index| chunk_range(length, chunks, index)).collect();
                assert_eq!(ranges[0].start, 0);
                assert_eq!(ranges[chunks - 1].end, length);
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                let sizes = || ranges.iter().map(|range| range.len());
                assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
            }
        }
    }
}
