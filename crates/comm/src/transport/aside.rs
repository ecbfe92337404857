//! Frames that came before anybody could take them.
//!
//! A stream keeps its order, so a frame whose operation is not ready holds up those behind it; and operations of several
//! groups can hold up each other that way, each with the frame that another one waits for. So where nothing else moves
//! such a frame is put aside, up to [`ROOM`] bytes of one peer. Beyond that the sender waits.

use super::inbox::Interruption;
use super::links::try_later;
use super::{Cause, Tag, Traffic};
use crate::wire::{HEADER, Header, Kind, checksum};
use std::collections::VecDeque;
use std::io::Read;

/// Most bytes of one peer that are put aside.
pub(crate) const ROOM: usize = 16 << 20;

/// What one peer has sent too early, in its order. Only the last of them may be incomplete.
#[derive(Default)]
pub(crate) struct Aside {
    frames: VecDeque<Early>,
    bytes: usize,
}

struct Early {
    header: Header,
    payload: Vec<u8>,
    filled: usize,
}

impl Early {
    fn is_whole(&self) -> bool {
        self.filled == self.payload.len()
    }
}

impl Aside {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether a frame is still arriving: then what comes from the stream is its payload.
    pub fn is_open(&self) -> bool {
        self.frames.back().is_some_and(|last| !last.is_whole())
    }

    /// Makes room for the frame whose header has arrived, if there is any left.
    pub fn begin(&mut self, header: Header) -> bool {
        let length = header.length as usize;
        // An empty frame takes room, too. One that is damaged is left to the reader that says so.
        let damaged = length == 0 && header.seed() != header.checksum;
        if header.kind != Kind::Data || self.bytes + HEADER + length > ROOM || damaged {
            return false;
        }
        self.bytes += HEADER + length;
        self.frames.push_back(Early { header, payload: vec![0; length], filled: 0 });
        true
    }

    /// Reads what the stream has of the frame that is still arriving; says whether it had any.
    pub fn read(&mut self, link: &mut impl Read, traffic: &mut Traffic) -> Result<bool, Interruption> {
        let Some(last) = self.frames.back_mut().filter(|last| !last.is_whole()) else { return Ok(false) };
        let mut moved = false;
        while !last.is_whole() {
            match link.read(&mut last.payload[last.filled..]) {
                Ok(0) => return Err(Interruption::Stream),
                Ok(count) => {
                    last.filled += count;
                    traffic.total_received += count as u64;
                    moved = true;
                }
                Err(error) if try_later(&error) => return Ok(moved),
                Err(_) => return Err(Interruption::Stream),
            }
        }
        match checksum(last.header.seed(), &last.payload) == last.header.checksum {
            true => Ok(true),
            false => Err(Interruption::Wrong(Cause::Corrupt)),
        }
    }

    /// Hands out the first frame of this operation, if there is one; it must be the one that is expected.
    pub fn deliver(&mut self, tag: Tag, chunk: u32, memory: &mut [u8]) -> Result<bool, Interruption> {
        let belongs = |early: &Early| early.header.tag.is_alongside(&tag);
        let Some(index) = self.frames.iter().position(belongs) else { return Ok(false) };
        let header = self.frames[index].header;
        let expected = Header { tag, chunk, length: memory.len() as u32, ..header };
        if header != expected {
            return Err(Interruption::Wrong(Cause::unexpected(&expected, &header)));
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
        /// Whatever lengths a peer's headers state, it gets no more memory than there is room.
        #[test]
        fn promises_are_kept_room_for_up_to_a_bound(lengths in proptest::collection::vec(0u32..ROOM as u32 + 2, 1..6)) {
            let (mut aside, mut room) = (Aside::default(), ROOM);
            for length in lengths {
                let header = Header { length, ..Header::data(Tag::default(), 0, &[]) };
                let header = Header { checksum: header.seed(), ..header };
                let fits = HEADER + length as usize <= room;
                prop_assert_eq!(aside.begin(header), fits);
                room -= if fits { HEADER + length as usize } else { 0 };
                // It came whole.
                aside.frames.iter_mut().for_each(|early| early.filled = early.payload.len());
            }
        }
    }
}
