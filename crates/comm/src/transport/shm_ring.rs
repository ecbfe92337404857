//! A byte stream between two processes of one host, as a pair of ring buffers in shared memory.
//!
//! Each side owns a segment that the other can only read: its own counters and the bytes it sends. So a faulty rank,
//! or one that resumes after it was declared lost, corrupts nothing but its own data. The counters of the other side
//! are checked before they are used. The end of the peer is detected by its connection.

use super::link::Link;
use crate::host::{self, EventFd, LocalPeer, Segment, Writers};
use crate::linux::COUNTER_BYTES;
use crate::protocol::{self, InvalidCounter, StreamCounters};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Offsets of the counters: far enough apart that no two share a cache line.
const WRITTEN: usize = 0;
const READ: usize = 128;
const ASLEEP: usize = 256;
/// Offset of the ring's bytes.
const BYTES: usize = COUNTER_BYTES;

/// Bytes of one ring: what fits a core's cache, less in large groups.
fn capacity(group: usize) -> usize {
    let share = (8 << 20) / group.max(1);
    (1 << share.ilog2()).clamp(16 << 10, 256 << 10)
}

/// This side of a ring, before the segment of the other side has arrived.
pub struct RingOffer {
    peer: LocalPeer,
    mine: Segment,
}

/// Refuses a group of this many ranks on one host if the rings between all pairs do not fit into memory.
pub fn check_room(group: usize) -> io::Result<()> {
    let one = BYTES + capacity(group);
    host::check_room(one, one * group * group.saturating_sub(1))
}

impl RingOffer {
    /// Creates this side's segment and sends it to the peer, with the eventfd that wakes this rank.
    pub fn new(peer: &LocalPeer, group: usize, wakeup: &EventFd) -> io::Result<RingOffer> {
        let (mine, descriptor) = Segment::create(BYTES + capacity(group), Writers::Owner)?;
        peer.send_fds(&[descriptor.as_fd(), wakeup.as_fd()])?;
        Ok(RingOffer { peer: peer.clone(), mine })
    }

    /// Receives the segment of the other side.
    pub fn accept(self, timeout: Duration) -> io::Result<ShmRing> {
        let mut files = self.peer.receive_fds(2, timeout)?;
        let wakeup = files.pop().ok_or(ErrorKind::InvalidData)?;
        let theirs = files.pop().ok_or(ErrorKind::InvalidData)?;
        let theirs = Segment::attach(&theirs, self.mine.length(), Writers::Owner)?;
        let RingOffer { peer, mine } = self;
        let segments = SegmentPair { mine, theirs, wakeup: EventFd::from_fd(wakeup) };
        Ok(ShmRing { peer, segments: Arc::new(segments) })
    }
}

/// A stream to and from one local peer.
pub struct ShmRing {
    peer: LocalPeer,
    segments: Arc<SegmentPair>,
}

struct SegmentPair {
    /// Written by this rank, read by the peer.
    mine: Segment,
    /// Written by the peer.
    theirs: Segment,
    /// Wakes the peer.
    wakeup: EventFd,
}

impl SegmentPair {
    fn capacity(&self) -> usize {
        self.mine.length() - BYTES
    }

    fn outgoing(&self) -> StreamCounters<'_, AtomicU64> {
        StreamCounters { mine: self.mine.counter(WRITTEN), theirs: self.theirs.counter(READ) }
    }

    fn incoming(&self) -> StreamCounters<'_, AtomicU64> {
        StreamCounters { mine: self.mine.counter(READ), theirs: self.theirs.counter(WRITTEN) }
    }

    /// Writes as many bytes as there is room for.
    fn write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let (at, room) = self.outgoing().room(self.capacity() as u64).map_err(invalid_counter)?;
        let mut count = 0;
        for buffer in buffers {
            let part = buffer.len().min(room as usize - count);
            self.each_piece(at + count as u64, part, |place, done, length| {
                // SAFETY: `length` bytes at `place` are inside this rank's segment and, by the counters, not read by
                // the peer before they are published below; the buffer has as many from `done` on.
                unsafe {
                    let to = self.mine.base().add(BYTES + place);
                    buffer[done..].as_ptr().copy_to_nonoverlapping(to, length);
                }
            });
            count += part;
        }
        self.publish(count, &self.outgoing())
    }

    /// Reads as many bytes as there are.
    fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (at, unread) = self.incoming().unread(self.capacity() as u64).map_err(invalid_counter)?;
        let mut count = 0;
        for buffer in buffers {
            let part = buffer.len().min(unread as usize - count);
            self.each_piece(at + count as u64, part, |place, done, length| {
                // SAFETY: `length` bytes at `place` are inside the peer's segment and, by the counters, not written
                // before they are released below; the buffer has room for as many from `done` on.
                unsafe {
                    let from = self.theirs.base().add(BYTES + place);
                    buffer[done..].as_mut_ptr().copy_from_nonoverlapping(from, length);
                }
            });
            count += part;
        }
        self.publish(count, &self.incoming())
    }

    /// Calls `piece` for the one or two contiguous pieces of a range of the stream: offset in the ring, bytes of the
    /// range before it, length.
    fn each_piece(&self, at: u64, length: usize, mut piece: impl FnMut(usize, usize, usize)) {
        let place = (at % self.capacity() as u64) as usize;
        let first = length.min(self.capacity() - place);
        piece(place, 0, first);
        if first < length {
            piece(0, first, length - first);
        }
    }

    fn publish(&self, count: usize, counters: &StreamCounters<'_, AtomicU64>) -> io::Result<usize> {
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        counters.advance(count as u64);
        protocol::publish_change::<AtomicU64>();
        self.wake();
        Ok(count)
    }

    /// Wakes the peer if it sleeps. The change must have been published before.
    fn wake(&self) {
        if protocol::is_sleeping(self.theirs.counter(ASLEEP)) {
            self.wakeup.notify();
        }
    }
}

fn invalid_counter(_: InvalidCounter) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "its counters in shared memory are impossible")
}

impl ShmRing {
    /// A function that writes bytes to this stream as if this rank had sent them, for tests.
    #[doc(hidden)]
    pub fn injector(&self) -> impl Fn(&[u8]) -> io::Result<()> + use<> {
        let segments = Arc::clone(&self.segments);
        move |mut bytes| {
            while !bytes.is_empty() {
                bytes = &bytes[segments.write(&[IoSlice::new(bytes)])?..];
            }
            Ok(())
        }
    }

    pub(super) fn peer(&self) -> &LocalPeer {
        &self.peer
    }

    /// Wakes the peers that sleep.
    pub(super) fn wake_all<'a>(rings: impl Iterator<Item = &'a ShmRing>) {
        protocol::publish_change::<AtomicU64>();
        rings.for_each(|ring| ring.segments.wake());
    }

    /// Asks the peer to notify this rank of any change from now on.
    pub(super) fn request_notifications(&self) {
        protocol::announce_sleep(self.segments.mine.counter(ASLEEP));
    }

    pub(super) fn cancel_notifications(&self) {
        protocol::mark_awake(self.segments.mine.counter(ASLEEP));
    }
}

impl Read for ShmRing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.segments.read(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.segments.read(buffers)
    }
}

impl Write for ShmRing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.segments.write(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.segments.write(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for ShmRing {
    fn unread(&mut self) -> io::Result<Vec<u8>> {
        let (at, unread) =
            self.segments.incoming().unread(self.segments.capacity() as u64).map_err(invalid_counter)?;
        let mut bytes = vec![0; unread as usize];
        self.segments.each_piece(at, unread as usize, |place, done, length| {
            // SAFETY: inside the peer's segment; published bytes are not written before they are released.
            unsafe {
                let from = self.segments.theirs.base().add(BYTES + place);
                bytes[done..].as_mut_ptr().copy_from_nonoverlapping(from, length);
            }
        });
        Ok(bytes)
    }

    fn shutdown_write(&mut self) {
        self.peer.shutdown(Shutdown::Write);
    }
}

impl Drop for ShmRing {
    fn drop(&mut self) {
        self.peer.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Counter;
    use crate::transport::link::would_block;

    fn pair() -> (ShmRing, ShmRing) {
        let (one, other) = LocalPeer::pair().unwrap();
        let wakeup = EventFd::new().unwrap();
        let offers = [&one, &other].map(|side| RingOffer::new(side, 2, &wakeup).unwrap());
        let [one, other] = offers.map(|offer| offer.accept(Duration::from_secs(60)).unwrap());
        (one, other)
    }

    #[test]
    fn bytes_arrive_in_order_around_the_end_of_the_ring() {
        let (mut one, mut other) = pair();
        let capacity = one.segments.capacity();
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
        assert!(would_block(&other.read(&mut [0]).unwrap_err()));
        assert_eq!(one.write(&vec![1; capacity * 2]).unwrap(), capacity);
        assert!(would_block(&one.write(&[1]).unwrap_err()), "full");
        assert_eq!(other.unread().unwrap().len(), capacity, "not consumed");
        assert_eq!(other.read(&mut [0; 8]).unwrap(), 8);
    }

    #[test]
    fn impossible_counters_of_a_peer_are_errors() {
        let (one, mut other) = pair();
        one.segments.mine.counter(WRITTEN).release(u64::MAX / 2);
        for error in [other.read(&mut [0]).unwrap_err(), other.unread().unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
        one.segments.mine.counter(READ).release(1);
        assert_eq!(other.write(&[0]).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn rings_share_a_bounded_amount_of_memory() {
        assert_eq!((capacity(2), capacity(64), capacity(100_000)), (256 << 10, 128 << 10, 16 << 10));
    }
}
