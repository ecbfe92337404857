//! Who runs, and whose bytes are where: the only state of a simulation, behind one lock.
//!
//! A rank is running, waiting until a moment, or gone. When nobody runs, time jumps to the moment at which the first
//! wait ends (or the first mishap is due) and that rank goes on. A rank that waits is woken early by bells: moments at
//! which something will have happened to one of its streams.

use super::network::mix;
use super::{Entry, Happening, Kind, Mishap, Network, Trace};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes on the way or not yet read that a stream holds.
const WINDOW: usize = 256 << 10;

/// How long, in real time, an unordered group waits for ranks that have not come.
const PATIENCE: Duration = Duration::from_millis(100);

/// The simulated world.
pub(super) struct World {
    network: Network,
    state: Mutex<State>,
    /// One for each rank.
    turns: Vec<Condvar>,
}

struct State {
    now: Duration,
    ranks: Vec<Rank>,
    /// `from * world + to`.
    streams: Vec<Stream>,
    /// The earliest last.
    mishaps: Vec<Mishap>,
    trace: Vec<Entry>,
}

#[derive(Clone, Copy, PartialEq)]
enum Turn {
    /// Has not come yet; only in unordered groups. Time stands still for it, but not for ever.
    Absent,
    /// Nobody waits for it any more, but it may still come.
    Idle,
    Running,
    /// Until then, or until a bell rings.
    Waiting(Duration),
    /// Until then, whatever happens.
    Sleeping(Duration),
    Gone,
}

struct Rank {
    turn: Turn,
    bells: BinaryHeap<Reverse<Duration>>,
    /// Until when its connection is busy sending, and receiving.
    sending: Duration,
    receiving: Duration,
    stopped_until: Duration,
    slowness: f64,
    dead: bool,
}

#[derive(Default)]
struct Stream {
    pieces: VecDeque<Piece>,
    /// Bytes that were sent and not yet read.
    held: usize,
    count: u64,
    last_arrival: Duration,
    closed: Option<Duration>,
    cut: bool,
}

/// Bytes that travel together.
struct Piece {
    arrival: Duration,
    bytes: VecDeque<u8>,
    /// Nobody sent them, so nobody waits until they are read.
    forged: bool,
}

impl World {
    pub fn new(network: Network, mishaps: &[Mishap], ordered: bool) -> Arc<World> {
        let turn = if ordered { Turn::Waiting(Duration::ZERO) } else { Turn::Absent };
        let rank = |_| Rank {
            turn,
            bells: BinaryHeap::new(),
            sending: Duration::ZERO,
            receiving: Duration::ZERO,
            stopped_until: Duration::ZERO,
            slowness: 1.0,
            dead: false,
        };
        let mut mishaps = mishaps.to_vec();
        mishaps.sort_by_key(|mishap| Reverse(mishap.at));
        let state = State {
            now: Duration::ZERO,
            ranks: (0..network.world).map(rank).collect(),
            streams: (0..network.world * network.world).map(|_| Stream::default()).collect(),
            mishaps,
            trace: Vec::new(),
        };
        let turns = (0..network.world).map(|_| Condvar::new()).collect();
        let world = World { network, state: Mutex::new(state), turns };
        world.advance(&mut world.lock());
        Arc::new(world)
    }

    pub fn size(&self) -> usize {
        self.network.world
    }

    pub fn trace(&self) -> Trace {
        Trace { entries: self.lock().trace.clone() }
    }

    /// A thread that panicked holds nothing half-changed here: every change under the lock is complete in itself.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, once it is this rank's turn.
    fn turn(&self, rank: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if matches!(state.ranks[rank].turn, Turn::Absent | Turn::Idle) {
            state.ranks[rank].turn = Turn::Running;
        }
        while matches!(state.ranks[rank].turn, Turn::Waiting(_) | Turn::Sleeping(_)) {
            if !state.is_anyone_absent() {
                state = self.turns[rank].wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let woken =
                self.turns[rank].wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            state = woken.0;
            if woken.1.timed_out() {
                let absent = state.ranks.iter_mut().filter(|rank| rank.turn == Turn::Absent);
                absent.for_each(|rank| rank.turn = Turn::Idle);
                self.advance(&mut state);
            }
        }
        state
    }

    pub fn now(&self, rank: usize) -> Duration {
        self.turn(rank).now
    }

    /// From here on, what happens to a rank's streams ends its next wait.
    pub fn mark(&self, rank: usize) {
        let mut state = self.turn(rank);
        let now = state.now;
        let bells = &mut state.ranks[rank].bells;
        while bells.peek().is_some_and(|bell| bell.0 <= now) {
            bells.pop();
        }
    }

    /// Gives way to the others until a bell rings, or for so long.
    pub fn wait(&self, rank: usize, timeout: Duration) {
        let mut state = self.turn(rank);
        let end = state.now + timeout;
        let until = state.ranks[rank].bells.peek().map_or(end, |bell| bell.0.min(end));
        self.give_way(&mut state, rank, Turn::Waiting(until));
        drop(state);
        drop(self.turn(rank));
    }

    /// Gives way to the others for so long, whatever happens.
    pub fn sleep(&self, rank: usize, duration: Duration) {
        let mut state = self.turn(rank);
        let end = state.now + duration;
        self.give_way(&mut state, rank, Turn::Sleeping(end));
        drop(state);
        drop(self.turn(rank));
    }

    /// Lets pass what so many floating-point operations take this rank.
    pub fn charge(&self, rank: usize, operations: u64) {
        let slowness = self.turn(rank).ranks[rank].slowness;
        self.sleep(rank, self.network.computation(operations).mul_f64(slowness));
    }

    fn give_way(&self, state: &mut State, rank: usize, turn: Turn) {
        if state.ranks[rank].turn != Turn::Gone {
            state.ranks[rank].turn = turn;
            self.advance(state);
        }
    }

    /// If nobody runs, lets the next one.
    fn advance(&self, state: &mut State) {
        loop {
            if state.is_anyone_absent() || state.ranks.iter().any(|rank| rank.turn == Turn::Running) {
                return;
            }
            let waits = state.ranks.iter().enumerate().filter_map(|(index, rank)| match rank.turn {
                Turn::Waiting(until) | Turn::Sleeping(until) => Some((until.max(rank.stopped_until), index)),
                _ => None,
            });
            let Some((time, rank)) = waits.min() else { return };
            if let Some(mishap) = state.mishaps.pop_if(|mishap| mishap.at <= time) {
                state.now = state.now.max(mishap.at);
                self.befall(state, mishap.kind);
                continue;
            }
            state.now = state.now.max(time);
            state.ranks[rank].turn = Turn::Running;
            state.note(Happening::Run(rank));
            self.turns[rank].notify_all();
            return;
        }
    }

    fn befall(&self, state: &mut State, kind: Kind) {
        let world = self.size();
        match &kind {
            Kind::Kill { rank } => {
                state.ranks[*rank].dead = true;
                (0..world).for_each(|peer| self.end(state, *rank, peer));
                state.ring(*rank, state.now);
            }
            Kind::Stop { rank, duration } => state.ranks[*rank].stopped_until = state.now + *duration,
            Kind::Slow { rank, factor } => state.ranks[*rank].slowness *= factor.max(0.0),
            Kind::Cut { one, other } => {
                state.streams[one * world + other].cut = true;
                state.streams[other * world + one].cut = true;
            }
            Kind::Garbage { from, to } => {
                let words = (0..8).flat_map(|word| mix(self.network.seed ^ word).to_le_bytes());
                self.carry(state, *from, *to, words.collect(), true);
            }
        }
        state.note(Happening::Mishap(kind));
    }

    /// Puts bytes on their way.
    fn carry(&self, state: &mut State, from: usize, to: usize, bytes: VecDeque<u8>, forged: bool) {
        let transmission = self.network.transmission(bytes.len());
        let sent = state.ranks[from].sending.max(state.now) + transmission;
        state.ranks[from].sending = sent;
        let stream = &mut state.streams[from * self.size() + to];
        if stream.cut {
            return;
        }
        let delay = self.network.delay(from, to, stream.count);
        let arrival = (sent + delay).max(state.ranks[to].receiving + transmission).max(stream.last_arrival);
        stream.count += 1;
        stream.held += if forged { 0 } else { bytes.len() };
        stream.last_arrival = arrival;
        stream.pieces.push_back(Piece { arrival, bytes, forged });
        state.ranks[to].receiving = arrival;
        state.ring(to, arrival);
    }

    /// Ends a stream: the other side notices when all that was sent before has arrived.
    fn end(&self, state: &mut State, from: usize, to: usize) {
        let stream = &mut state.streams[from * self.size() + to];
        if from == to || stream.closed.is_some() || stream.cut {
            return;
        }
        let noticed = (state.now + self.network.delay(from, to, stream.count)).max(stream.last_arrival);
        stream.closed = Some(noticed);
        state.note(Happening::Closed { from, to });
        state.ring(to, noticed);
    }

    pub fn write(&self, from: usize, to: usize, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.turn(from);
        let stream = &state.streams[from * self.size() + to];
        let deaf = state.streams[to * self.size() + from].closed.is_some_and(|closed| closed <= state.now);
        if stream.closed.is_some() || deaf || state.ranks[from].dead {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(WINDOW.saturating_sub(stream.held));
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let checksum = crc32c::crc32c(&bytes[..count]);
        state.note(Happening::Sent { from, to, bytes: count, checksum });
        self.carry(&mut state, from, to, bytes[..count].iter().copied().collect(), false);
        Ok(count)
    }

    pub fn read(&self, from: usize, to: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.turn(to);
        let (now, dead) = (state.now, state.ranks[to].dead);
        let stream = &mut state.streams[from * self.size() + to];
        let Some(piece) = stream.pieces.front_mut().filter(|piece| piece.arrival <= now) else {
            let ended = dead || stream.closed.is_some_and(|closed| closed <= now && stream.pieces.is_empty());
            return if ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        };
        let count = io::Read::read(&mut piece.bytes, buffer)?;
        stream.held -= if piece.forged { 0 } else { count };
        if piece.bytes.is_empty() {
            stream.pieces.pop_front();
        }
        let room = now + self.network.latency;
        state.ring(from, room);
        Ok(count)
    }

    /// All that a stream still holds, arrived or not.
    pub fn unread(&self, from: usize, to: usize) -> Vec<u8> {
        let state = self.turn(to);
        let pieces = state.streams[from * self.size() + to].pieces.iter();
        pieces.flat_map(|piece| piece.bytes.iter().copied()).collect()
    }

    pub fn is_drained(&self, from: usize, to: usize) -> bool {
        let state = self.turn(from);
        self.network.buffered || state.streams[from * self.size() + to].held == 0
    }

    pub fn has_hung_up(&self, peer: usize, rank: usize) -> bool {
        let state = self.turn(rank);
        let closed = state.streams[peer * self.size() + rank].closed;
        peer != rank && closed.is_some_and(|closed| closed <= state.now)
    }

    pub fn close(&self, from: usize, to: usize) {
        let mut state = self.turn(from);
        self.end(&mut state, from, to);
    }

    /// A rank's transport is gone, and with it all its streams.
    pub fn leave(&self, rank: usize) {
        let mut state = self.turn(rank);
        (0..self.size()).for_each(|peer| self.end(&mut state, rank, peer));
        state.ranks[rank].turn = Turn::Gone;
        self.advance(&mut state);
    }

    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        self.carry(&mut self.lock(), from, to, bytes.iter().copied().collect(), true);
    }
}

impl State {
    fn is_anyone_absent(&self) -> bool {
        self.ranks.iter().any(|rank| rank.turn == Turn::Absent)
    }

    fn note(&mut self, happening: Happening) {
        self.trace.push(Entry { time: self.now, happening });
    }

    /// Something will have happened to one of a rank's streams at that moment.
    fn ring(&mut self, rank: usize, at: Duration) {
        let rank = &mut self.ranks[rank];
        rank.bells.push(Reverse(at));
        if let Turn::Waiting(until) = &mut rank.turn {
            *until = at.min(*until);
        }
    }
}
