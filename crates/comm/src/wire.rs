//! The frame: the format of all bytes between two ranks.
//!
//! A frame is a header of [`HEADER`] bytes, little-endian, and a payload of the length it states:
//!
//! | bytes  | field      | why                                                              |
//! |--------|------------|------------------------------------------------------------------|
//! | 0..4   | magic      | distinguishes data frames, close frames and foreign bytes        |
//! | 4..8   | generation | detects frames of an earlier generation of the group             |
//! | 8..16  | operation  | detects ranks in different operations at the first frame         |
//! | 16..20 | group      | operations of several groups share one connection                |
//! | 20..24 | tensor     | detects ranks that use different tensors in the same operation   |
//! | 24..28 | chunk      | index of the chunk in the buffer                                 |
//! | 28..32 | length     | of the payload, at most [`MAX_PAYLOAD`]                          |
//! | 32..36 | header sum | CRC-32 of the 32 bytes before it                                 |
//! | 36..40 | checksum   | CRC-32 of the first 32 bytes and of the payload                  |
//!
//! The header has a checksum of its own, because a length must be trusted before the payload arrives: a header that was
//! damaged on the way is refused, so an intact one with a false length comes from its sender.
//!
//! A close frame is a frame without payload, the last one on its connection; it distinguishes a rank that left from a dead
//! one.

use std::fmt;
use thiserror::Error;

/// Bytes of an encoded header.
pub const HEADER: usize = 40;

/// The maximum payload of a frame, 1 GiB; a header with more is invalid.
pub const MAX_PAYLOAD: usize = 1 << 30;

/// The id of the group of all ranks.
pub const WORLD: u32 = 0;

/// The group id of [messages](crate::messages), which belong to no collective.
pub const MESSAGES: u32 = u32::MAX;

/// The bytes of a header that its checksums cover.
const CHECKED: usize = HEADER - 8;
const DATA: u32 = u32::from_le_bytes(*b"TLD5");
const CLOSE: u32 = u32::from_le_bytes(*b"TLF5");

/// The CRC-32 of bytes that follow others, whose checksum is `before` (0 for none).
///
/// CRC-32C would detect every three-bit error in frames of any length, CRC-32 only up to about 11 KiB. But the crate for
/// CRC-32 uses carry-less multiplication and is twice as fast, and over fast links the checksum is a tenth of an exchange.
pub fn checksum(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

/// The hash by which frames identify an operation's name, such as `all-reduce of gradients`.
pub fn tensor(name: &str) -> u32 {
    checksum(0, name.as_bytes())
}

/// The operation that a frame belongs to. Both ends must agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Changes with the membership of the job.
    pub generation: u32,
    /// Counted per group.
    pub operation: u64,
    /// [`Group::id`](crate::collective::Group::id); [`WORLD`] for all ranks, [`MESSAGES`] for messages.
    pub group: u32,
    /// Hash of the operation's name, see [`tensor`].
    pub tensor: u32,
}

impl Tag {
    /// Whether both are the same operation of the same group, even if on different tensors.
    pub fn is_same_operation(&self, other: &Tag) -> bool {
        let key = |tag: &Tag| (tag.generation, tag.group, tag.operation);
        key(self) == key(other)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tag { generation, operation, group, tensor } = self;
        write!(f, "generation {generation}, operation {operation}, group {group}, tensor {tensor:08x}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A chunk of a buffer.
    Data,
    /// The last frame on its connection, see [`CloseReason`].
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: FrameKind,
    /// In a close frame only the generation is set.
    pub tag: Tag,
    /// Index of the chunk in the buffer; in a close frame, the [`CloseReason`].
    pub chunk: u32,
    /// Bytes of the payload.
    pub length: u32,
    /// CRC-32 of the fields above and the payload.
    pub checksum: u32,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { tag, chunk, length, .. } = self;
        match self.kind {
            FrameKind::Data => write!(f, "{tag}, chunk {chunk}, {length} bytes"),
            FrameKind::Close => write!(f, "a damaged close frame"),
        }
    }
}

/// How the text of [`HeaderError::Magic`] begins: the coordinator recognizes damaged streams by it.
pub const NOT_A_FRAME: &str = "the bytes";

/// Why bytes are not a valid header.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    #[error("a header has {HEADER} bytes, got {0}")]
    Short(usize),
    #[error("{NOT_A_FRAME} {0:#010x} do not start a frame")]
    Magic(u32),
    #[error("{NOT_A_FRAME} of a header do not have its checksum")]
    Damaged,
    /// Also for a close frame with a payload.
    #[error("a payload of {0} bytes is longer than allowed")]
    Oversized(u32),
}

impl Header {
    /// The header of a data frame with this payload.
    pub fn data(tag: Tag, chunk: u32, payload: &[u8]) -> Header {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let header = Header { kind: FrameKind::Data, tag, chunk, length, checksum: 0 };
        Header { checksum: checksum(header.seed(), payload), ..header }
    }

    /// The header of a close frame.
    pub fn close(generation: u32, reason: CloseReason) -> Header {
        let chunk = reason.encode();
        let tag = Tag { generation, ..Tag::default() };
        let header = Header { kind: FrameKind::Close, tag, chunk, length: 0, checksum: 0 };
        Header { checksum: header.seed(), ..header }
    }

    /// The checksum of the header's fields, which is continued with the payload.
    pub fn seed(&self) -> u32 {
        checksum(0, &self.encode_fields()[..CHECKED])
    }

    /// `None` unless it is an intact close frame.
    pub fn close_reason(&self) -> Option<CloseReason> {
        let intact = self.kind == FrameKind::Close && self.checksum == self.seed();
        intact.then(|| CloseReason::decode(self.chunk))
    }

    /// Whether a frame with this header, whatever its payload is, begins in these bytes.
    pub(crate) fn begins_in(&self, bytes: &[u8]) -> bool {
        let start = &self.encode()[..HEADER - 4];
        bytes.windows(start.len()).any(|window| window == start)
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = self.encode_fields();
        let sum = checksum(0, &bytes[..CHECKED]);
        bytes[32..36].copy_from_slice(&sum.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// The bytes on the wire without the checksums.
    fn encode_fields(&self) -> [u8; HEADER] {
        let magic = match self.kind {
            FrameKind::Data => DATA,
            FrameKind::Close => CLOSE,
        };
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&magic.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tag.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.operation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.tag.group.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.tag.tensor.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes a header from the start of untrusted bytes. The checksum of the payload is not verified here.
    pub fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        let Some(bytes) = bytes.first_chunk::<HEADER>() else {
            return Err(HeaderError::Short(bytes.len()));
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (kind, limit) = match word(0) {
            DATA => (FrameKind::Data, MAX_PAYLOAD),
            CLOSE => (FrameKind::Close, 0),
            other => return Err(HeaderError::Magic(other)),
        };
        if word(32) != checksum(0, &bytes[..CHECKED]) {
            return Err(HeaderError::Damaged);
        }
        let length = word(28);
        if length as usize > limit {
            return Err(HeaderError::Oversized(length));
        }
        Ok(Header {
            kind,
            tag: Tag {
                generation: word(4),
                operation: u64::from(word(8)) | u64::from(word(12)) << 32,
                group: word(16),
                tensor: word(20),
            },
            chunk: word(24),
            length,
            checksum: word(36),
        })
    }
}

/// Whether a frame of this generation begins in these bytes: in the payload of another frame, its length is then false. A
/// header that the end of the bytes cuts off counts if its magic and its generation are there.
pub(crate) fn contains_frame(bytes: &[u8], generation: u32) -> bool {
    [DATA, CLOSE].into_iter().any(|magic| {
        let start = [magic.to_le_bytes(), generation.to_le_bytes()].concat();
        let mut starts = bytes.windows(start.len()).enumerate().filter(|(_, window)| *window == start);
        starts.any(|(at, _)| bytes.len() - at < HEADER || Header::decode(&bytes[at..]).is_ok())
    })
}

/// Why a rank closes its connections, in its close frame.
///
/// Ranks that are still in an operation need the reason to blame the rank that caused a failure, not the first one that
/// left because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// In good order.
    Done,
    /// It waited for a peer until its deadline.
    TimedOut,
    Aborted,
    /// It lost the connection to this rank.
    Lost(usize),
}

impl CloseReason {
    fn encode(self) -> u32 {
        match self {
            CloseReason::Done => 0,
            CloseReason::TimedOut => 1,
            CloseReason::Aborted => 2,
            CloseReason::Lost(rank) => u32::try_from(rank).unwrap_or(u32::MAX).saturating_add(3),
        }
    }

    fn decode(code: u32) -> CloseReason {
        match code {
            0 => CloseReason::Done,
            1 => CloseReason::TimedOut,
            2 => CloseReason::Aborted,
            rank => CloseReason::Lost(rank as usize - 3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(&header.encode()[..], &bytes[..HEADER]);
            }
        }

        #[test]
        fn any_bytes_after_a_magic_are_decoded_or_refused(mut bytes in any::<[u8; HEADER]>(), data: bool) {
            bytes[..4].copy_from_slice(&if data { DATA } else { CLOSE }.to_le_bytes());
            prop_assert_eq!(Header::decode(&bytes), Err(HeaderError::Damaged));
            let sum = checksum(0, &bytes[..CHECKED]);
            bytes[CHECKED..CHECKED + 4].copy_from_slice(&sum.to_le_bytes());
            match Header::decode(&bytes) {
                Ok(header) => {
                    prop_assert!(header.length as usize <= MAX_PAYLOAD);
                    prop_assert_eq!(header.encode(), bytes);
                }
                Err(error) => prop_assert!(matches!(error, HeaderError::Oversized(_))),
            }
        }

        #[test]
        fn headers_round_trip(generation: u32, operation: u64, group: u32, tensor: u32, chunk: u32, payload: Vec<u8>) {
            let header = Header::data(Tag { generation, operation, group, tensor }, chunk, &payload);
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
            prop_assert_eq!(checksum(header.seed(), &payload), header.checksum);
        }

        #[test]
        fn one_flipped_bit_is_detected(operation: u64, payload in proptest::collection::vec(any::<u8>(), 1..64), bit: u16) {
            let header = Header::data(Tag { generation: 1, operation, group: 2, tensor: 4 }, 3, &payload);
            let mut frame = [&header.encode()[..], &payload].concat();
            let bit = bit as usize % (frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
            let decoded = Header::decode(&frame);
            prop_assert_eq!(decoded.is_err(), bit < (HEADER - 4) * 8, "a damaged header is refused before its payload arrives");
            if let Ok(header) = decoded {
                prop_assert_ne!(checksum(header.seed(), &frame[HEADER..]), header.checksum);
            }
        }
    }

    /// The wire format is fixed: all builds must agree.
    #[test]
    fn the_checksum_is_crc32_for_any_fragmentation() {
        assert_eq!(checksum(0, b"123456789"), 0xcbf4_3926);
        let bytes: Vec<u8> = (0..9000u32).map(|index| (index * 7 % 251) as u8).collect();
        let whole = checksum(0, &bytes);
        for cut in [0, 1, 127, 128, 129, 2047, 2048, 2049, 8999, 9000] {
            assert_eq!(checksum(checksum(0, &bytes[..cut]), &bytes[cut..]), whole, "{cut}");
        }
    }

    #[test]
    fn invalid_headers_are_refused_with_a_reason() {
        assert_eq!(Header::decode(&[0; 5]), Err(HeaderError::Short(5)));
        assert!(matches!(
            Header::decode(b"GET / HTTP/1.1\r\nHost: a.host.example\r\n\r\n"),
            Err(HeaderError::Magic(_))
        ));
        let huge = Header { length: MAX_PAYLOAD as u32 + 1, ..Header::data(Tag::default(), 0, &[]) };
        assert_eq!(Header::decode(&huge.encode()), Err(HeaderError::Oversized(MAX_PAYLOAD as u32 + 1)));
    }

    #[test]
    fn a_frame_inside_of_a_payload_is_found() {
        let frame =
            [&Header::data(Tag { generation: 7, ..Tag::default() }, 0, b"payload").encode()[..], b"payload"]
                .concat();
        let close = Header::close(7, CloseReason::Done).encode();
        for inner in [&frame[..], &close[..]] {
            let bytes = [b"forged", inner].concat();
            assert!(contains_frame(&bytes, 7));
            assert!(!contains_frame(&bytes, 8), "of another generation");
            assert!(contains_frame(&bytes[..6 + 8], 7), "cut off behind the generation");
            assert!(!contains_frame(&bytes[..6 + 7], 7));
            let mut damaged = [&bytes[..], &[0; HEADER]].concat();
            damaged[6 + 20] ^= 1;
            assert!(!contains_frame(&damaged, 7), "no header");
        }
        assert!(!contains_frame(&[], 7));
    }

    #[test]
    fn close_frames_carry_their_reason() {
        for reason in [
            CloseReason::Done,
            CloseReason::TimedOut,
            CloseReason::Aborted,
            CloseReason::Lost(0),
            CloseReason::Lost(63),
        ] {
            assert_eq!(Header::close(4, reason).close_reason(), Some(reason));
        }
        assert_eq!(Header::data(Tag::default(), 0, &[]).close_reason(), None);
    }
}
