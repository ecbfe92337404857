//! Faults to inject into one link: what a bad network or a faulty member does to it.
//!
//! Part of the product, not only of the tests: `fault.inject` of a job reaches [`Transport::inject`] on real ranks,
//! for the kinds `cut`, `cut-one-way`, `corrupt` and `lie`. The simulator injects the same forged frames.

#[cfg(doc)]
use super::Transport;
use crate::wire::{CloseReason, HEADER, Header, MESSAGES, Tag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// The connection breaks.
    Cut,
    /// Bytes to the peer are silently lost from now on; the other direction works.
    CutOneWay,
    /// Bytes that are no frame are sent, as by a bad cable.
    Garbage,
    /// A well-formed but invalid frame of this generation is sent.
    Forged(ForgedFrame, u32),
}

/// What is invalid about a frame with a correct checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgedFrame {
    /// An operation that no rank will ever reach.
    Operation,
    /// A group that does not exist.
    Group,
    /// A length beyond the bytes that follow, on a frame of a message, which may arrive at any time: the next frames count
    /// as its payload.
    Length,
    /// A close frame, although its sender stays.
    Close,
}

impl LinkFault {
    /// The bytes that the peer receives.
    pub(crate) fn bytes(self) -> Vec<u8> {
        match self {
            LinkFault::Cut | LinkFault::CutOneWay => Vec::new(),
            LinkFault::Garbage => vec![0xa5; HEADER],
            LinkFault::Forged(frame, generation) => frame.encode(generation),
        }
    }
}

impl ForgedFrame {
    pub const ALL: [ForgedFrame; 4] =
        [ForgedFrame::Operation, ForgedFrame::Group, ForgedFrame::Length, ForgedFrame::Close];

    /// Header and payload.
    pub fn encode(self, generation: u32) -> Vec<u8> {
        let tag = Tag { generation, operation: u64::MAX >> 1, ..Tag::default() };
        let payload = b"forged";
        let header = match self {
            ForgedFrame::Operation => Header::data(tag, 0, payload),
            ForgedFrame::Group => Header::data(Tag { group: MESSAGES - 1, ..tag }, 0, payload),
            ForgedFrame::Length => {
                Header { length: 1 << 20, ..Header::data(Tag { group: MESSAGES, ..tag }, 0, payload) }
            }
            ForgedFrame::Close => return Header::close(generation, CloseReason::Done).encode().to_vec(),
        };
        [&header.encode()[..], payload].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FrameKind;

    /// A receiver cannot distinguish a forged frame from a valid one by its bytes.
    #[test]
    fn forged_frames_are_well_formed() {
        for forged in [ForgedFrame::Operation, ForgedFrame::Group] {
            let frame = forged.encode(7);
            let header = Header::decode(&frame).unwrap();
            assert_eq!((header.kind, header.tag.generation), (FrameKind::Data, 7));
            assert_eq!(header, Header::data(header.tag, header.chunk, &frame[HEADER..]));
        }
        let close = Header::decode(&ForgedFrame::Close.encode(7)).unwrap();
        assert_eq!(close.close_reason(), Some(CloseReason::Done));
        // Its header is intact, too; its payload never arrives.
        assert!(Header::decode(&ForgedFrame::Length.encode(7)).unwrap().length as usize > b"forged".len());
    }
}
