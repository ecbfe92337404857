//! Letters: messages of any length that leave without waiting and arrive when they arrive.
//!
//! Collectives are agreed steps; gossip is not. A [`Post`] keeps what is on its way from and to each rank and moves it
//! on whenever its owner has a moment ([`Post::progress`]). Letters between two ranks arrive in the order in which they
//! were sent. Letters and collectives share the connections, so before a collective everybody must [`Post::drain`]:
//! then nothing is on its way any more, and what has arrived waits in the mailbox.

use crate::transport::{Cause, Company, Fault, Incoming, Interest, Moved, Outgoing, Tag, Transport, Vigil};
use crate::wire::tensor;
use std::collections::VecDeque;
use std::time::Duration;

/// The operation number of letters; no collective ever gets as far.
pub(crate) const LETTERS: u64 = u64::MAX;

/// Bytes of the frame that announces a letter: its subject and its length.
const ENVELOPE: usize = 12;

/// Most bytes of a frame: a longer letter travels in several.
const PIECE: usize = 64 << 20;

/// The subject of the letter that says that no more will come for now.
const LAST: u32 = u32::MAX;

/// Letters that may wait for one rank. Who does not read for so long has more pressing business.
const QUEUE: usize = 4;

/// A letter that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Who sent it.
    pub from: usize,
    /// What it is about, as the sender says.
    pub subject: u32,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// All letters of a rank.
pub struct Post {
    tag: Tag,
    /// The longest letter that is accepted.
    limit: usize,
    outgoing: Vec<VecDeque<Parcel>>,
    incoming: Vec<Arriving>,
    mailbox: VecDeque<Letter>,
    /// Ranks that have said that no more will come.
    silent: Vec<bool>,
}

struct Parcel {
    envelope: [u8; ENVELOPE],
    announced: bool,
    bytes: Vec<u8>,
    /// Up to where they have left.
    position: usize,
}

#[derive(Default)]
struct Arriving {
    envelope: [u8; ENVELOPE],
    /// Subject and memory, once announced.
    letter: Option<(u32, Vec<u8>)>,
    /// Up to where it has arrived.
    position: usize,
}

/// The frame of a letter that begins at `position`: its number behind the announcement, and its bytes.
fn piece(position: usize, length: usize) -> (u32, std::ops::Range<usize>) {
    (1 + (position / PIECE) as u32, position..length.min(position + PIECE))
}

impl Post {
    /// For a group of so many; longer letters than `limit` are refused.
    pub fn new(world: usize, generation: u32, limit: usize) -> Post {
        Post {
            tag: Tag { generation, operation: LETTERS, group: 0, tensor: tensor("letters") },
            limit,
            outgoing: (0..world).map(|_| VecDeque::new()).collect(),
            incoming: (0..world).map(|_| Arriving::default()).collect(),
            mailbox: VecDeque::new(),
            silent: vec![false; world],
        }
    }

    /// Whether a letter to that rank would leave soon; one that does not read gets no more for now.
    pub fn has_room(&self, to: usize) -> bool {
        self.outgoing.get(to).is_some_and(|queue| queue.len() < QUEUE)
    }

    /// Puts a letter on its way; [`Post::progress`] takes it there.
    pub fn send(&mut self, to: usize, subject: u32, bytes: Vec<u8>) {
        let mut envelope = [0; ENVELOPE];
        envelope[..4].copy_from_slice(&subject.to_le_bytes());
        envelope[4..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        if let Some(queue) = self.outgoing.get_mut(to) {
            queue.push_back(Parcel { envelope, announced: false, bytes, position: 0 });
        }
    }

    /// The next letter that has arrived.
    pub fn take(&mut self) -> Option<Letter> {
        self.mailbox.pop_front()
    }

    /// Moves on what can be moved without waiting; says whether anything did.
    pub fn progress(&mut self, transport: &mut dyn Transport) -> Result<bool, Fault> {
        let mut moved = false;
        let rank = transport.rank();
        for peer in (0..transport.world()).filter(|&peer| peer != rank) {
            moved |= self.push(transport, peer)?;
            moved |= self.pull(transport, peer)?;
        }
        Ok(moved)
    }

    fn push(&mut self, transport: &mut dyn Transport, to: usize) -> Result<bool, Fault> {
        let mut moved = false;
        while let Some(parcel) = self.outgoing[to].front_mut() {
            let (chunk, range) = piece(parcel.position, parcel.bytes.len());
            let end = range.end;
            let (chunk, bytes) = match parcel.announced {
                false => (0, &parcel.envelope[..]),
                true => (chunk, &parcel.bytes[range]),
            };
            let progress = transport.send(self.tag, Outgoing { to, chunk, bytes })?;
            moved |= progress != Moved::Nothing;
            match (progress, parcel.announced) {
                (Moved::Whole, false) => parcel.announced = true,
                (Moved::Whole, true) => parcel.position = end,
                _ => break,
            }
            if chunk > 0 && parcel.position == parcel.bytes.len() {
                self.outgoing[to].pop_front();
            }
        }
        Ok(moved)
    }

    fn pull(&mut self, transport: &mut dyn Transport, from: usize) -> Result<bool, Fault> {
        let mut moved = false;
        // After its last letter a rank goes on with something else, which is not ours to read.
        while !self.silent[from] {
            let arriving = &mut self.incoming[from];
            let (chunk, bytes) = match &mut arriving.letter {
                None => (0, &mut arriving.envelope[..]),
                Some((_, bytes)) => {
                    let (chunk, range) = piece(arriving.position, bytes.len());
                    (chunk, &mut bytes[range])
                }
            };
            let length = bytes.len();
            let progress = transport.receive(self.tag, Incoming { from, chunk, bytes }, Company::Several)?;
            moved |= progress != Moved::Nothing;
            if progress != Moved::Whole {
                break;
            }
            if let Some((_, bytes)) = &arriving.letter {
                arriving.position += length;
                if arriving.position < bytes.len() {
                    continue;
                }
            }
            arriving.position = 0;
            match arriving.letter.take() {
                None => self.incoming[from].letter = Some(self.announced(from)?),
                Some((LAST, _)) => self.silent[from] = true,
                Some((subject, bytes)) => self.mailbox.push_back(Letter { from, subject, bytes }),
            }
        }
        Ok(moved)
    }

    /// Subject of, and memory for, the letter that was announced.
    fn announced(&self, from: usize) -> Result<(u32, Vec<u8>), Fault> {
        let envelope = &self.incoming[from].envelope;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| envelope[at + byte]));
        let length = u64::from(word(4)) | u64::from(word(8)) << 32;
        match usize::try_from(length).ok().filter(|length| *length <= self.limit) {
            Some(length) => Ok((word(0), vec![0; length])),
            None => {
                let what = format!("a letter of {length} bytes, where {} are the most", self.limit);
                Err(Fault::of(from, Cause::Protocol(what)))
            }
        }
    }

    /// Waits until all letters of all ranks have arrived; every rank must do so at the same point of its program.
    pub fn drain(&mut self, transport: &mut dyn Transport, deadline: Duration) -> Result<(), Fault> {
        let (rank, world) = (transport.rank(), transport.world());
        let mut vigil = Vigil::new(transport.now(), deadline);
        let mut wanted = vec![Interest::default(); world];
        for to in (0..world).filter(|&to| to != rank) {
            self.send(to, LAST, Vec::new());
        }
        loop {
            let moved = self.progress(transport)?;
            for (peer, interest) in wanted.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
                *interest = Interest { read: !self.silent[peer], write: !self.outgoing[peer].is_empty() };
            }
            if wanted.iter().all(|interest| *interest == Interest::default()) {
                self.silent.fill(false);
                return Ok(());
            }
            transport.attend(&mut vigil, &wanted, moved)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Executor, Sum, ring};
    use crate::transport::sim::{Network, Simulation};
    use crate::transport::{Mem, mesh};

    const PLENTY: Duration = Duration::from_secs(60);

    /// Everybody writes to everybody, then adds something up, three times.
    fn chat<T: Transport>(mut transport: T) {
        let (rank, world) = (transport.rank(), transport.world());
        let mut post = Post::new(world, 1, 200_000);
        for round in 0..3u32 {
            let others = || (0..world).filter(|&to| to != rank);
            for to in others() {
                post.send(to, round, vec![rank as u8; 1000 * to]);
                post.progress(&mut transport).unwrap();
                post.send(to, round + 10, vec![rank as u8; 150_000]);
            }
            post.drain(&mut transport, PLENTY).unwrap();
            let mut letters: Vec<Letter> = std::iter::from_fn(|| post.take()).collect();
            letters.sort_by_key(|letter| letter.from);
            let short = |from: usize| Letter { from, subject: round, bytes: vec![from as u8; 1000 * rank] };
            let long = |from: usize| Letter { from, subject: round + 10, bytes: vec![from as u8; 150_000] };
            let expected: Vec<Letter> = others().flat_map(|from| [short(from), long(from)]).collect();
            assert!(letters == expected, "round {round}: letters are missing or out of order");
            let (schedule, tag) = (ring::all_reduce(rank, world), Tag { operation: u64::from(round), ..TAG });
            let mut sum = vec![1.0; 500];
            Executor::new().run(&schedule, &mut transport, tag, &mut sum, &Sum, PLENTY).unwrap();
            assert_eq!(sum, vec![world as f32; 500]);
        }
        transport.close();
    }

    const TAG: Tag = Tag { generation: 1, operation: 0, group: 0, tensor: 0 };

    fn each<T: Transport + 'static>(ranks: Vec<T>, program: fn(T)) {
        std::thread::scope(|scope| {
            ranks.into_iter().for_each(|rank| drop(scope.spawn(move || program(rank))));
        });
    }

    #[test]
    fn letters_arrive_in_order_and_make_way_for_collectives() {
        for world in [1, 2, 5] {
            each(mesh(world), chat);
            each(Simulation::new(Network::ordinary(world, 3), &[]).ranks(), chat);
        }
    }

    #[test]
    fn letters_travel_in_pieces() {
        assert_eq!(piece(0, 0), (1, 0..0));
        assert_eq!(piece(0, PIECE + 3), (1, 0..PIECE));
        assert_eq!(piece(PIECE, PIECE + 3), (2, PIECE..PIECE + 3));
        each(mesh(2), |mut transport: Mem| {
            let mut post = Post::new(2, 1, PIECE + 3);
            if transport.rank() == 1 {
                post.send(0, 7, vec![5; PIECE + 3]);
            }
            post.drain(&mut transport, PLENTY).unwrap();
            let letter = post.take();
            assert!(transport.rank() == 1 || letter.is_some_and(|letter| letter.bytes == vec![5; PIECE + 3]));
            transport.close();
        });
    }

    proptest::proptest! {
        /// Any envelope announces a letter that may come, or is its sender's fault.
        #[test]
        fn any_envelope_is_survived(envelope: [u8; ENVELOPE], long: bool) {
            let mut post = Post::new(2, 1, 1000);
            post.incoming[1].envelope = envelope;
            if !long {
                post.incoming[1].envelope[6..].fill(0);
            }
            match post.announced(1) {
                Ok((_, memory)) => assert!(memory.len() <= 1000),
                Err(fault) => assert!(matches!(fault, Fault { peer: Some(1), cause: Cause::Protocol(_), .. }), "{fault}"),
            }
        }
    }

    #[test]
    fn a_letter_that_is_too_long_is_its_senders_fault() {
        each(mesh(2), |mut transport: Mem| {
            let mut post = Post::new(2, 1, if transport.rank() == 0 { 10 } else { 100 });
            if transport.rank() == 1 {
                post.send(0, 7, vec![0; 11]);
            }
            let fault = post.drain(&mut transport, PLENTY).unwrap_err();
            match transport.rank() {
                0 => assert!(
                    matches!(fault, Fault { peer: Some(1), cause: Cause::Protocol(_), .. }),
                    "{fault}"
                ),
                _ => assert_eq!(fault.peer, Some(0), "{fault}"),
            }
        });
    }

    #[test]
    fn the_one_that_does_not_drain_is_named() {
        let mut ranks = mesh(3);
        let _idle = ranks.pop();
        each(ranks, |mut transport: Mem| {
            let mut post = Post::new(3, 1, 10);
            let fault = post.drain(&mut transport, Duration::from_millis(100)).unwrap_err();
            assert_eq!(fault.peer, Some(2), "{fault}");
        });
    }
}
