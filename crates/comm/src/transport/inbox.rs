//! Reads frames from one peer.
//!
//! A state machine over a nonblocking byte stream. It reads straight into the caller's memory, header and payload in
//! one vectored read. Frames of operations that are not yet posted are buffered as [early
//! frames](super::early_frames).

#[cfg(test)]
mod tests;

use super::early_frames::{CAPACITY, EarlyFrames};
use super::link::{Link, would_block};
use super::{Cause, Incoming, IoProgress, MatchMode, Tag, Traffic};
use crate::wire::{CloseReason, FrameKind, HEADER, Header, checksum};
use std::io::{IoSliceMut, Read};

/// How many operations of one group a peer can be ahead: each leaves at least a header among the early frames, which
/// are bounded, or in the buffers of a link, which hold less than that again.
const MAX_AHEAD: u64 = 2 * (CAPACITY / HEADER) as u64;

/// Why no more can be read from a peer.
pub(crate) enum ReadError {
    /// The stream ended or broke.
    Stream,
    /// The peer sent a close frame.
    Closed(CloseReason),
    /// The peer sent an invalid or unexpected frame.
    Invalid(Cause),
}

/// The frame from one peer that is being read, if any, and its early frames.
pub(crate) struct Inbox {
    header: [u8; HEADER],
    filled: usize,
    /// Tag and chunk of the frame, once its header has arrived and matched a posted receive.
    accepted: Option<(Tag, u32)>,
    checksum: u32,
    running: u32,
    early: EarlyFrames,
    multiple_groups: bool,
    /// Headers of the frames that were not received in this attempt because another frame of the peer precedes them.
    behind: Vec<Header>,
}

impl Inbox {
    pub fn new() -> Inbox {
        Inbox {
            header: [0; HEADER],
            filled: 0,
            accepted: None,
            checksum: 0,
            running: 0,
            early: EarlyFrames::default(),
            multiple_groups: false,
            behind: Vec::new(),
        }
    }

    /// See [`Transport::admit_groups`](super::Transport::admit_groups).
    pub fn admit_groups(&mut self) {
        self.multiple_groups = true;
    }

    /// Starts another attempt to receive.
    pub fn clear_behind(&mut self) {
        self.behind.clear();
    }

    /// Proof that the peer sent a frame with a false length: the frame that a receive waits for begins in the payload of
    /// a frame before it. That frame swallows what the peer sends, and may never be complete.
    pub fn find_false_length(&self, link: &mut impl Link) -> Option<Cause> {
        let unclaimed = self.unclaimed().filter(|_| !self.behind.is_empty());
        let unread = unclaimed.and_then(|_| link.unread().ok()).unwrap_or_default();
        let around = |header: &Header| {
            let swallows =
                |frame: &Header| header.begins_in(&unread[..unread.len().min(frame.length as usize)]);
            unclaimed.filter(swallows).or_else(|| self.early.find_around(header))
        };
        self.behind.iter().find_map(around).map(|frame| Cause::false_length(&frame))
    }

    /// Whether a frame has arrived that no operation has received yet. With several operations in progress, its
    /// operation may first need a frame of another peer; later frames of this peer queue behind it.
    pub fn has_unclaimed_frame(&self) -> bool {
        !self.early.is_empty() || self.unclaimed().is_some()
    }

    /// The frame whose header has arrived without matching a receive.
    fn unclaimed(&self) -> Option<Header> {
        let header = Header::decode(&self.header).ok();
        header.filter(|header| {
            self.filled >= HEADER && self.accepted.is_none() && header.close_reason().is_none()
        })
    }

    /// Whether a frame of this operation is being read.
    pub fn has_accepted(&self, tag: Tag) -> bool {
        self.accepted.is_some_and(|(accepted, _)| accepted == tag)
    }

    /// Moves an unclaimed frame to the early frames, as far as it has arrived and there is room, so that later frames
    /// of the peer can be read. Returns whether anything moved.
    pub fn buffer_early(&mut self, link: &mut impl Read, traffic: &mut Traffic) -> Result<bool, ReadError> {
        let begun = match self.unclaimed() {
            Some(header) if !self.early.is_incomplete() && self.early.begin(header) => {
                self.filled = 0;
                true
            }
            _ => false,
        };
        Ok(self.early.read(link, traffic)? || begun)
    }

    /// Advances the receive of this frame by one read.
    pub fn receive(
        &mut self,
        link: &mut impl Read,
        tag: Tag,
        frame: Incoming<'_>,
        mode: MatchMode,
        traffic: &mut Traffic,
    ) -> Result<IoProgress, ReadError> {
        let mode = match mode {
            MatchMode::Exact if self.multiple_groups => MatchMode::OtherGroups,
            mode => mode,
        };
        let length = frame.bytes.len() as u32;
        let expected = Header { kind: FrameKind::Data, tag, chunk: frame.chunk, length, checksum: 0 };
        let buffered = self.early.read(link, traffic)?;
        if self.early.take(tag, frame.chunk, frame.bytes)? {
            traffic.payload_received += frame.bytes.len() as u64;
            self.behind.clear();
            return Ok(IoProgress::Complete);
        }
        if self.early.is_incomplete() {
            self.wait_behind(expected);
            return Ok(if buffered { IoProgress::Partial } else { IoProgress::Blocked });
        }
        if self.accepted.is_some_and(|accepted| accepted != (tag, frame.chunk)) {
            return Ok(IoProgress::Blocked);
        }
        let payload = frame.bytes;
        let total = HEADER + payload.len();
        let before = self.filled;
        // In the other modes the payload can be read only once the header has matched.
        let optimistic = mode == MatchMode::Exact || self.accepted.is_some();
        if before < HEADER || optimistic && before < total {
            let header = &mut self.header[before.min(HEADER)..];
            let rest = &mut payload[before.saturating_sub(HEADER)..];
            let count = match (before < HEADER, optimistic) {
                (true, true) => link.read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(rest)]),
                (true, false) => link.read(header),
                _ => link.read(rest),
            };
            let count = match count {
                Ok(0) => return Err(ReadError::Stream),
                Ok(count) => count,
                Err(error) if would_block(&error) => return Ok(IoProgress::Blocked),
                Err(_) => return Err(ReadError::Stream),
            };
            self.filled += count;
            traffic.total_received += count as u64;
        }
        let mut moved = if self.filled > before { IoProgress::Partial } else { IoProgress::Blocked };
        if self.filled < HEADER {
            return Ok(moved);
        }
        if self.accepted.is_none() {
            if !self.accept(expected, mode)? {
                self.wait_behind(expected);
                return Ok(moved);
            }
            // The payload can be read from now on, even if a receive of another operation read the header.
            moved = IoProgress::Partial;
        }
        let fresh = &payload[before.saturating_sub(HEADER)..self.filled - HEADER];
        self.running = checksum(self.running, fresh);
        if self.filled < total {
            return Ok(moved);
        }
        if self.running != self.checksum {
            return Err(ReadError::Invalid(Cause::wrong_checksum(&expected, payload)));
        }
        traffic.payload_received += payload.len() as u64;
        (self.filled, self.accepted) = (0, None);
        self.behind.clear();
        Ok(IoProgress::Complete)
    }

    /// Records a receive that another frame precedes. Without a wait between them, attempts repeat the same receives.
    fn wait_behind(&mut self, expected: Header) {
        if !self.behind.contains(&expected) {
            self.behind.push(expected);
        }
    }

    /// Whether the header that has arrived is the expected one.
    fn accept(&mut self, expected: Header, mode: MatchMode) -> Result<bool, ReadError> {
        let Header { tag, chunk, .. } = expected;
        let invalid = |what: String| ReadError::Invalid(Cause::Protocol(what));
        let got = Header::decode(&self.header).map_err(|error| invalid(error.to_string()))?;
        if let Some(reason) = got.close_reason() {
            return Err(ReadError::Closed(reason));
        }
        let other_operation = match mode {
            MatchMode::Exact => false,
            MatchMode::OtherGroups => got.tag.group != tag.group || got.tag.operation > tag.operation,
            MatchMode::AnyOperation => !got.tag.is_same_operation(&tag),
        };
        let other_operation = other_operation && (self.multiple_groups || got.tag.group == tag.group);
        // A sender further ahead would have been blocked by the capacity of the early frames.
        let reachable =
            got.tag.group != tag.group || got.tag.operation <= tag.operation.saturating_add(MAX_AHEAD);
        if other_operation && reachable && (got.tag.generation, got.kind) == (tag.generation, FrameKind::Data)
        {
            return Ok(false);
        }
        let expected = Header { checksum: got.checksum, ..expected };
        if got != expected {
            return Err(ReadError::Invalid(Cause::unexpected(&expected, &got)));
        }
        (self.accepted, self.checksum, self.running) = (Some((tag, chunk)), got.checksum, got.seed());
        Ok(true)
    }
}
