//! A byte stream between two processes of one host, through memory that both have mapped.
//!
//! Each side owns a segment that the other can only read: its own counters and the bytes it sends. So a rank that
//! runs wild, or wakes up after it was given up, spoils nothing but its own words. What the other's counters say is
//! checked before it is used. That the other is gone is seen by its connection.

use super::links::Link;
use crate::host::{self, Bell, Neighbour, Segment, Writers};
use crate::linux::WORDS;
use crate::protocol::{self, Gauge, Impossible};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Counters lie far enough apart that no two of them share a line of any cache.
const WRITTEN: usize = 0;
const TAKEN: usize = 128;
const ASLEEP: usize = 256;
/// Where the bytes begin.
const BYTES: usize = WORDS;

/// The bytes under way to one neighbour: those that fit a core's cache, less if there are many neighbours.
fn capacity(group: usize) -> usize {
    let share = (8 << 20) / group.max(1);
    (1 << share.ilog2()).clamp(16 << 10, 256 << 10)
}

/// One side of a ring that the other has not been seen to accept yet.
pub struct Offer {
    neighbour: Neighbour,
    mine: Segment,
}

/// Whether a group of so many ranks of one host, each with a ring to every other, has room here.
pub fn check_room(group: usize) -> io::Result<()> {
    let one = BYTES + capacity(group);
    host::check_room(one, one * group * group.saturating_sub(1))
}

impl Offer {
    /// Makes this side's memory and hands it over, with the bell that wakes this rank.
    pub fn new(neighbour: &Neighbour, group: usize, bell: &Bell) -> io::Result<Offer> {
        let (mine, descriptor) = Segment::create(BYTES + capacity(group), Writers::Owner)?;
        neighbour.hand(&[descriptor.as_fd(), bell.as_fd()])?;
        Ok(Offer { neighbour: neighbour.clone(), mine })
    }

    /// Takes the other side's.
    pub fn accept(self, patience: Duration) -> io::Result<Ring> {
        let mut files = self.neighbour.take(2, patience)?;
        let bell = files.pop().ok_or(ErrorKind::InvalidData)?;
        let theirs = files.pop().ok_or(ErrorKind::InvalidData)?;
        let theirs = Segment::attach(&theirs, self.mine.length(), Writers::Owner)?;
        let Offer { neighbour, mine } = self;
        let shared = Shared { mine, theirs, bell: Bell::of(bell) };
        Ok(Ring { neighbour, shared: Arc::new(shared) })
    }
}

/// A stream to and from one neighbour.
pub struct Ring {
    neighbour: Neighbour,
    shared: Arc<Shared>,
}

struct Shared {
    /// Written here, read by the neighbour.
    mine: Segment,
    /// Written by the neighbour.
    theirs: Segment,
    /// Wakes the neighbour.
    bell: Bell,
}

impl Shared {
    fn capacity(&self) -> usize {
        self.mine.length() - BYTES
    }

    fn outgoing(&self) -> Gauge<'_, AtomicU64> {
        Gauge { mine: self.mine.word(WRITTEN), theirs: self.theirs.word(TAKEN) }
    }

    fn incoming(&self) -> Gauge<'_, AtomicU64> {
        Gauge { mine: self.mine.word(TAKEN), theirs: self.theirs.word(WRITTEN) }
    }

    /// Puts bytes on the stream, as many as there is room for.
    fn put(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let (at, room) = self.outgoing().room(self.capacity() as u64).map_err(impossible)?;
        let mut count = 0;
        for buffer in buffers {
            let part = buffer.len().min(room as usize - count);
            self.each_piece(at + count as u64, part, |place, done, length| {
                // SAFETY: `length` bytes at `place` are inside this rank's segment and, as the gauge says, not to be
                // read by the neighbour before they are published below; the buffer has as many from `done` on.
                unsafe {
                    let to = self.mine.base().add(BYTES + place);
                    buffer[done..].as_ptr().copy_to_nonoverlapping(to, length);
                }
            });
            count += part;
        }
        self.moved(count, &self.outgoing())
    }

    /// Takes bytes off the stream, as many as there are.
    fn get(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (at, unread) = self.incoming().unread(self.capacity() as u64).map_err(impossible)?;
        let mut count = 0;
        for buffer in buffers {
            let part = buffer.len().min(unread as usize - count);
            self.each_piece(at + count as u64, part, |place, done, length| {
                // SAFETY: `length` bytes at `place` are inside the neighbour's segment and, as the gauge says, not to
                // be written before they are given back below; the buffer has room for as many from `done` on.
                unsafe {
                    let from = self.theirs.base().add(BYTES + place);
                    buffer[done..].as_mut_ptr().copy_from_nonoverlapping(from, length);
                }
            });
            count += part;
        }
        self.moved(count, &self.incoming())
    }

    /// The pieces of a stretch of the stream: where each lies, how much came before it, how long it is.
    fn each_piece(&self, at: u64, length: usize, mut piece: impl FnMut(usize, usize, usize)) {
        let place = (at % self.capacity() as u64) as usize;
        let first = length.min(self.capacity() - place);
        piece(place, 0, first);
        if first < length {
            piece(0, first, length - first);
        }
    }

    fn moved(&self, count: usize, gauge: &Gauge<'_, AtomicU64>) -> io::Result<usize> {
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        gauge.advance(count as u64);
        protocol::announce::<AtomicU64>();
        self.wake();
        Ok(count)
    }

    /// Wakes the neighbour if it sleeps; what it is woken for must have been announced.
    fn wake(&self) {
        if protocol::is_asleep(self.theirs.word(ASLEEP)) {
            self.bell.ring();
        }
    }
}

fn impossible(_: Impossible) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "its counters in shared memory are impossible")
}

impl Ring {
    /// A way to put bytes on this stream as if this rank had sent them, for tests.
    #[doc(hidden)]
    pub fn forger(&self) -> impl Fn(&[u8]) -> io::Result<()> + use<> {
        let shared = Arc::clone(&self.shared);
        move |mut bytes| {
            while !bytes.is_empty() {
                bytes = &bytes[shared.put(&[IoSlice::new(bytes)])?..];
            }
            Ok(())
        }
    }

    pub(super) fn neighbour(&self) -> &Neighbour {
        &self.neighbour
    }

    /// Lets neighbours look again if they sleep.
    pub(super) fn nudge<'a>(rings: impl Iterator<Item = &'a Ring>) {
        protocol::announce::<AtomicU64>();
        rings.for_each(|ring| ring.shared.wake());
    }

    /// Asks the neighbour to ring for anything that happens from now on.
    pub(super) fn doze(&self) {
        protocol::doze(self.shared.mine.word(ASLEEP));
    }

    /// No need to ring any more.
    pub(super) fn awake(&self) {
        protocol::awake(self.shared.mine.word(ASLEEP));
    }
}

impl Read for Ring {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.shared.get(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.shared.get(buffers)
    }
}

impl Write for Ring {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.shared.put(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.shared.put(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for Ring {
    fn last_words(&mut self) -> io::Result<Vec<u8>> {
        let (at, unread) =
            self.shared.incoming().unread(self.shared.capacity() as u64).map_err(impossible)?;
        let mut words = vec![0; unread as usize];
        self.shared.each_piece(at, unread as usize, |place, done, length| {
            // SAFETY: inside the neighbour's segment; what is published and not given back is not written.
            unsafe {
                let from = self.shared.theirs.base().add(BYTES + place);
                words[done..].as_mut_ptr().copy_from_nonoverlapping(from, length);
            }
        });
        Ok(words)
    }

    fn finish(&mut self) {
        self.neighbour.part(Shutdown::Write);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.neighbour.part(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Counter;
    use crate::transport::links::try_later;

    fn pair() -> (Ring, Ring) {
        let (one, other) = Neighbour::pair().unwrap();
        let bell = Bell::new().unwrap();
        let offers = [&one, &other].map(|side| Offer::new(side, 2, &bell).unwrap());
        let [one, other] = offers.map(|offer| offer.accept(Duration::from_secs(60)).unwrap());
        (one, other)
    }

    #[test]
    fn bytes_arrive_in_order_around_the_end_of_the_ring() {
        let (mut one, mut other) = pair();
        let capacity = one.shared.capacity();
        let (mut sent, mut received): (Vec<u8>, Vec<u8>) = Default::default();
        for round in 0..5u8 {
            let bytes: Vec<u8> = (0..capacity * 2 / 3).map(|index| index as u8 ^ round).collect();
            assert_eq!(one.write(&bytes).unwrap(), bytes.len());
            sent.extend(&bytes);
            let mut buffer = vec![0; bytes.len()];
            assert_eq!(other.read(&mut buffer).unwrap(), bytes.len());
            received.extend(&buffer);
        }
        assert_eq!(sent, received);
        assert!(try_later(&other.read(&mut [0]).unwrap_err()));
        assert_eq!(one.write(&vec![1; capacity * 2]).unwrap(), capacity);
        assert!(try_later(&one.write(&[1]).unwrap_err()), "full");
        assert_eq!(other.last_words().unwrap().len(), capacity, "left in place");
        assert_eq!(other.read(&mut [0; 8]).unwrap(), 8);
    }

    #[test]
    fn impossible_counters_of_a_neighbour_are_its_fault_and_no_crash() {
        let (one, mut other) = pair();
        one.shared.mine.word(WRITTEN).release(u64::MAX / 2);
        for error in [other.read(&mut [0]).unwrap_err(), other.last_words().unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
        one.shared.mine.word(TAKEN).release(1);
        assert_eq!(other.write(&[0]).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn rings_share_a_bounded_amount_of_memory() {
        assert_eq!((capacity(2), capacity(64), capacity(100_000)), (256 << 10, 128 << 10, 16 << 10));
    }
}
