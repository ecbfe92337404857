//! The records between the messages of a link: the announcement of a message, and grants of credit.

/// Bytes of an encoded record.
pub(super) const RECORD: usize = 32;

const MESSAGE: u32 = 1;
const GRANT: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The fragments of this message follow.
    Message(Announcement),
    /// What the receiver has, and how much it accepts.
    Grant(Grant),
}

/// What a receiver must know before the bytes of a message arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    pub group: u32,
    pub tag: u32,
    /// Counted from 0 by sender and receiver, in all generations together.
    pub sequence: u64,
    pub length: u64,
}

/// Both numbers only grow, in all generations together, so that a grant can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Messages received in full: the sequence number of the next one.
    pub received: u64,
    /// Bytes that the sender may have sent since the first message; see [`cost`].
    pub limit: u64,
}

/// The bytes by which a message uses up credit: empty messages use memory, too.
pub(super) fn cost(length: u64) -> u64 {
    length.max(64)
}

impl Record {
    pub fn encode(self) -> [u8; RECORD] {
        let (kind, tag, group, first, second) = match self {
            Record::Message(Announcement { group, tag, sequence, length }) => {
                (MESSAGE, tag, group, sequence, length)
            }
            Record::Grant(Grant { received, limit }) => (GRANT, 0, 0, received, limit),
        };
        let mut bytes = [0; RECORD];
        bytes[0..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&tag.to_le_bytes());
        bytes[8..12].copy_from_slice(&group.to_le_bytes());
        bytes[16..24].copy_from_slice(&first.to_le_bytes());
        bytes[24..32].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// Decodes untrusted bytes; the error says what is wrong with them.
    pub fn decode(bytes: &[u8; RECORD]) -> Result<Record, String> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (tag, group, first, second) = (word(4), word(8), long(16), long(24));
        let record = match word(0) {
            MESSAGE => Record::Message(Announcement { group, tag, sequence: first, length: second }),
            GRANT => Record::Grant(Grant { received: first, limit: second }),
            kind => return Err(format!("a record of the unknown kind {kind} between messages")),
        };
        match record.encode() == *bytes {
            true => Ok(record),
            false => Err("a record between messages with bytes where none belong".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_record_is_decoded_or_refused(mut bytes: [u8; RECORD], kind in 0u32..4, padded: bool) {
            bytes[..4].copy_from_slice(&kind.to_le_bytes());
            if padded {
                bytes[4..16].fill(0);
            }
            match Record::decode(&bytes) {
                Ok(record) => assert_eq!(record.encode(), bytes),
                Err(_) => assert!(!padded || kind == 0 || kind > GRANT),
            }
        }
    }
}
