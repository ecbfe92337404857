//! Frames in any pieces and order, damaged frames, and frames with false lengths.

use super::*;
use proptest::prelude::*;
use std::io::{self, ErrorKind, Write};

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

/// An inbox that admits several groups.
fn inbox_of_groups() -> Inbox {
    let mut inbox = Inbox::new();
    inbox.admit_groups();
    inbox
}

/// Feeds bytes to an inbox with one posted receive; the payload if a frame was received.
fn feed(
    bytes: &[u8],
    length: usize,
    at_a_time: usize,
    mode: MatchMode,
) -> Result<Option<Vec<u8>>, ReadError> {
    let mut inbox = if mode == MatchMode::Exact { Inbox::new() } else { inbox_of_groups() };
    let mut traffic = Traffic::default();
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
    let (mut inbox, mut traffic) = (inbox_of_groups(), Traffic::default());
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
    assert_eq!(receive(5), (Some(IoProgress::Partial), false), "no byte moved, but the payload can be read");
    assert_eq!(receive(5), (Some(IoProgress::Complete), false));
}

#[test]
fn an_operation_too_far_ahead_is_refused() {
    let header = |ahead| Header::data(Tag { operation: TAG.operation + ahead, ..TAG }, 9, b"early").encode();
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
fn a_frame_of_another_group_is_an_error_unless_groups_are_admitted() {
    let theirs = [&Header::data(Tag { group: 8, ..TAG }, 9, b"theirs").encode()[..], b"theirs"].concat();
    for mut inbox in [Inbox::new(), inbox_of_groups()] {
        let (mut link, mut memory) = (Trickle { rest: &theirs, at_a_time: usize::MAX }, *b"mine");
        let frame = Incoming { from: 0, chunk: 9, bytes: &mut memory };
        let moved = inbox.receive(&mut link, TAG, frame, MatchMode::AnyOperation, &mut Traffic::default());
        match inbox.multiple_groups {
            true => assert!(matches!(moved, Ok(IoProgress::Partial))),
            false => assert!(matches!(moved, Err(ReadError::Invalid(Cause::OtherOperation(_))))),
        }
    }
}

#[test]
fn a_frame_waits_for_its_operation() {
    let (mut inbox, mut traffic) = (inbox_of_groups(), Traffic::default());
    let bytes = frame(&[1, 2]);
    let mut link = Trickle { rest: &bytes, at_a_time: 100 };
    let mut receive = |operation: u64, memory: &mut [u8]| {
        let frame = Incoming { from: 0, chunk: 9, bytes: memory };
        inbox.receive(&mut link, Tag { operation, ..TAG }, frame, MatchMode::AnyOperation, &mut traffic).ok()
    };
    let (mut other, mut memory) = ([0; 4], [0; 2]);
    assert_eq!(receive(4, &mut other), Some(IoProgress::Partial));
    assert_eq!(receive(4, &mut other), Some(IoProgress::Blocked));
    while receive(5, &mut memory) != Some(IoProgress::Complete) {}
    assert_eq!((memory, other), ([1, 2], [0; 4]));
}

#[test]
fn an_unclaimed_frame_is_buffered_and_received_later() {
    let (mut inbox, mut traffic) = (inbox_of_groups(), Traffic::default());
    let theirs =
        [&Header::data(Tag { operation: 1, group: 8, ..TAG }, 0, b"theirs").encode()[..], b"theirs"].concat();
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

/// A stream of which nothing is unread, or the rest of a [`Trickle`].
impl Write for Trickle<'_> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for Trickle<'_> {
    fn unread(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.rest.to_vec())
    }

    fn shutdown_write(&mut self) {}
}

/// A header of a group that this rank does not know, with a false length, and a few bytes of payload.
fn forged(length: usize) -> Vec<u8> {
    let tag = Tag { group: 8, ..TAG };
    let header = Header { length: length as u32, ..Header::data(tag, 0, b"forged") };
    [&header.encode()[..], b"forged"].concat()
}

/// The proof against the sender of these bytes, after many attempts to receive `mine`.
fn false_length(bytes: &[u8]) -> Option<String> {
    let (mut inbox, mut traffic) = (inbox_of_groups(), Traffic::default());
    let (mut link, mut memory) = (Trickle { rest: bytes, at_a_time: 1000 }, *b"....");
    for _ in 0..10 {
        inbox.clear_behind();
        let frame = Incoming { from: 0, chunk: 9, bytes: &mut memory };
        let moved = inbox.receive(&mut link, TAG, frame, MatchMode::OtherGroups, &mut traffic).ok()?;
        assert_ne!(moved, IoProgress::Complete);
        inbox.buffer_early(&mut link, &mut traffic).ok()?;
    }
    inbox.find_false_length(&mut link).map(|cause| cause.to_string())
}

#[test]
fn a_frame_that_swallows_the_awaited_one_has_a_false_length() {
    let proof = "broke the protocol: its frame has a false length";
    // Buffered as an early frame, or too long for that.
    for length in [1000, CAPACITY + 1] {
        let text = false_length(&[forged(length), frame(b"mine")].concat()).unwrap_or_default();
        assert!(text.starts_with(proof) && text.contains(&format!("{length} bytes")), "{text}");
        assert_eq!(false_length(&forged(length)), None, "the rest may still arrive");
    }
    // The awaited frame is behind a long one.
    let header = Header::data(Tag { group: 8, ..TAG }, 0, &vec![0; CAPACITY + 1]).encode();
    let long = [&header[..], &vec![0; CAPACITY + 1], &frame(b"mine")].concat();
    assert_eq!(false_length(&long), None);
}

#[test]
fn a_complete_frame_with_another_frame_in_it_has_a_false_length() {
    let cause = |bytes: &[u8]| match feed(bytes, 4, usize::MAX, MatchMode::OtherGroups) {
        Err(ReadError::Invalid(cause)) => cause,
        _ => panic!("the checksum is wrong"),
    };
    let swallowed = [forged(6 + HEADER), frame(b"mine")].concat();
    assert!(matches!(cause(&swallowed), Cause::Protocol(_)));
    let header_cut_off = [forged(6 + 8), frame(b"mine")].concat();
    assert!(matches!(cause(&header_cut_off), Cause::Protocol(_)));
    let damaged = [forged(6 + HEADER), vec![0x55; HEADER]].concat();
    assert_eq!(cause(&damaged), Cause::Corrupt, "a bad cable does that, too");
    // The same for the awaited frame itself.
    let awaited = [&Header::data(TAG, 9, &[0; 60]).encode()[..], b"short", &frame(&[0; 60])].concat();
    assert!(matches!(feed(&awaited, 60, 7, MatchMode::Exact), Err(ReadError::Invalid(Cause::Protocol(_)))));
}

#[test]
fn the_length_of_an_early_frame_is_checked_when_its_operation_is_posted() {
    let (mut inbox, mut traffic) = (inbox_of_groups(), Traffic::default());
    let later = Tag { operation: 6, ..TAG };
    let bytes = [&Header::data(later, 9, &[0; 50]).encode()[..], b"forged"].concat();
    let (mut link, mut memory) = (Trickle { rest: &bytes, at_a_time: usize::MAX }, *b"....");
    let mut receive = |tag| {
        let frame = Incoming { from: 0, chunk: 9, bytes: &mut memory };
        let moved = inbox.receive(&mut link, tag, frame, MatchMode::OtherGroups, &mut traffic);
        let buffered = inbox.buffer_early(&mut link, &mut traffic).is_ok();
        (moved, buffered)
    };
    assert!(matches!(receive(TAG), (Ok(IoProgress::Partial), true)));
    assert!(matches!(receive(TAG), (Ok(IoProgress::Blocked), true)), "incomplete");
    assert!(matches!(receive(later), (Err(ReadError::Invalid(Cause::Protocol(_))), true)));
}
