//! The frame to one peer that is being written.
//!
//! A small state machine over a byte stream that never blocks. It works straight on the caller's memory: header and payload
//! leave in one vectored write.

use super::links::{Link, try_later};
use super::{Moved, Outgoing, Tag, Traffic};
use crate::wire::{HEADER, Header};
use std::io::{self, ErrorKind, IoSlice};

/// The frame to one peer that is under way, if any.
pub(crate) struct Outbox {
    current: Option<(Tag, u32)>,
    header: [u8; HEADER],
    written: usize,
    total: usize,
}

impl Outbox {
    /// Nothing is under way.
    pub fn new() -> Outbox {
        Outbox { current: None, header: [0; HEADER], written: 0, total: 0 }
    }

    /// Whether a frame is half-written, so that no other can follow on this stream. One that is written to its end is
    /// whole, even if the peer has not taken it yet.
    pub fn is_torn(&self) -> bool {
        self.current.is_some() && self.written > 0 && self.written < self.total
    }

    /// Whether the frame under way was written to its end, so that only the peer's taking it is left to be seen.
    pub fn is_written(&self) -> bool {
        self.current.is_some() && self.written == self.total
    }

    /// Writes what the stream takes in one go.
    pub fn push(
        &mut self,
        link: &mut impl Link,
        tag: Tag,
        frame: Outgoing<'_>,
        traffic: &mut Traffic,
    ) -> io::Result<Moved> {
        let payload = frame.bytes;
        match self.current {
            None => {
                self.header = Header::data(tag, frame.chunk, payload).encode();
                self.current = Some((tag, frame.chunk));
                (self.written, self.total) = (0, HEADER + payload.len());
            }
            Some(current) if current != (tag, frame.chunk) => return Ok(Moved::Nothing),
            Some(_) => {}
        }
        let before = self.written;
        if before < self.total {
            debug_assert_eq!(self.total, HEADER + payload.len(), "the same frame until it is done");
            let rest = &payload[before.saturating_sub(HEADER)..];
            let count = match before.checked_sub(HEADER) {
                Some(_) => link.write(rest),
                None => link.write_vectored(&[IoSlice::new(&self.header[before..]), IoSlice::new(rest)]),
            };
            let count = match count {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) if try_later(&error) => return Ok(Moved::Nothing),
                Err(error) => return Err(error),
            };
            self.written += count;
            traffic.total_sent += count as u64;
        }
        if self.is_written() && link.is_drained() {
            traffic.payload_sent += payload.len() as u64;
            self.current = None;
            return Ok(Moved::Whole);
        }
        Ok(if self.written > before { Moved::Part } else { Moved::Nothing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const TAG: Tag = Tag { generation: 3, operation: 5, group: 7, tensor: 11 };

    /// A stream that takes a few bytes, which nobody has read yet.
    struct Narrow {
        room: usize,
        drained: bool,
    }

    impl Read for Narrow {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    impl io::Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            self.room -= count;
            if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Link for Narrow {
        fn last_words(&mut self) -> io::Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn is_drained(&mut self) -> bool {
            self.drained
        }

        fn finish(&mut self) {}
    }

    #[test]
    fn only_a_frame_that_is_written_in_part_is_torn() {
        let (mut outbox, mut traffic) = (Outbox::new(), Traffic::default());
        let mut link = Narrow { room: HEADER + 2, drained: false };
        let mut push = |link: &mut Narrow| {
            let frame = Outgoing { to: 0, chunk: 9, bytes: b"four" };
            let moved = outbox.push(link, TAG, frame, &mut traffic).ok();
            (moved, outbox.is_torn(), outbox.is_written())
        };
        // The header first, then as much of the payload as there is room for.
        while link.room > 0 {
            assert_eq!(push(&mut link), (Some(Moved::Part), true, false));
        }
        assert_eq!(push(&mut link), (Some(Moved::Nothing), true, false));
        link.room = 2;
        assert_eq!(push(&mut link), (Some(Moved::Part), false, true), "whole, though nobody took it");
        link.drained = true;
        assert_eq!(push(&mut link), (Some(Moved::Whole), false, false));
        assert_eq!(traffic.payload_sent, 4);
    }
}
