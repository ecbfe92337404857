//! Who runs, and what befalls them: the only state of a simulation, behind one lock.
//!
//! A rank is running, waiting until a moment, or gone. When nobody runs, time jumps to the moment at which the first
//! wait ends (or the first mishap is due) and that rank goes on. A rank that waits is woken early by bells: moments at
//! which something will have happened to one of its streams.

use super::network::mix;
use super::streams::{Stream, Way};
use super::{Entry, Happening, Kind, Mishap, Network, Trace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long, in real time, an unordered group waits for ranks that have not come.
const PATIENCE: Duration = Duration::from_millis(100);

/// The simulated world.
pub(super) struct World {
    pub(super) network: Network,
    /// Ranks that are there at some time: those of the beginning and those who join.
    pub(super) size: usize,
    state: Mutex<State>,
    /// One for each rank.
    turns: Vec<Condvar>,
}

pub(super) struct State {
    pub(super) now: Duration,
    /// All ranks and, behind them, whoever watches over them, if anybody does.
    pub(super) ranks: Vec<Rank>,
    /// By generation of the group, `from * size + to`: what was sent in one never arrives in another.
    pub(super) meshes: BTreeMap<u32, Vec<Stream>>,
    /// Sender and receiver between which nothing gets through.
    cuts: BTreeSet<(usize, usize)>,
    /// The earliest last.
    mishaps: Vec<Mishap>,
    trace: Vec<Entry>,
}

/// In which order ranks run, and whether somebody watches over them.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    /// As threads happen to come: correct, but a repeat may differ.
    Loose,
    /// By virtual time, lower ranks first.
    Strict,
    /// The same, with one more behind the ranks that is no member of any group.
    Watched,
}

/// What has become of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// It was killed.
    pub is_dead: bool,
    /// Its thread has ended.
    pub is_gone: bool,
    /// It stands still.
    pub is_stopped: bool,
    /// It stands still inside a wait for others, and nobody can tell from its heartbeat.
    pub is_livelocked: bool,
    /// It was asked to leave.
    pub is_asked_to_leave: bool,
    /// How often it was told to lie.
    pub lies: u32,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Turn {
    /// Has not come yet; only in unordered groups. Time stands still for it, but not for ever.
    Absent,
    /// Nobody waits for it any more, but it may still come.
    Idle,
    Running,
    /// Until then, or until a bell rings.
    Waiting(Duration),
    /// Until then, whatever happens.
    Sleeping(Duration),
    /// Until it is killed.
    Livelocked,
    Gone,
}

pub(super) struct Rank {
    pub(super) turn: Turn,
    bells: BinaryHeap<Reverse<Duration>>,
    /// Until when its connection is busy sending, and receiving.
    pub(super) sending: Duration,
    pub(super) receiving: Duration,
    stopped_until: Duration,
    slowness: f64,
    pub(super) dead: bool,
    /// Its next wait for others does not end.
    livelocks: bool,
    /// Asked to leave.
    leaves: bool,
    lies: u32,
}

impl World {
    pub fn new(network: Network, mishaps: &[Mishap], order: Order) -> Arc<World> {
        let arrivals: BTreeMap<usize, Duration> = mishaps
            .iter()
            .filter_map(|mishap| match mishap.kind {
                Kind::Join { rank } => Some((rank, mishap.at)),
                _ => None,
            })
            .collect();
        let size = arrivals.keys().map(|rank| rank + 1).max().unwrap_or(0).max(network.world);
        let rank = |number: usize| Rank {
            turn: match (order, arrivals.get(&number)) {
                (Order::Loose, _) => Turn::Absent,
                // Whoever joins sleeps until then.
                (_, Some(at)) if number >= network.world => Turn::Sleeping(*at),
                (_, None) if number >= network.world && number < size => Turn::Gone,
                _ => Turn::Waiting(Duration::ZERO),
            },
            bells: BinaryHeap::new(),
            sending: Duration::ZERO,
            receiving: Duration::ZERO,
            stopped_until: Duration::ZERO,
            slowness: 1.0,
            dead: false,
            livelocks: false,
            leaves: false,
            lies: 0,
        };
        let mut mishaps = mishaps.to_vec();
        mishaps.sort_by_key(|mishap| Reverse(mishap.at));
        let all = size + usize::from(order == Order::Watched);
        let state = State {
            now: Duration::ZERO,
            ranks: (0..all).map(rank).collect(),
            meshes: BTreeMap::new(),
            cuts: BTreeSet::new(),
            mishaps,
            trace: Vec::new(),
        };
        let turns = (0..all).map(|_| Condvar::new()).collect();
        let world = World { network, size, state: Mutex::new(state), turns };
        world.advance(&mut world.lock());
        Arc::new(world)
    }

    /// Ranks that are there at some time.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What is simulated.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// What becomes of a rank, apart from its streams.
    pub fn fate(&self, rank: usize) -> Fate {
        let state = self.lock();
        let subject = &state.ranks[rank];
        Fate {
            is_dead: subject.dead,
            is_gone: subject.turn == Turn::Gone,
            is_stopped: subject.stopped_until > state.now,
            is_livelocked: subject.turn == Turn::Livelocked,
            is_asked_to_leave: subject.leaves,
            lies: subject.lies,
        }
    }

    /// Whether two ranks cannot connect to each other: that takes both directions.
    pub fn is_cut(&self, one: usize, other: usize) -> bool {
        let state = self.lock();
        state.is_cut(one, other) || state.is_cut(other, one)
    }

    /// Kills a rank, as its launcher would.
    pub fn kill(&self, rank: usize) {
        let mut state = self.lock();
        self.end_life(&mut state, rank);
    }

    fn end_life(&self, state: &mut State, rank: usize) {
        state.ranks[rank].dead = true;
        self.end_all(state, rank, None);
        if state.ranks[rank].turn == Turn::Livelocked {
            state.ranks[rank].turn = Turn::Waiting(state.now);
        }
        state.ring(rank, state.now);
    }

    /// Ends the wait of a rank at that moment, or the next one that it begins.
    pub fn ring(&self, rank: usize, at: Duration) {
        self.lock().ring(rank, at);
    }

    pub fn trace(&self) -> Trace {
        Trace { entries: self.lock().trace.clone() }
    }

    /// A thread that panicked holds nothing half-changed here: every change under the lock is complete in itself.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, once it is this rank's turn.
    pub(super) fn turn(&self, rank: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if matches!(state.ranks[rank].turn, Turn::Absent | Turn::Idle) {
            state.ranks[rank].turn = Turn::Running;
        }
        while matches!(state.ranks[rank].turn, Turn::Waiting(_) | Turn::Sleeping(_) | Turn::Livelocked) {
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
        let subject = &state.ranks[rank];
        let until = subject.bells.peek().map_or(end, |bell| bell.0.min(end));
        let hangs = subject.livelocks && !subject.dead;
        self.give_way(&mut state, rank, if hangs { Turn::Livelocked } else { Turn::Waiting(until) });
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
            let Some((time, rank)) = waits.min() else {
                // Nobody is left who could kill those that hang: they end with the simulation.
                let hangs = |rank: &usize| state.ranks[*rank].turn == Turn::Livelocked;
                let Some(rank) = (0..state.ranks.len()).find(hangs) else { return };
                self.end_life(state, rank);
                continue;
            };
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
        let heard = state.now + self.network.latency;
        match &kind {
            Kind::Kill { rank } => self.end_life(state, *rank),
            Kind::Livelock { rank } => state.ranks[*rank].livelocks = true,
            Kind::Stop { rank, duration } => state.ranks[*rank].stopped_until = state.now + *duration,
            Kind::Slow { rank, factor } => state.ranks[*rank].slowness *= factor.max(0.0),
            Kind::Cut { one, other } => {
                state.cuts.extend([(*one, *other), (*other, *one)]);
            }
            Kind::CutOneWay { from, to } => {
                state.cuts.insert((*from, *to));
            }
            Kind::Garbage { from, to } => {
                let words = (0..8).flat_map(|word| mix(self.network.seed ^ word).to_le_bytes());
                if let Some((&generation, _)) = state.meshes.last_key_value() {
                    self.carry(state, Way { generation, from: *from, to: *to }, words.collect(), true);
                }
            }
            Kind::Forge { from, to, forgery } => {
                if let Some((&generation, _)) = state.meshes.last_key_value() {
                    let way = Way { generation, from: *from, to: *to };
                    self.carry(state, way, forgery.frame(generation).into(), true);
                }
            }
            // It has slept until now.
            Kind::Join { .. } => {}
            Kind::Leave { rank } => state.ranks[*rank].leaves = true,
            Kind::Lie { rank } => state.ranks[*rank].lies += 1,
        }
        state.note(Happening::Mishap(kind));
        // Whoever watches over the ranks sees to it.
        if state.ranks.len() > self.size {
            state.ring(self.size, heard);
        }
    }

    /// A rank is gone, and with it all its streams.
    pub fn leave(&self, rank: usize) {
        let mut state = self.turn(rank);
        if rank < self.size {
            self.end_all(&mut state, rank, None);
        }
        state.ranks[rank].turn = Turn::Gone;
        if state.ranks.len() > self.size {
            let heard = state.now + self.network.latency;
            state.ring(self.size, heard);
        }
        self.advance(&mut state);
    }
}

impl State {
    /// Whether what one sends to the other is lost.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    fn is_anyone_absent(&self) -> bool {
        self.ranks.iter().any(|rank| rank.turn == Turn::Absent)
    }

    pub(super) fn note(&mut self, happening: Happening) {
        self.trace.push(Entry { time: self.now, happening });
    }

    /// Something will have happened to one of a rank's streams at that moment.
    pub(super) fn ring(&mut self, rank: usize, at: Duration) {
        let rank = &mut self.ranks[rank];
        rank.bells.push(Reverse(at));
        if let Turn::Waiting(until) = &mut rank.turn {
            *until = at.min(*until);
        }
    }
}
