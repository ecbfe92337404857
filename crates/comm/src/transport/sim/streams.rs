//! Whose bytes are where: the streams between simulated ranks, one in each direction and generation of their group.

use super::Happening;
use super::world::{Rank, State, Turn, World};
use crate::wire::checksum;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// Bytes on the way or not yet read that a stream holds.
const WINDOW: usize = 256 << 10;

/// One direction between two ranks, in one generation of their group.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub generation: u32,
    pub from: usize,
    pub to: usize,
}

impl Way {
    /// The other direction.
    pub fn back(self) -> Way {
        Way { from: self.to, to: self.from, ..self }
    }
}

/// One of them.
#[derive(Default)]
pub(super) struct Stream {
    pieces: VecDeque<Piece>,
    /// Bytes that were sent and not yet read.
    held: usize,
    count: u64,
    /// When the link is through with what was sent.
    passed: Duration,
    last_arrival: Duration,
    closed: Option<Duration>,
}

/// Bytes that travel together.
struct Piece {
    arrival: Duration,
    bytes: VecDeque<u8>,
    /// Nobody sent them, so nobody waits until they are read.
    forged: bool,
}

impl World {
    /// There are streams between the ranks of a generation from now on; those of the dead and the gone are at their end.
    pub fn lay(&self, generation: u32) {
        let mut state = self.lock();
        let (size, now) = (self.size, state.now);
        if state.meshes.contains_key(&generation) {
            return;
        }
        let ended = |rank: &Rank| rank.dead || rank.turn == Turn::Gone;
        let closed: Vec<bool> = state.ranks.iter().map(ended).collect();
        let stream = |from: usize| Stream { closed: closed[from].then_some(now), ..Stream::default() };
        let streams = (0..size * size).map(|index| stream(index / size)).collect();
        state.meshes.insert(generation, streams);
    }

    /// Puts bytes on their way.
    pub(super) fn carry(&self, state: &mut State, way: Way, bytes: VecDeque<u8>, forged: bool) {
        let transmission = self.network.transmission(bytes.len());
        let start = state.ranks[way.from].sending.max(state.now);
        let sent = start + transmission;
        state.ranks[way.from].sending = sent;
        if state.is_cut(way.from, way.to) {
            return;
        }
        let received = state.ranks[way.to].receiving + transmission;
        let stream = self.stream(state, way);
        stream.passed = stream.passed.max(start) + self.network.passage(way.from, way.to, bytes.len());
        let delay = self.network.delay(way.from, way.to, stream.count);
        let arrival = (sent.max(stream.passed) + delay).max(received).max(stream.last_arrival);
        // All connections of a rank share what it can take; what a link of its own kind holds back holds up no other.
        let taken = match self.network.links.contains_key(&(way.from, way.to)) {
            true => (sent + self.network.latency).max(received),
            false => arrival,
        };
        stream.count += 1;
        stream.held += if forged { 0 } else { bytes.len() };
        stream.last_arrival = arrival;
        stream.pieces.push_back(Piece { arrival, bytes, forged });
        state.ranks[way.to].receiving = taken;
        state.ring(way.to, arrival);
    }

    /// Ends a stream: the other side notices when all that was sent before has arrived.
    pub(super) fn end(&self, state: &mut State, way: Way) {
        let (now, cut) = (state.now, state.is_cut(way.from, way.to));
        let stream = self.stream(state, way);
        if way.from == way.to || stream.closed.is_some() || cut {
            return;
        }
        let noticed = (now + self.network.delay(way.from, way.to, stream.count)).max(stream.last_arrival);
        stream.closed = Some(noticed);
        state.note(Happening::Closed { from: way.from, to: way.to });
        state.ring(way.to, noticed);
    }

    /// Ends all streams of a rank, in one generation or in all.
    pub(super) fn end_all(&self, state: &mut State, from: usize, generation: Option<u32>) {
        let all: Vec<u32> = state.meshes.keys().copied().collect();
        for generation in all.into_iter().filter(|number| generation.is_none_or(|wanted| wanted == *number)) {
            (0..self.size).for_each(|to| self.end(state, Way { generation, from, to }));
        }
    }

    fn stream<'a>(&self, state: &'a mut State, way: Way) -> &'a mut Stream {
        let size = self.size;
        let empty = || (0..size * size).map(|_| Stream::default()).collect();
        &mut state.meshes.entry(way.generation).or_insert_with(empty)[way.from * size + way.to]
    }

    pub fn write(&self, way: Way, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.turn(way.from);
        let (now, dead) = (state.now, state.ranks[way.from].dead);
        let deaf = self.stream(&mut state, way.back()).closed.is_some_and(|closed| closed <= now);
        let stream = self.stream(&mut state, way);
        if stream.closed.is_some() || deaf || dead {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(WINDOW.saturating_sub(stream.held));
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let checksum = checksum(0, &bytes[..count]);
        state.note(Happening::Sent { from: way.from, to: way.to, bytes: count, checksum });
        self.carry(&mut state, way, bytes[..count].iter().copied().collect(), false);
        Ok(count)
    }

    pub fn read(&self, way: Way, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.turn(way.to);
        if state.ranks[way.to].dead {
            // What it has not read by now it never will.
            return Ok(0);
        }
        let now = state.now;
        let stream = self.stream(&mut state, way);
        let Some(piece) = stream.pieces.front_mut().filter(|piece| piece.arrival <= now) else {
            let ended = stream.closed.is_some_and(|closed| closed <= now && stream.pieces.is_empty());
            return if ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        };
        let count = io::Read::read(&mut piece.bytes, buffer)?;
        stream.held -= if piece.forged { 0 } else { count };
        if piece.bytes.is_empty() {
            stream.pieces.pop_front();
        }
        let room = now + self.network.latency(way.to, way.from);
        state.ring(way.from, room);
        Ok(count)
    }

    /// All that a stream still holds, arrived or not.
    pub fn unread(&self, way: Way) -> Vec<u8> {
        let mut state = self.turn(way.to);
        if state.ranks[way.to].dead {
            return Vec::new();
        }
        let pieces = self.stream(&mut state, way).pieces.iter();
        pieces.flat_map(|piece| piece.bytes.iter().copied()).collect()
    }

    pub fn is_drained(&self, way: Way) -> bool {
        let mut state = self.turn(way.from);
        self.network.buffered || self.stream(&mut state, way).held == 0
    }

    /// Whether the stream has ended, as the receiver sees it.
    pub fn has_hung_up(&self, way: Way) -> bool {
        let mut state = self.turn(way.to);
        let now = state.now;
        way.from != way.to && self.stream(&mut state, way).closed.is_some_and(|closed| closed <= now)
    }

    pub fn close(&self, way: Way) {
        let mut state = self.turn(way.from);
        self.end(&mut state, way);
    }

    /// A rank's transport is gone, and with it its streams in that generation.
    pub fn disconnect(&self, rank: usize, generation: u32) {
        let mut state = self.turn(rank);
        self.end_all(&mut state, rank, Some(generation));
    }

    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        let way = Way { generation: 0, from, to };
        self.carry(&mut self.lock(), way, bytes.iter().copied().collect(), true);
    }
}

#[cfg(test)]
mod tests {
    use crate::transport::sim::{Link, Network, Simulation, Trace};
    use crate::transport::{Incoming, Outgoing, Tag, Transport};
    use crate::wire::HEADER;
    use std::collections::BTreeMap;
    use std::time::Duration;

    const BYTES: usize = 100_000;
    const TAG: Tag = Tag { generation: 1, operation: 1, group: 0, tensor: 0 };

    /// Ranks 0 and 1 send the same to rank 2; when it has both, one after the other.
    fn deliver(links: &[((usize, usize), Link)]) -> (Vec<Duration>, Trace) {
        let network = Network {
            links: BTreeMap::from_iter(links.iter().copied()),
            jitter: 0.0,
            bandwidth: 1e9,
            buffered: true,
            ..Network::ordinary(3, 1)
        };
        let simulation = Simulation::new(network, &[]);
        let program = |mut rank: crate::transport::sim::Sim| {
            let mut arrivals = Vec::new();
            let deadline = Duration::from_secs(60);
            match rank.rank() {
                2 => {
                    for from in [1, 0] {
                        let (chunk, mut bytes) = (0, vec![0; BYTES]);
                        let incoming = Incoming { from, chunk, bytes: &mut bytes };
                        rank.transfer(TAG, &[], &mut [incoming], deadline).unwrap();
                        arrivals.push(rank.now());
                    }
                }
                _ => {
                    let outgoing = Outgoing { to: 2, chunk: 0, bytes: &[7; BYTES] };
                    rank.transfer(TAG, &[outgoing], &mut [], deadline).unwrap();
                }
            }
            rank.close();
            arrivals
        };
        let arrivals = std::thread::scope(|scope| {
            let threads: Vec<_> =
                simulation.ranks().into_iter().map(|rank| scope.spawn(move || program(rank))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        (arrivals, simulation.trace())
    }

    #[test]
    fn a_slow_link_takes_what_it_should_and_holds_up_no_other() {
        let frame = (BYTES + HEADER) as f64;
        let close = |time: Duration, seconds: f64| (time.as_secs_f64() - seconds).abs() < 1e-6;
        // Both at once: 50 us, and what they share at the receiver.
        let (alike, _) = deliver(&[]);
        assert!(close(alike[1], 50e-6 + 2.0 * frame / 1e9), "{alike:?}");
        let slow = Link { latency: Some(Duration::from_millis(20)), bandwidth: Some(1e6) };
        let (arrivals, trace) = deliver(&[((0, 2), slow)]);
        assert!(arrivals[0] <= alike[1], "{arrivals:?}");
        assert!(close(arrivals[1], 20e-3 + frame / 1e6), "{arrivals:?}");
        // The other direction is another link.
        assert_eq!(deliver(&[((2, 0), slow)]).0, alike);
        assert!(deliver(&[((0, 2), slow)]).1 == trace, "the same again");
    }
}
