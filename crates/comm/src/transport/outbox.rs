//! Writes frames to one peer.
//!
//! A state machine over a nonblocking byte stream. It writes straight from the caller's memory, header and payload in
//! one vectored write.

use super::link::{Link, would_block};
use super::{IoProgress, Outgoing, Tag, Traffic};
use crate::wire::{HEADER, Header};
use std::io::{self, ErrorKind, IoSlice};

/// The frame to one peer that is being written, if any.
pub(crate) struct Outbox {
    current: Option<(Tag, u32)>,
    header: [u8; HEADER],
    written: usize,
    total: usize,
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox { current: None, header: [0; HEADER], written: 0, total: 0 }
    }

    /// Whether no frame is in progress.
    pub fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// Whether a frame is partially written, so that no other can follow on this stream. A completely written frame
    /// may still be unread by the peer.
    pub fn is_partial(&self) -> bool {
        self.current.is_some() && self.written > 0 && self.written < self.total
    }

    /// Whether the frame is completely written and only its delivery is outstanding.
    pub fn is_written(&self) -> bool {
        self.current.is_some() && self.written == self.total
    }

    /// Advances the send of this frame by one write.
    pub fn send(
        &mut self,
        link: &mut impl Link,
        tag: Tag,
        frame: Outgoing<'_>,
        traffic: &mut Traffic,
    ) -> io::Result<IoProgress> {
        let payload = frame.bytes;
        match self.current {
            None => {
                self.header = Header::data(tag, frame.chunk, payload).encode();
                self.current = Some((tag, frame.chunk));
                (self.written, self.total) = (0, HEADER + payload.len());
            }
            Some(current) if current != (tag, frame.chunk) => return Ok(IoProgress::Blocked),
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
                Err(error) if would_block(&error) => return Ok(IoProgress::Blocked),
                Err(error) => return Err(error),
            };
            self.written += count;
            traffic.total_sent += count as u64;
        }
        if self.is_written() && link.is_drained() {
            traffic.payload_sent += payload.len() as u64;
            self.current = None;
            return Ok(IoProgress::Complete);
        }
        Ok(if self.written > before { IoProgress::Partial } else { IoProgress::Blocked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const TAG: Tag = Tag { generation: 3, operation: 5, group: 7, tensor: 11 };

    /// A stream with room for a few bytes.
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
        fn unread(&mut self) -> io::Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn is_drained(&mut self) -> bool {
            self.drained
        }

        fn shutdown_write(&mut self) {}
    }

    #[test]
    fn only_a_partially_written_frame_is_partial() {
        let (mut outbox, mut traffic) = (Outbox::new(), Traffic::default());
        let mut link = Narrow { room: HEADER + 2, drained: false };
        let mut send = |link: &mut Narrow| {
            let frame = Outgoing { to: 0, chunk: 9, bytes: b"four" };
            let moved = outbox.send(link, TAG, frame, &mut traffic).ok();
            (moved, outbox.is_partial(), outbox.is_written())
        };
        // The header first, then as much of the payload as there is room for.
        while link.room > 0 {
            assert_eq!(send(&mut link), (Some(IoProgress::Partial), true, false));
        }
        assert_eq!(send(&mut link), (Some(IoProgress::Blocked), true, false));
        link.room = 2;
        assert_eq!(
            send(&mut link),
            (Some(IoProgress::Partial), false, true),
            "complete, though not delivered"
        );
        link.drained = true;
        assert_eq!(send(&mut link), (Some(IoProgress::Complete), false, false));
        assert_eq!(traffic.payload_sent, 4);
    }
}
