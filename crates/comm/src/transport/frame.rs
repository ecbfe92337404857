//! One peer's frames in progress: the one being written to it and the one being read from it.
//!
//! Both are small state machines over a byte stream that never blocks. They work straight on the caller's memory:
//! header and payload leave in one vectored write and arrive in one vectored read.

use super::{Cause, Incoming, Outgoing, Tag, Traffic};
use crate::wire::{Departure, HEADER, Header, Kind};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};

/// The frames to one peer, one after the other.
#[derive(Default)]
pub(crate) struct Outbox {
    current: Option<usize>,
    header: [u8; HEADER],
    written: usize,
}

impl Outbox {
    /// Takes up the first send to `peer` at or behind `from`.
    pub fn load(&mut self, peer: usize, tag: Tag, sends: &[Outgoing<'_>], from: usize) {
        self.written = 0;
        self.current = (from..sends.len()).find(|&index| sends[index].to == peer);
        if let Some(index) = self.current {
            let Outgoing { chunk, bytes, .. } = sends[index];
            self.header = Header::data(tag.generation, tag.operation, tag.tensor, chunk, bytes).encode();
        }
    }

    /// Whether all frames are written.
    pub fn is_done(&self) -> bool {
        self.current.is_none()
    }

    /// Whether a frame is half-written, so that no other can follow on this stream.
    pub fn is_torn(&self) -> bool {
        self.current.is_some() && self.written > 0
    }

    /// Writes what the stream takes in one go; says whether anything moved.
    pub fn push(
        &mut self,
        link: &mut impl Write,
        peer: usize,
        tag: Tag,
        sends: &[Outgoing<'_>],
        traffic: &mut Traffic,
    ) -> io::Result<bool> {
        let Some(index) = self.current else { return Ok(false) };
        let payload = sends[index].bytes;
        let header = &self.header[self.written.min(HEADER)..];
        let rest = &payload[self.written.saturating_sub(HEADER)..];
        let count = match link.write_vectored(&[IoSlice::new(header), IoSlice::new(rest)]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => count,
            Err(error) if try_later(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.written += count;
        traffic.total_sent += count as u64;
        if self.written == HEADER + payload.len() {
            traffic.payload_sent += payload.len() as u64;
            self.load(peer, tag, sends, index + 1);
        }
        Ok(true)
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

/// The frames from one peer, one after the other.
#[derive(Default)]
pub(crate) struct Inbox {
    current: Option<usize>,
    header: [u8; HEADER],
    filled: usize,
    checksum: u32,
    running: u32,
}

impl Inbox {
    /// Takes up the first receive from `peer` at or behind `from`.
    pub fn load(&mut self, peer: usize, receives: &[Incoming<'_>], from: usize) {
        self.filled = 0;
        self.current = (from..receives.len()).find(|&index| receives[index].from == peer);
    }

    /// Whether all frames have arrived.
    pub fn is_done(&self) -> bool {
        self.current.is_none()
    }

    /// Reads what the stream has in one go; says whether anything moved.
    pub fn pull(
        &mut self,
        link: &mut impl Read,
        peer: usize,
        tag: Tag,
        receives: &mut [Incoming<'_>],
        traffic: &mut Traffic,
    ) -> Result<bool, Interruption> {
        let Some(index) = self.current else { return Ok(false) };
        let chunk = receives[index].chunk;
        let payload = &mut *receives[index].bytes;
        let before = self.filled;
        let header = &mut self.header[before.min(HEADER)..];
        let rest = &mut payload[before.saturating_sub(HEADER)..];
        let count = match link.read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(rest)]) {
            Ok(0) => return Err(Interruption::Stream),
            Ok(count) => count,
            Err(error) if try_later(&error) => return Ok(false),
            Err(_) => return Err(Interruption::Stream),
        };
        self.filled += count;
        traffic.total_received += count as u64;
        if self.filled < HEADER {
            return Ok(true);
        }
        if before < HEADER {
            self.accept(tag, chunk, payload.len())?;
        }
        let fresh = &payload[before.saturating_sub(HEADER)..self.filled - HEADER];
        self.running = crc32c::crc32c_append(self.running, fresh);
        if self.filled == HEADER + payload.len() {
            if self.running != self.checksum {
                return Err(Interruption::Wrong(Cause::Corrupt));
            }
            traffic.payload_received += payload.len() as u64;
            self.load(peer, receives, index + 1);
        }
        Ok(true)
    }

    /// Compares the header that has arrived with the one that belongs here.
    fn accept(&mut self, tag: Tag, chunk: u32, length: usize) -> Result<(), Interruption> {
        let wrong = |what: String| Interruption::Wrong(Cause::Protocol(what));
        let got = Header::decode(&self.header).map_err(|error| wrong(error.to_string()))?;
        if let Some(departure) = got.departure() {
            return Err(Interruption::Farewell(departure));
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
        self.checksum = got.checksum;
        self.running = got.seed();
        Ok(())
    }
}

/// Whether the stream has nothing to give or take right now.
pub(crate) fn try_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
