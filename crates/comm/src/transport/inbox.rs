//! Reads frames from one peer.
//!
//! A state machine over a nonblocking byte stream. It reads straight into the caller's memory, header and payload in
//! one vectored read. Frames of operations that are not yet posted are buffered as [early
//! frames](super::early_frames).

use super::early_frames::{CAPACITY, EarlyFrames};
use super::link::would_block;
use super::{Cause, Incoming, IoProgress, MatchMode, Tag, Traffic};
use crate::mailbox::MESSAGES;
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
}

impl Inbox {
    pub fn new() -> Inbox {
        let early = EarlyFrames::default();
        Inbox { header: [0; HEADER], filled: 0, accepted: None, checksum: 0, running: 0, early }
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
        if self.early.is_incomplete() {
            let moved = self.early.read(link, traffic)?;
            if self.early.is_incomplete() {
                return Ok(if moved { IoProgress::Partial } else { IoProgress::Blocked });
            }
        }
        if self.early.take(tag, frame.chunk, frame.bytes)? {
            traffic.payload_received += frame.bytes.len() as u64;
            return Ok(IoProgress::Complete);
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
            if !self.accept(tag, frame.chunk, payload.len(), mode)? {
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
            return Err(ReadError::Invalid(Cause::Corrupt));
        }
        traffic.payload_received += payload.len() as u64;
        (self.filled, self.accepted) = (0, None);
        Ok(IoProgress::Complete)
    }

    /// Whether the header that has arrived is the expected one.
    fn accept(&mut self, tag: Tag, chunk: u32, length: usize, mode: MatchMode) -> Result<bool, ReadError> {
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
        // A sender further ahead would have been blocked by the capacity of the early frames.
        let reachable = got.tag.group != tag.group
            || got.tag.operation == MESSAGES
            || got.tag.operation <= tag.operation.saturating_add(MAX_AHEAD);
        if other_operation && reachable && (got.tag.generation, got.kind) == (tag.generation, FrameKind::Data)
        {
            return Ok(false);
        }
        let checksum = got.checksum;
        let expected = Header { kind: FrameKind::Data, tag, chunk, length: length as u32, checksum };
        if got != expected {
            return Err(ReadError::Invalid(Cause::unexpected(&expected, &got)));
        }
        (self.accepted, self.checksum, self.running) = (Some((tag, chunk)), got.checksum, got.seed());
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{self, ErrorKind};

    const TAG: Tag = Tag { generation: 3, operation: 5, group: 7, tensor: 11 };

    /// A stream that returns a few bytes at a time, then would block.
    struct Trickle<'a> {
        rest: &'a [u8],
        at_a_time: usize,
    }

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.rest.len().min(buffer.len()).min(self.at_a_time);
            if count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            buffer[..count].copy_from_slice(&self.rest[..count]);
            self.rest = &self.rest[count..];
            Ok(count)
        }
    }

    /// Feeds bytes to an inbox with one posted receive; the payload if a frame was received.
    fn feed(
        bytes: &[u8],
        length: usize,
        at_a_time: usize,
        mode: MatchMode,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let (mut inbox, mut traffic) = (Inbox::new(), Traffic::default());
        let mut link = Trickle { rest: bytes, at_a_time };
        let mut memory = vec![0; length];
        // Every attempt reads a byte or none; two more for attempts that only compare a header.
        for _ in 0..bytes.len() + 2 {
            let frame = Incoming { from: 0, chunk: 9, bytes: &mut memory };
            if inbox.receive(&mut link, TAG, frame, mode, &mut traffic)? == IoProgress::Complete {
                return Ok(Some(memory));
            }
            if mode != MatchMode::Exact {
                inbox.buffer_early(&mut link, &mut traffic)?;
            }
        }
        assert!(traffic.total_received <= bytes.len() as u64);
        Ok(None)
    }

    fn frame(payload: &[u8]) -> Vec<u8> {
        [&Header::data(TAG, 9, payload).encode()[..], payload].concat()
    }

    #[test]
    fn a_frame_whose_header_was_read_for_another_operation_completes_when_received() {
        let (mut inbox, mut traffic) = (Inbox::new(), Traffic::default());
        let bytes = frame(b"payload");
        let mut link = Trickle { rest: &bytes, at_a_time: usize::MAX };
        let mut receive = |operation| {
            let (mut memory, tag) = (*b".......", Tag { operation, ..TAG });
            let frame = Incoming { from: 0, chunk: 9, bytes: &mut memory };
            let moved = inbox.receive(&mut link, tag, frame, MatchMode::AnyOperation, &mut traffic).ok();
            (moved, inbox.has_unclaimed_frame())
        };
        assert_eq!(receive(4), (Some(IoProgress::Partial), true), "the header is of another operation");
        assert_eq!(receive(4), (Some(IoProgress::Blocked), true));
        assert_eq!(
            receive(5),
            (Some(IoProgress::Partial), false),
            "no byte moved, but the payload can be read"
        );
        assert_eq!(receive(5), (Some(IoProgress::Complete), false));
    }

    #[test]
    fn an_operation_too_far_ahead_is_refused() {
        let header =
            |ahead| Header::data(Tag { operation: TAG.operation + ahead, ..TAG }, 9, b"early").encode();
        let got = |ahead| feed(&header(ahead), 5, usize::MAX, MatchMode::AnyOperation);
        assert!(matches!(got(MAX_AHEAD), Ok(None)));
        assert!(matches!(got(MAX_AHEAD + 1), Err(ReadError::Invalid(Cause::OtherOperation(_)))));
    }

    const MODES: [MatchMode; 3] = [MatchMode::Exact, MatchMode::OtherGroups, MatchMode::AnyOperation];

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), length in 0usize..100, at_a_time in 1usize..50) {
            for mode in MODES {
                prop_assert!(!matches!(feed(&bytes, length, at_a_time, mode), Ok(Some(_))));
            }
        }

        #[test]
        fn a_frame_arrives_in_any_pieces(payload in proptest::collection::vec(any::<u8>(), 0..100), at_a_time in 1usize..50) {
            for mode in MODES {
                let got = feed(&frame(&payload), payload.len(), at_a_time, mode);
                prop_assert_eq!(got.ok().flatten(), Some(payload.clone()));
            }
        }

        /// Frames of any operations in any order, some with a wrong length: what is received is a frame that was sent
        /// for this operation, however many early frames come before it.
        #[test]
        fn early_frames_of_any_kind_do_not_confuse_a_receive(
            frames in proptest::collection::vec((4u64..8, 6u32..9, 10u32..13, 8u32..11, proptest::collection::vec(any::<u8>(), 3), 0u32..40), 0..8),
            at_a_time in 1usize..50,
        ) {
            let mut bytes = Vec::new();
            for (operation, group, tensor, chunk, payload, wrong) in &frames {
                let tag = Tag { operation: *operation, group: *group, tensor: *tensor, ..TAG };
                let header = Header::data(tag, *chunk, payload);
                // One in four has a wrong length.
                let header = if *wrong < 10 { Header { length: *wrong, ..header } } else { header };
                bytes.extend_from_slice(&header.encode());
                bytes.extend_from_slice(payload);
            }
            for mode in MODES {
                if let Ok(Some(got)) = feed(&bytes, 3, at_a_time, mode) {
                    let sent = |(operation, group, tensor, chunk, payload, _): &(u64, u32, u32, u32, Vec<u8>, u32)| {
                        (*operation, *group, *tensor, *chunk, payload) == (5, 7, 11, 9, &got)
                    };
                    prop_assert!(frames.iter().any(sent));
                }
            }
        }

        #[test]
        fn a_damaged_frame_is_never_received(
            payload in proptest::collection::vec(any::<u8>(), 1..60),
            damage in proptest::collection::vec((any::<usize>(), 1u8..), 1..4),
            cut in 0usize..100,
            at_a_time in 1usize..50,
        ) {
            let mut bytes = frame(&payload);
            let count = bytes.len();
            damage.iter().for_each(|(at, flip)| bytes[at % count] ^= flip);
            bytes.truncate(cut.max(1));
            for mode in MODES {
                if let Ok(Some(got)) = feed(&bytes, payload.len(), at_a_time, mode) {
                    prop_assert_eq!(&got, &payload);
                }
            }
        }
    }

    #[test]
    fn a_frame_waits_for_its_operation() {
        let (mut inbox, mut traffic) = (Inbox::new(), Traffic::default());
        let bytes = frame(&[1, 2]);
        let mut link = Trickle { rest: &bytes, at_a_time: 100 };
        let mut receive = |operation: u64, memory: &mut [u8]| {
            let frame = Incoming { from: 0, chunk: 9, bytes: memory };
            inbox
                .receive(&mut link, Tag { operation, ..TAG }, frame, MatchMode::AnyOperation, &mut traffic)
                .ok()
        };
        let (mut other, mut memory) = ([0; 4], [0; 2]);
        assert_eq!(receive(4, &mut other), Some(IoProgress::Partial));
        assert_eq!(receive(4, &mut other), Some(IoProgress::Blocked));
        while receive(5, &mut memory) != Some(IoProgress::Complete) {}
        assert_eq!((memory, other), ([1, 2], [0; 4]));
    }

    #[test]
    fn an_unclaimed_frame_is_buffered_and_received_later() {
        let (mut inbox, mut traffic) = (Inbox::new(), Traffic::default());
        let theirs =
            [&Header::data(Tag { operation: 1, group: 8, ..TAG }, 0, b"theirs").encode()[..], b"theirs"]
                .concat();
        let bytes = [theirs, frame(b"mine")].concat();
        let mut link = Trickle { rest: &bytes, at_a_time: 3 };
        let mut receive = |tag: Tag, chunk, memory: &mut [u8], buffer| {
            let frame = Incoming { from: 0, chunk, bytes: memory };
            let moved = inbox.receive(&mut link, tag, frame, MatchMode::OtherGroups, &mut traffic);
            while buffer && inbox.buffer_early(&mut link, &mut traffic).is_ok_and(|moved| moved) {}
            moved.ok()
        };
        let (mut mine, mut other) = ([0; 4], [0; 6]);
        for _ in 0..20 {
            assert_ne!(
                receive(TAG, 9, &mut mine, false),
                Some(IoProgress::Complete),
                "it is behind a frame of another group"
            );
        }
        while receive(TAG, 9, &mut mine, true) != Some(IoProgress::Complete) {}
        assert_eq!(&mine, b"mine");
        let tag = Tag { group: 8, operation: 1, ..TAG };
        assert_eq!(receive(tag, 0, &mut other, false), Some(IoProgress::Complete));
        assert_eq!(&other, b"theirs");
        assert_eq!((traffic.payload_received, inbox.has_unclaimed_frame()), (10, false));
    }

    #[test]
    fn between_groups_a_frame_of_a_completed_operation_is_an_error() {
        let old = [&Header::data(Tag { operation: 4, ..TAG }, 9, b"old").encode()[..], b"old"].concat();
        assert!(matches!(feed(&old, 3, 50, MatchMode::OtherGroups), Err(ReadError::Invalid(_))));
        let later = [&Header::data(Tag { operation: 6, ..TAG }, 9, b"new").encode()[..], b"new"].concat();
        assert!(matches!(feed(&later, 3, 50, MatchMode::OtherGroups), Ok(None)));
    }
}
