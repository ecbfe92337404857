//! The frame from one peer that is being read.
//!
//! A small state machine over a byte stream that never blocks. It works straight on the caller's memory: header and payload
//! arrive in one vectored read. What nobody can take yet is put [aside](super::aside).

use super::aside::{Aside, ROOM};
use super::links::try_later;
use super::{Cause, Incoming, Moved, Tag, Traffic};
use crate::post::LETTERS;
use crate::wire::{Departure, HEADER, Header, Kind, checksum};
use std::io::{IoSliceMut, Read};

/// How many operations of one group a peer may be ahead: each leaves at least a header among the early frames, which are
/// bounded, or in the buffers of a link, which hold far less than as much again.
const MAX_AHEAD: u64 = 2 * (ROOM / HEADER) as u64;

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
pub(crate) struct Inbox {
    header: [u8; HEADER],
    filled: usize,
    /// Whose frame it is, once its header has arrived and somebody has asked for it.
    accepted: Option<(Tag, u32)>,
    checksum: u32,
    running: u32,
    aside: Aside,
}

/// What is known of the other frames that may arrive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// None.
    Nobody,
    /// Those of other groups, and of later operations of this one.
    Groups,
    /// Those of any operation.
    Anybody,
}

impl Inbox {
    /// Nothing is under way.
    pub fn new() -> Inbox {
        let aside = Aside::default();
        Inbox { header: [0; HEADER], filled: 0, accepted: None, checksum: 0, running: 0, aside }
    }

    /// Whether a frame has arrived that nobody has taken yet: with several operations under way, one of them may
    /// first have to hear from somebody else. What the peer sent after it waits behind it.
    pub fn holds_a_frame(&self) -> bool {
        !self.aside.is_empty() || self.waiting().is_some()
    }

    /// The frame whose header has arrived and that nobody has asked for yet.
    fn waiting(&self) -> Option<Header> {
        let header = Header::decode(&self.header).ok();
        header
            .filter(|header| self.filled >= HEADER && self.accepted.is_none() && header.departure().is_none())
    }

    /// Whether a frame of this operation is on its way in.
    pub fn has_accepted(&self, tag: Tag) -> bool {
        self.accepted.is_some_and(|(accepted, _)| accepted == tag)
    }

    /// Puts a frame that nobody has taken aside, as far as there is room and as it has arrived, so that those behind it
    /// can be reached; says whether anything moved.
    pub fn set_aside(&mut self, link: &mut impl Read, traffic: &mut Traffic) -> Result<bool, Interruption> {
        let taken = match self.waiting() {
            Some(header) if !self.aside.is_open() && self.aside.begin(header) => {
                self.filled = 0;
                true
            }
            _ => false,
        };
        Ok(self.aside.read(link, traffic)? || taken)
    }

    /// Reads what the stream has in one go.
    pub fn pull(
        &mut self,
        link: &mut impl Read,
        tag: Tag,
        frame: Incoming<'_>,
        others: Others,
        traffic: &mut Traffic,
    ) -> Result<Moved, Interruption> {
        if self.aside.is_open() {
            let moved = self.aside.read(link, traffic)?;
            if self.aside.is_open() {
                return Ok(if moved { Moved::Part } else { Moved::Nothing });
            }
        }
        if self.aside.deliver(tag, frame.chunk, frame.bytes)? {
            traffic.payload_received += frame.bytes.len() as u64;
            return Ok(Moved::Whole);
        }
        if self.accepted.is_some_and(|whose| whose != (tag, frame.chunk)) {
            return Ok(Moved::Nothing);
        }
        let payload = frame.bytes;
        let total = HEADER + payload.len();
        let before = self.filled;
        // In company the header alone tells whose the payload is.
        let optimistic = others == Others::Nobody || self.accepted.is_some();
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
        let mut moved = if self.filled > before { Moved::Part } else { Moved::Nothing };
        if self.filled < HEADER {
            return Ok(moved);
        }
        if self.accepted.is_none() {
            if !self.accept(tag, frame.chunk, payload.len(), others)? {
                return Ok(moved);
            }
            // Its payload can be read from now on, even if the header came by another's hand.
            moved = Moved::Part;
        }
        let fresh = &payload[before.saturating_sub(HEADER)..self.filled - HEADER];
        self.running = checksum(self.running, fresh);
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
    fn accept(&mut self, tag: Tag, chunk: u32, length: usize, others: Others) -> Result<bool, Interruption> {
        let wrong = |what: String| Interruption::Wrong(Cause::Protocol(what));
        let got = Header::decode(&self.header).map_err(|error| wrong(error.to_string()))?;
        if let Some(departure) = got.departure() {
            return Err(Interruption::Farewell(departure));
        }
        let elsewhere = match others {
            Others::Nobody => false,
            Others::Groups => got.tag.group != tag.group || got.tag.operation > tag.operation,
            Others::Anybody => !got.tag.is_alongside(&tag),
        };
        // A sender that is so far ahead would have been stopped by the bound of the early frames.
        let reachable = got.tag.group != tag.group
            || got.tag.operation == LETTERS
            || got.tag.operation <= tag.operation.saturating_add(MAX_AHEAD);
        if elsewhere && reachable && (got.tag.generation, got.kind) == (tag.generation, Kind::Data) {
            return Ok(false);
        }
        let checksum = got.checksum;
        let expected = Header { kind: Kind::Data, tag, chunk, length: length as u32, checksum };
        if got != expected {
            return Err(Interruption::Wrong(Cause::unexpected(&expected, &got)));
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

    /// A stream that gives a few bytes at a time, then nothing.
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

    /// Feeds bytes to an inbox that waits for a frame; the payload if it took one.
    fn feed(
        bytes: &[u8],
        length: usize,
        at_a_time: usize,
        others: Others,
    ) -> Result<Option<Vec<u8>>, Interruption> {
        let (mut inbox, mut traffic) = (Inbox::new(), Traffic::default());
        let mut link = Trickle { rest: bytes, at_a_time };
        let mut memory = vec![0; length];
        // Every attempt takes a byte or is in vain; two more for those that only look at a header.
        for _ in 0..bytes.len() + 2 {
            let frame = Incoming { from: 0, chunk: 9, bytes: &mut memory };
            if inbox.pull(&mut link, TAG, frame, others, &mut traffic)? == Moved::Whole {
                return Ok(Some(memory));
            }
            if others != Others::Nobody {
                inbox.set_aside(&mut link, &mut traffic)?;
            }
        }
        assert!(traffic.total_received <= bytes.len() as u64);
        Ok(None)
    }

    fn frame(payload: &[u8]) -> Vec<u8> {
        [&Header::data(TAG, 9, payload).encode()[..], payload].concat()
    }

    #[test]
    fn a_frame_whose_header_another_operation_has_read_moves_when_it_is_asked_for() {
        let (mut inbox, mut traffic) = (Inbox::new(), Traffic::default());
        let bytes = frame(b"payload");
        let mut link = Trickle { rest: &bytes, at_a_time: usize::MAX };
        let mut pull = |operation| {
            let (mut memory, tag) = (*b".......", Tag { operation, ..TAG });
            let frame = Incoming { from: 0, chunk: 9, bytes: &mut memory };
            let moved = inbox.pull(&mut link, tag, frame, Others::Anybody, &mut traffic).ok();
            (moved, inbox.holds_a_frame())
        };
        assert_eq!(pull(4), (Some(Moved::Part), true), "the header is another's");
        assert_eq!(pull(4), (Some(Moved::Nothing), true));
        assert_eq!(pull(5), (Some(Moved::Part), false), "no byte, but the way is free");
        assert_eq!(pull(5), (Some(Moved::Whole), false));
    }

    #[test]
    fn an_operation_out_of_reach_is_refused() {
        let header =
            |ahead| Header::data(Tag { operation: TAG.operation + ahead, ..TAG }, 9, b"early").encode();
        let got = |ahead| feed(&header(ahead), 5, usize::MAX, Others::Anybody);
        assert!(matches!(got(MAX_AHEAD), Ok(None)));
        assert!(matches!(got(MAX_AHEAD + 1), Err(Interruption::Wrong(Cause::Elsewhere(_)))));
    }

    const COMPANIES: [Others; 3] = [Others::Nobody, Others::Groups, Others::Anybody];

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), length in 0usize..100, at_a_time in 1usize..50) {
            for others in COMPANIES {
                prop_assert!(!matches!(feed(&bytes, length, at_a_time, others), Ok(Some(_))));
            }
        }

        #[test]
        fn a_frame_arrives_in_any_pieces(payload in proptest::collection::vec(any::<u8>(), 0..100), at_a_time in 1usize..50) {
            for others in COMPANIES {
                let got = feed(&frame(&payload), payload.len(), at_a_time, others);
                prop_assert_eq!(got.ok().flatten(), Some(payload.clone()));
            }
        }

        /// Frames of any operations in any order, some of which lie about their length: what is taken is a frame that was
        /// sent for this one, however many were put aside before it.
        #[test]
        fn what_others_sent_before_is_survived(
            frames in proptest::collection::vec((4u64..8, 6u32..9, 10u32..13, 8u32..11, proptest::collection::vec(any::<u8>(), 3), 0u32..40), 0..8),
            at_a_time in 1usize..50,
        ) {
            let mut bytes = Vec::new();
            for (operation, group, tensor, chunk, payload, lie) in &frames {
                let tag = Tag { operation: *operation, group: *group, tensor: *tensor, ..TAG };
                let header = Header::data(tag, *chunk, payload);
                // One in four does.
                let header = if *lie < 10 { Header { length: *lie, ..header } } else { header };
                bytes.extend_from_slice(&header.encode());
                bytes.extend_from_slice(payload);
            }
            for others in COMPANIES {
                if let Ok(Some(got)) = feed(&bytes, 3, at_a_time, others) {
                    let sent = |(operation, group, tensor, chunk, payload, _): &(u64, u32, u32, u32, Vec<u8>, u32)| {
                        (*operation, *group, *tensor, *chunk, payload) == (5, 7, 11, 9, &got)
                    };
                    prop_assert!(frames.iter().any(sent));
                }
            }
        }

        /// However a frame is damaged, cut or lengthened: what is taken is what was sent.
        #[test]
        fn a_damaged_frame_is_never_taken(
            payload in proptest::collection::vec(any::<u8>(), 1..60),
            damage in proptest::collection::vec((any::<usize>(), 1u8..), 1..4),
            cut in 0usize..100,
            at_a_time in 1usize..50,
        ) {
            let mut bytes = frame(&payload);
            let count = bytes.len();
            damage.iter().for_each(|(at, flip)| bytes[at % count] ^= flip);
            bytes.truncate(cut.max(1));
            for others in COMPANIES {
                if let Ok(Some(got)) = feed(&bytes, payload.len(), at_a_time, others) {
                    prop_assert_eq!(&got, &payload);
                }
            }
        }
    }

    #[test]
    fn in_company_a_frame_waits_for_its_operation() {
        let (mut inbox, mut traffic) = (Inbox::new(), Traffic::default());
        let bytes = frame(&[1, 2]);
        let mut link = Trickle { rest: &bytes, at_a_time: 100 };
        let mut pull = |operation: u64, memory: &mut [u8]| {
            let frame = Incoming { from: 0, chunk: 9, bytes: memory };
            inbox.pull(&mut link, Tag { operation, ..TAG }, frame, Others::Anybody, &mut traffic).ok()
        };
        let (mut other, mut memory) = ([0; 4], [0; 2]);
        assert_eq!(pull(4, &mut other), Some(Moved::Part));
        assert_eq!(pull(4, &mut other), Some(Moved::Nothing));
        while pull(5, &mut memory) != Some(Moved::Whole) {}
        assert_eq!((memory, other), ([1, 2], [0; 4]));
    }

    #[test]
    fn a_frame_that_nobody_takes_makes_way_and_is_found_again() {
        let (mut inbox, mut traffic) = (Inbox::new(), Traffic::default());
        let theirs =
            [&Header::data(Tag { operation: 1, group: 8, ..TAG }, 0, b"theirs").encode()[..], b"theirs"]
                .concat();
        let bytes = [theirs, frame(b"mine")].concat();
        let mut link = Trickle { rest: &bytes, at_a_time: 3 };
        let mut pull = |tag: Tag, chunk, memory: &mut [u8], aside| {
            let frame = Incoming { from: 0, chunk, bytes: memory };
            let moved = inbox.pull(&mut link, tag, frame, Others::Groups, &mut traffic);
            while aside && inbox.set_aside(&mut link, &mut traffic).is_ok_and(|moved| moved) {}
            moved.ok()
        };
        let (mut mine, mut other) = ([0; 4], [0; 6]);
        for _ in 0..20 {
            assert_ne!(pull(TAG, 9, &mut mine, false), Some(Moved::Whole), "it stands behind another's");
        }
        while pull(TAG, 9, &mut mine, true) != Some(Moved::Whole) {}
        assert_eq!(&mine, b"mine");
        let tag = Tag { group: 8, operation: 1, ..TAG };
        assert_eq!(pull(tag, 0, &mut other, false), Some(Moved::Whole));
        assert_eq!(&other, b"theirs");
        assert_eq!((traffic.payload_received, inbox.holds_a_frame()), (10, false));
    }

    #[test]
    fn between_groups_an_operation_that_is_over_is_still_a_fault() {
        let old = [&Header::data(Tag { operation: 4, ..TAG }, 9, b"old").encode()[..], b"old"].concat();
        assert!(matches!(feed(&old, 3, 50, Others::Groups), Err(Interruption::Wrong(_))));
        let later = [&Header::data(Tag { operation: 6, ..TAG }, 9, b"new").encode()[..], b"new"].concat();
        assert!(matches!(feed(&later, 3, 50, Others::Groups), Ok(None)));
    }
}
