//! The frame: what every byte between two ranks is wrapped in.
//!
//! A frame is a header of [`HEADER`] bytes, little-endian, and a payload of the length it states:
//!
//! | bytes  | field      | why                                                              |
//! |--------|------------|------------------------------------------------------------------|
//! | 0..4   | magic      | tells data from a farewell, and both from a stranger's bytes     |
//! | 4..8   | generation | frames of a group that no longer exists are recognised           |
//! | 8..16  | operation  | two ranks that run different operations notice at the first frame |
//! | 16..20 | group      | operations of several groups pass over one connection            |
//! | 20..24 | tensor     | two ranks whose operations of one number are for different tensors notice, too |
//! | 24..28 | chunk      | which part of the buffer this is                                 |
//! | 28..32 | length     | of the payload, at most [`MAX_PAYLOAD`]                          |
//! | 32..36 | checksum   | CRC-32 of the 32 bytes before it and of the payload              |
//!
//! A farewell is a frame without payload, the last one on its connection; it tells an orderly leaver from a dead one.

use std::fmt;
use thiserror::Error;

/// Length of an encoded header.
pub const HEADER: usize = 36;

/// The largest payload one frame may carry, 1 GiB. A header that states more is not ours.
pub const MAX_PAYLOAD: usize = 1 << 30;

const CHECKED: usize = HEADER - 4;
const DATA: u32 = u32::from_le_bytes(*b"TLD4");
const FAREWELL: u32 = u32::from_le_bytes(*b"TLF4");

/// The CRC-32 of bytes that follow others, whose checksum is `before` (0 for none).
///
/// CRC-32C would find every error of three bits in frames of any length, this one only in those up to some 11 KiB; but
/// the crate for this one computes it with carry-less products, twice as fast, and over fast links the checksum is a tenth
/// of an exchange.
pub fn checksum(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

/// What a frame carries of the name of its operation, `all-reduce of gradients`: enough to tell it from others.
pub fn tensor(name: &str) -> u32 {
    checksum(0, name.as_bytes())
}

/// What a frame belongs to. Both ends must agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The life of the group; it changes when the membership does.
    pub generation: u32,
    /// The number of the operation within its group.
    pub operation: u64,
    /// The group that operates: 0 for all ranks, see [`crate::collective::Circle`].
    pub group: u32,
    /// What is operated on, see [`tensor`].
    pub tensor: u32,
}

impl Tag {
    /// Whether both are the same operation of the same group, whatever each takes it to be about.
    pub fn is_alongside(&self, other: &Tag) -> bool {
        let place = |tag: &Tag| (tag.generation, tag.group, tag.operation);
        place(self) == place(other)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tag { generation, operation, group, tensor } = self;
        write!(f, "generation {generation}, operation {operation}, group {group}, tensor {tensor:08x}")
    }
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A chunk of a buffer.
    Data,
    /// The last frame on its connection, see [`Departure`].
    Farewell,
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// What the frame belongs to; a farewell only to a generation.
    pub tag: Tag,
    /// The part of the buffer; in a farewell, the [`Departure`].
    pub chunk: u32,
    /// Bytes of payload that follow.
    pub length: u32,
    /// CRC-32 over the fields above and the payload.
    pub checksum: u32,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { tag, chunk, length, .. } = self;
        match self.kind {
            Kind::Data => write!(f, "{tag}, chunk {chunk}, {length} bytes"),
            Kind::Farewell => write!(f, "a damaged farewell"),
        }
    }
}

/// Why some bytes are not a header.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    #[error("a header has {HEADER} bytes, here are {0}")]
    Short(usize),
    /// The first four bytes are not ours: a stranger, or a stream that lost its place.
    #[error("the bytes {0:#010x} do not start a frame")]
    Magic(u32),
    /// The stated payload is larger than any of ours, or a farewell states one at all.
    #[error("a payload of {0} bytes is more than a frame may carry")]
    Oversized(u32),
}

impl Header {
    /// The header of a data frame, its checksum computed over `payload`.
    pub fn data(tag: Tag, chunk: u32, payload: &[u8]) -> Header {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let header = Header { kind: Kind::Data, tag, chunk, length, checksum: 0 };
        Header { checksum: checksum(header.seed(), payload), ..header }
    }

    /// The header that says goodbye.
    pub fn farewell(generation: u32, departure: Departure) -> Header {
        let chunk = departure.encode();
        let tag = Tag { generation, ..Tag::default() };
        let header = Header { kind: Kind::Farewell, tag, chunk, length: 0, checksum: 0 };
        Header { checksum: header.seed(), ..header }
    }

    /// The checksum of the header's own fields, to which the payload's is appended.
    pub fn seed(&self) -> u32 {
        checksum(0, &self.encode()[..CHECKED])
    }

    /// The departure this frame announces, if it is an intact farewell.
    pub fn departure(&self) -> Option<Departure> {
        let intact = self.kind == Kind::Farewell && self.checksum == self.seed();
        intact.then(|| Departure::decode(self.chunk))
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER] {
        let magic = match self.kind {
            Kind::Data => DATA,
            Kind::Farewell => FAREWELL,
        };
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&magic.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tag.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.operation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.tag.group.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.tag.tensor.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Reads a header from the start of `bytes`; any bytes at all are safe to give.
    ///
    /// The checksum is not verified here, as it covers the payload too.
    pub fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        let Some(bytes) = bytes.first_chunk::<HEADER>() else {
            return Err(HeaderError::Short(bytes.len()));
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (kind, limit) = match word(0) {
            DATA => (Kind::Data, MAX_PAYLOAD),
            FAREWELL => (Kind::Farewell, 0),
            other => return Err(HeaderError::Magic(other)),
        };
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
            checksum: word(32),
        })
    }
}

/// Why a rank leaves its group, as its farewell tells the others.
///
/// The reason matters because those who are still busy must name the rank that started it, not the one that merely
/// left first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its work is done.
    Done,
    /// It waited for somebody until its deadline.
    GaveUp,
    /// It was told to stop.
    Aborted,
    /// It lost this rank.
    Lost(usize),
}

impl Departure {
    fn encode(self) -> u32 {
        match self {
            Departure::Done => 0,
            Departure::GaveUp => 1,
            Departure::Aborted => 2,
            Departure::Lost(rank) => u32::try_from(rank).unwrap_or(u32::MAX).saturating_add(3),
        }
    }

    fn decode(code: u32) -> Departure {
        match code {
            0 => Departure::Done,
            1 => Departure::GaveUp,
            2 => Departure::Aborted,
            rank => Departure::Lost(rank as usize - 3),
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
        fn any_bytes_behind_a_magic_are_decoded_or_refused(mut bytes in any::<[u8; HEADER]>(), data: bool) {
            bytes[..4].copy_from_slice(&if data { DATA } else { FAREWELL }.to_le_bytes());
            match Header::decode(&bytes) {
                Ok(header) => {
                    prop_assert!(header.length as usize <= MAX_PAYLOAD);
                    prop_assert_eq!(header.encode(), bytes);
                }
                Err(error) => prop_assert!(matches!(error, HeaderError::Oversized(_))),
            }
        }

        #[test]
        fn a_header_survives_the_wire(generation: u32, operation: u64, group: u32, tensor: u32, chunk: u32, payload: Vec<u8>) {
            let header = Header::data(Tag { generation, operation, group, tensor }, chunk, &payload);
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
            prop_assert_eq!(checksum(header.seed(), &payload), header.checksum);
        }

        #[test]
        fn one_flipped_bit_is_noticed(operation: u64, payload in proptest::collection::vec(any::<u8>(), 1..64), bit: u16) {
            let header = Header::data(Tag { generation: 1, operation, group: 2, tensor: 4 }, 3, &payload);
            let mut frame = [&header.encode()[..], &payload].concat();
            let bit = bit as usize % (frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
            if let Ok(header) = Header::decode(&frame) {
                prop_assert_ne!(checksum(header.seed(), &frame[HEADER..]), header.checksum);
            }
        }
    }

    /// What is on the wire is fixed: other builds must agree.
    #[test]
    fn the_checksum_is_the_known_one_in_any_pieces() {
        assert_eq!(checksum(0, b"123456789"), 0xcbf4_3926);
        let bytes: Vec<u8> = (0..9000u32).map(|index| (index * 7 % 251) as u8).collect();
        let whole = checksum(0, &bytes);
        for cut in [0, 1, 127, 128, 129, 2047, 2048, 2049, 8999, 9000] {
            assert_eq!(checksum(checksum(0, &bytes[..cut]), &bytes[cut..]), whole, "{cut}");
        }
    }

    #[test]
    fn refusals_say_why() {
        assert_eq!(Header::decode(&[0; 5]), Err(HeaderError::Short(5)));
        assert!(matches!(
            Header::decode(b"GET / HTTP/1.1\r\nHost: a.host.example\r\n\r\n"),
            Err(HeaderError::Magic(_))
        ));
        let huge = Header { length: MAX_PAYLOAD as u32 + 1, ..Header::data(Tag::default(), 0, &[]) };
        assert_eq!(Header::decode(&huge.encode()), Err(HeaderError::Oversized(MAX_PAYLOAD as u32 + 1)));
    }

    #[test]
    fn farewells_carry_their_reason() {
        for reason in
            [Departure::Done, Departure::GaveUp, Departure::Aborted, Departure::Lost(0), Departure::Lost(63)]
        {
            assert_eq!(Header::farewell(4, reason).departure(), Some(reason));
        }
        assert_eq!(Header::data(Tag::default(), 0, &[]).departure(), None);
    }
}
