//! Faults of one link, to be injected: what a network or a member that lies does to it.

use crate::wire::{Departure, HEADER, Header, Tag};

/// What happens to the link to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// The connection breaks.
    Cut,
    /// What is sent to the peer from now on is lost on its way, and neither is told; the other direction works.
    CutOneWay,
    /// Bytes that make no sense are sent, as by a bad cable.
    Garbage,
    /// A frame of that generation is sent that is whole and wrong.
    Forged(Forgery, u32),
}

/// What is wrong about a frame that has the right checksum: what a member sends that lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// It belongs to an operation that no rank will ever come to.
    Operation,
    /// It belongs to a group that no rank has formed.
    Group,
    /// It says that more bytes follow than ever do.
    Length,
    /// It says goodbye, and its sender stays.
    Farewell,
}

impl LinkFault {
    /// The bytes that the peer gets because of it.
    pub(crate) fn bytes(self) -> Vec<u8> {
        match self {
            LinkFault::Cut | LinkFault::CutOneWay => Vec::new(),
            LinkFault::Garbage => vec![0xa5; HEADER],
            LinkFault::Forged(forgery, generation) => forgery.frame(generation),
        }
    }
}

impl Forgery {
    /// All of them.
    pub const ALL: [Forgery; 4] = [Forgery::Operation, Forgery::Group, Forgery::Length, Forgery::Farewell];

    /// Such a frame of that generation.
    pub fn frame(self, generation: u32) -> Vec<u8> {
        let tag = Tag { generation, operation: u64::MAX >> 1, ..Tag::default() };
        let payload = b"forged";
        let header = match self {
            Forgery::Operation => Header::data(tag, 0, payload),
            Forgery::Group => Header::data(Tag { group: u32::MAX, ..tag }, 0, payload),
            Forgery::Length => Header { length: 1 << 20, ..Header::data(tag, 0, payload) },
            Forgery::Farewell => return Header::farewell(generation, Departure::Done).encode().to_vec(),
        };
        [&header.encode()[..], payload].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;

    /// A receiver has no way to tell a forged frame from another by its bytes.
    #[test]
    fn forged_frames_are_whole() {
        for forgery in [Forgery::Operation, Forgery::Group] {
            let frame = forgery.frame(7);
            let header = Header::decode(&frame).unwrap();
            assert_eq!((header.kind, header.tag.generation), (Kind::Data, 7));
            assert_eq!(header, Header::data(header.tag, header.chunk, &frame[HEADER..]));
        }
        let farewell = Header::decode(&Forgery::Farewell.frame(7)).unwrap();
        assert_eq!(farewell.departure(), Some(Departure::Done));
        assert!(Header::decode(&Forgery::Length.frame(7)).unwrap().length as usize > b"forged".len());
    }
}
