//! One peer's frames in progress: the one being written to it and the one being read from it.
//!
//! Both are small state machines over a byte stream that never blocks. They work straight on the caller's memory:
//! header and payload leave in one vectored write and arrive in one vectored read.

use super::stream::Link;
use super::{Cause, Company, Incoming, Moved, Outgoing, Tag, Traffic};
use crate::wire::{Departure, HEADER, Header, Kind};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};

/// The frame to one peer that is under way, if any.
#[derive(Default)]
pub(crate) struct Outbox {
    current: Option<(Tag, u32)>,
    header: [u8; HEADER],
    written: usize,
}

impl Outbox {
    /// Whether a frame is half-written, so that no other can follow on this stream.
    pub fn is_torn(&self) -> bool {
        self.current.is_some() && self.written > 0
    }

    /// Whether the frame under way has that much payload and was written to its end, so that only the peer's taking it
    /// is left to be seen.
    pub fn is_written(&self, payload: usize) -> bool {
        self.current.is_some() && self.written == HEADER + payload
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
                let Tag { generation, operation, tensor } = tag;
                self.header = Header::data(generation, operation, tensor, frame.chunk, payload).encode();
                self.current = Some((tag, frame.chunk));
                self.written = 0;
            }
            Some(current) if current != (tag, frame.chunk) => return Ok(Moved::Nothing),
            Some(_) => {}
        }
        let total = HEADER + payload.len();
        let before = self.written;
        if before < total {
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
        if self.written == total && link.is_drained() {
            traffic.payload_sent += payload.len() as u64;
            self.current = None;
            return Ok(Moved::Whole);
        }
        Ok(if self.written > before { Moved::Part } else { Moved::Nothing })
    }
}

/// Why reading cannot go on.
pub(crate) enum Interruption {
    /// The stream ended or broke.
    Stream,
    /// The peer says goodbye where data was expected.
    Farewell(Departure),
    /// What arrived is not what belongs here.
    Wrong(Cause),
}

/// The frame from one peer that is under way, if any.
#[derive(Default)]
pub(crate) struct Inbox {
    header: [u8; HEADER],
    filled: usize,
    /// Whose frame it is, once its header has arrived and somebody has asked for it.
    accepted: Option<(Tag, u32)>,
    checksum: u32,
    running: u32,
}

impl Inbox {
    /// Reads what the stream has in one go.
    pub fn pull(
        &mut self,
        link: &mut impl Read,
        tag: Tag,
        frame: Incoming<'_>,
        company: Company,
        traffic: &mut Traffic,
    ) -> Result<Moved, Interruption> {
        if self.accepted.is_some_and(|whose| whose != (tag, frame.chunk)) {
            return Ok(Moved::Nothing);
        }
        let payload = frame.bytes;
        let total = HEADER + payload.len();
        let before = self.filled;
        // In company the header alone tells whose the payload is.
        let optimistic = company == Company::Alone || self.accepted.is_some();
        if before < HEADER || optimistic && before < total {
            let header = &mut self.header[before.min(HEADER)..];
            let rest = &mut payload[before.saturating_sub(HEADER)..];
            let count = match (before < HEADER, optimistic) {
                (true, true) => link.read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(rest)]),
                (true, false) => link.read(header),
                _ => link.read(rest),
            };
            let count = match count {
                Ok(0) => return Err(Interruption::Stream),
                Ok(count) => count,
                Err(error) if try_later(&error) => return Ok(Moved::Nothing),
                Err(_) => return Err(Interruption::Stream),
            };
            self.filled += count;
            traffic.total_received += count as u64;
        }
        let moved = if self.filled > before { Moved::Part } else { Moved::Nothing };
        if self.filled < HEADER {
            return Ok(moved);
        }
        if self.accepted.is_none() && !self.accept(tag, frame.chunk, payload.len(), company)? {
            return Ok(moved);
        }
        let fresh = &payload[before.saturating_sub(HEADER)..self.filled - HEADER];
        self.running = crc32c::crc32c_append(self.running, fresh);
        if self.filled < total {
            return Ok(moved);
        }
        if self.running != self.checksum {
            return Err(Interruption::Wrong(Cause::Corrupt));
        }
        traffic.payload_received += payload.len() as u64;
        (self.filled, self.accepted) = (0, None);
        Ok(Moved::Whole)
    }

    /// Compares the header that has arrived with the one that belongs here; says whether it is the one.
    fn accept(
        &mut self,
        tag: Tag,
        chunk: u32,
        length: usize,
        company: Company,
    ) -> Result<bool, Interruption> {
        let wrong = |what: String| Interruption::Wrong(Cause::Protocol(what));
        let got = Header::decode(&self.header).map_err(|error| wrong(error.to_string()))?;
        if let Some(departure) = got.departure() {
            return Err(Interruption::Farewell(departure));
        }
        let others =
            (got.generation, got.kind) == (tag.generation, Kind::Data) && got.operation != tag.operation;
        if company == Company::Several && others {
            return Ok(false);
        }
        let expected = Header {
            kind: Kind::Data,
            generation: tag.generation,
            operation: tag.operation,
            tensor: tag.tensor,
            chunk,
            length: length as u32,
            checksum: got.checksum,
        };
        if got != expected {
            return Err(wrong(format!("expected {expected}; got {got}")));
        }
        (self.accepted, self.checksum, self.running) = (Some((tag, chunk)), got.checksum, got.seed());
        Ok(true)
    }
}

/// Whether the stream has nothing to give or take right now.
pub(crate) fn try_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
