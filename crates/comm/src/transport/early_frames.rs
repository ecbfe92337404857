//! Frames of operations not yet posted.
//!
//! A stream is ordered, so a frame whose operation is not yet posted blocks the frames behind it, and operations of
//! several groups could deadlock that way. So when nothing else moves, such frames are buffered, up to [`CAPACITY`]
//! bytes per peer. Beyond that the sender blocks.

use super::inbox::ReadError;
use super::link::would_block;
use super::{Cause, Tag, Traffic};
use crate::wire::{FrameKind, HEADER, Header, checksum};
use std::collections::VecDeque;
use std::io::Read;

/// Most buffered bytes per peer, headers included.
pub(crate) const CAPACITY: usize = 16 << 20;

/// The early frames of one peer, in order. Only the last may be incomplete.
#[derive(Default)]
pub(crate) struct EarlyFrames {
    frames: VecDeque<EarlyFrame>,
    bytes: usize,
}

struct EarlyFrame {
    header: Header,
    payload: Vec<u8>,
    filled: usize,
}

impl EarlyFrame {
    fn is_complete(&self) -> bool {
        self.filled == self.payload.len()
    }
}

impl EarlyFrames {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether the last frame is still arriving: then the next bytes of the stream are its payload.
    pub fn is_incomplete(&self) -> bool {
        self.frames.back().is_some_and(|last| !last.is_complete())
    }

    /// Allocates a frame whose header has arrived; false without capacity for it.
    pub fn begin(&mut self, header: Header) -> bool {
        let length = header.length as usize;
        // An empty frame counts by its header. A damaged one is left to the receive, which reports it.
        let damaged = length == 0 && header.seed() != header.checksum;
        if header.kind != FrameKind::Data || self.bytes + HEADER + length > CAPACITY || damaged {
            return false;
        }
        self.bytes += HEADER + length;
        self.frames.push_back(EarlyFrame { header, payload: vec![0; length], filled: 0 });
        true
    }

    /// Reads what has arrived of the incomplete frame; returns whether any byte moved.
    pub fn read(&mut self, link: &mut impl Read, traffic: &mut Traffic) -> Result<bool, ReadError> {
        let Some(last) = self.frames.back_mut().filter(|last| !last.is_complete()) else { return Ok(false) };
        let mut moved = false;
        while !last.is_complete() {
            match link.read(&mut last.payload[last.filled..]) {
                Ok(0) => return Err(ReadError::Stream),
                Ok(count) => {
                    last.filled += count;
                    traffic.total_received += count as u64;
                    moved = true;
                }
                Err(error) if would_block(&error) => return Ok(moved),
                Err(_) => return Err(ReadError::Stream),
            }
        }
        match checksum(last.header.seed(), &last.payload) == last.header.checksum {
            true => Ok(true),
            false => Err(ReadError::Invalid(Cause::wrong_checksum(&last.header, &last.payload))),
        }
    }

    /// The frame in whose payload, as far as it has arrived, a frame with this header begins.
    pub fn find_around(&self, header: &Header) -> Option<Header> {
        let around = |early: &&EarlyFrame| header.begins_in(&early.payload[..early.filled]);
        self.frames.iter().find(around).map(|early| early.header)
    }

    /// Moves the first frame of this operation to `memory`, if it has arrived; an error if it is not the expected one.
    pub fn take(&mut self, tag: Tag, chunk: u32, memory: &mut [u8]) -> Result<bool, ReadError> {
        let belongs = |early: &EarlyFrame| early.header.tag.is_same_operation(&tag);
        let Some(index) = self.frames.iter().position(belongs) else { return Ok(false) };
        let header = self.frames[index].header;
        let expected = Header { tag, chunk, length: memory.len() as u32, ..header };
        if header != expected {
            return Err(ReadError::Invalid(Cause::unexpected(&expected, &header)));
        }
        if !self.frames[index].is_complete() {
            return Ok(false);
        }
        if let Some(early) = self.frames.remove(index) {
            memory.copy_from_slice(&early.payload);
            self.bytes -= HEADER + early.payload.len();
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever lengths the headers of a peer state, no more than the capacity is allocated.
        #[test]
        fn allocation_is_bounded(lengths in proptest::collection::vec(0u32..CAPACITY as u32 + 2, 1..6)) {
            let (mut early_frames, mut room) = (EarlyFrames::default(), CAPACITY);
            for length in lengths {
                let header = Header { length, ..Header::data(Tag::default(), 0, &[]) };
                let header = Header { checksum: header.seed(), ..header };
                let fits = HEADER + length as usize <= room;
                prop_assert_eq!(early_frames.begin(header), fits);
                room -= if fits { HEADER + length as usize } else { 0 };
                // Complete, so that the next may begin.
                early_frames.frames.iter_mut().for_each(|early| early.filled = early.payload.len());
            }
        }
    }
}
