//! Whose bytes are where: the streams between simulated ranks, one in each direction and generation of their group.

use super::Happening;
use super::world::{Rank, State, Turn, World};
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
        let sent = state.ranks[way.from].sending.max(state.now) + transmission;
        state.ranks[way.from].sending = sent;
        if state.is_cut(way.from, way.to) {
            return;
        }
        let received = state.ranks[way.to].receiving + transmission;
        let stream = self.stream(state, way);
        let delay = self.network.delay(way.from, way.to, stream.count);
        let arrival = (sent + delay).max(received).max(stream.last_arrival);
        stream.count += 1;
        stream.held += if forged { 0 } else { bytes.len() };
        stream.last_arrival = arrival;
        stream.pieces.push_back(Piece { arrival, bytes, forged });
        state.ranks[way.to].receiving = arrival;
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
        let checksum = crc32c::crc32c(&bytes[..count]);
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
        let room = now + self.network.latency;
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
