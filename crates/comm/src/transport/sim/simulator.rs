//! Schedules the ranks and injects the faults: the only state of a simulation, behind one lock.
//!
//! A rank is running, waiting until a moment, or ended. When none runs, time jumps to the moment at which the first
//! wait ends (or the first fault is due), and that rank runs. Wake-ups end a wait early: moments at which something
//! will have happened to one of the rank's streams.

use super::network::mix;
use super::schedule::{RunState, Schedule};
use super::streams::{Mesh, StreamKey};
use super::wakeup::{Wakeup, WakeupEvent, Wakeups};
use super::{Network, SimulatedFault, SimulatedFaultKind, Trace, TraceEntry, TraceEvent};
use crate::transport::Interest;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Real time for which an unordered group waits for threads that have not started.
const START_TIMEOUT: Duration = Duration::from_millis(100);

pub(super) struct Simulator {
    pub(super) network: Network,
    /// Number of ranks, those that will join included.
    pub(super) size: usize,
    state: Mutex<SimulatorState>,
    /// One for each rank: notified when it runs.
    pub(super) scheduled: Vec<Condvar>,
}

pub(super) struct SimulatorState {
    pub(super) now: Duration,
    /// All ranks and, behind them, the coordinator if there is one.
    pub(super) ranks: Vec<SimulatedRank>,
    pub(super) schedule: Schedule,
    /// By generation of the group, until all its members have left it: bytes of one never arrive in another.
    pub(super) meshes: BTreeMap<u32, Mesh>,
    /// Senders and receivers between which all bytes are lost.
    cuts: BTreeSet<(usize, usize)>,
    /// In descending order of time.
    faults: Vec<SimulatedFault>,
    trace: Vec<TraceEntry>,
}

/// The order in which ranks run, and whether there is a coordinator.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scheduling {
    /// As threads happen to start: correct, but not reproducible.
    Unordered,
    /// By virtual time, lower ranks first.
    Deterministic,
    /// Deterministic, with one more endpoint behind the ranks that is no member of any group.
    WithCoordinator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedRankState {
    /// It was killed.
    pub is_dead: bool,
    /// Its thread has ended, or was not told to join.
    pub has_ended: bool,
    pub is_stopped: bool,
    /// It makes no progress inside a wait, although its heartbeats continue.
    pub is_livelocked: bool,
    pub is_asked_to_leave: bool,
    /// False reports that it was told to send.
    pub false_reports: u32,
}

pub(super) struct SimulatedRank {
    wakeups: Wakeups,
    /// Until when its connection is busy sending, and receiving.
    pub(super) sending: Duration,
    pub(super) receiving: Duration,
    slowness: f64,
    pub(super) dead: bool,
    /// Its next wait does not end.
    livelocks: bool,
    asked_to_leave: bool,
    false_reports: u32,
}

impl Simulator {
    /// `reserved` more ranks join when they are told to.
    pub fn new(
        network: Network,
        faults: &[SimulatedFault],
        reserved: usize,
        scheduling: Scheduling,
    ) -> Arc<Simulator> {
        let joins: BTreeMap<usize, Duration> = faults
            .iter()
            .filter_map(|fault| match fault.kind {
                SimulatedFaultKind::Join { rank } => Some((rank, fault.at)),
                _ => None,
            })
            .collect();
        let planned = joins.keys().map(|rank| rank + 1).max().unwrap_or(0).max(network.world);
        let size = planned + reserved;
        let run_state = |number: usize| match (scheduling, joins.get(&number)) {
            (Scheduling::Unordered, _) => RunState::Absent,
            // A rank that joins sleeps until then.
            (_, Some(at)) if number >= network.world => RunState::Sleeping(*at),
            (_, None) if number >= network.world && number < planned => RunState::Ended,
            (_, None) if number >= planned && number < size => RunState::Reserved,
            _ => RunState::Waiting(Duration::ZERO),
        };
        let rank = |_| SimulatedRank {
            wakeups: Wakeups::default(),
            sending: Duration::ZERO,
            receiving: Duration::ZERO,
            slowness: 1.0,
            dead: false,
            livelocks: false,
            asked_to_leave: false,
            false_reports: 0,
        };
        let mut faults = faults.to_vec();
        faults.sort_by_key(|fault| Reverse(fault.at));
        let all = size + usize::from(scheduling == Scheduling::WithCoordinator);
        let state = SimulatorState {
            now: Duration::ZERO,
            ranks: (0..all).map(rank).collect(),
            schedule: Schedule::new((0..all).map(run_state)),
            meshes: BTreeMap::new(),
            cuts: BTreeSet::new(),
            faults,
            trace: Vec::new(),
        };
        let scheduled = (0..all).map(|_| Condvar::new()).collect();
        let simulator = Simulator { network, size, state: Mutex::new(state), scheduled };
        let first = simulator.advance(&mut simulator.lock());
        simulator.notify(first);
        Arc::new(simulator)
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    pub fn rank_state(&self, rank: usize) -> SimulatedRankState {
        let state = self.lock();
        let subject = &state.ranks[rank];
        SimulatedRankState {
            is_dead: subject.dead,
            has_ended: matches!(state.schedule.state(rank), RunState::Reserved | RunState::Ended),
            is_stopped: state.schedule.is_stopped(rank, state.now),
            is_livelocked: state.schedule.state(rank) == RunState::Livelocked,
            is_asked_to_leave: subject.asked_to_leave,
            false_reports: subject.false_reports,
        }
    }

    /// Whether two ranks cannot connect: that needs both directions.
    pub fn is_cut(&self, one: usize, other: usize) -> bool {
        let state = self.lock();
        state.is_cut(one, other) || state.is_cut(other, one)
    }

    pub fn kill(&self, rank: usize) {
        let mut state = self.lock();
        self.kill_rank(&mut state, rank);
    }

    fn kill_rank(&self, state: &mut SimulatorState, rank: usize) {
        state.ranks[rank].dead = true;
        // A stopped process can be killed.
        state.schedule.stop(rank, state.now);
        self.end_all(state, rank, None);
        if state.schedule.state(rank) == RunState::Livelocked {
            state.schedule.set(rank, RunState::Waiting(state.now));
        }
        state.wake(rank, Wakeup { at: state.now, event: WakeupEvent::Urgent });
    }

    /// Ends the current or next wait of a rank at that moment.
    pub fn wake_at(&self, rank: usize, at: Duration) {
        self.lock().wake(rank, Wakeup { at, event: WakeupEvent::Urgent });
    }

    pub fn trace(&self) -> Trace {
        Trace { entries: std::mem::take(&mut self.lock().trace) }
    }

    /// A panic of another thread leaves no inconsistent state: every change under the lock is complete in itself.
    pub(super) fn lock(&self) -> MutexGuard<'_, SimulatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until this rank runs.
    pub(super) fn running(&self, rank: usize) -> MutexGuard<'_, SimulatorState> {
        let mut state = self.lock();
        if matches!(state.schedule.state(rank), RunState::Absent | RunState::Idle) {
            state.schedule.set(rank, RunState::Running);
        }
        while matches!(
            state.schedule.state(rank),
            RunState::Waiting(_) | RunState::Sleeping(_) | RunState::Livelocked
        ) {
            if !state.schedule.has_absent() {
                state = self.scheduled[rank].wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let woken = self.scheduled[rank]
                .wait_timeout(state, START_TIMEOUT)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken.0;
            if woken.1.timed_out() {
                state.schedule.idle_absent();
                let next = self.advance(&mut state);
                self.notify(next);
            }
        }
        state
    }

    pub fn now(&self, rank: usize) -> Duration {
        self.running(rank).now
    }

    /// Events of the rank's streams from here on end its next wait.
    pub fn mark(&self, rank: usize) {
        let mut state = self.running(rank);
        let now = state.now;
        state.ranks[rank].wakeups.drop_until(now);
    }

    /// Yields to the other ranks until an urgent wake-up, one of the streams of interest (by member id, ascending), or the
    /// timeout.
    pub fn wait(&self, rank: usize, timeout: Duration, interests: impl Iterator<Item = (usize, Interest)>) {
        let mut state = self.running(rank);
        let end = state.now + timeout;
        let subject = &mut state.ranks[rank];
        let until = subject.wakeups.begin_wait(interests).map_or(end, |at| at.min(end));
        let hangs = subject.livelocks && !subject.dead;
        self.yield_as(state, rank, if hangs { RunState::Livelocked } else { RunState::Waiting(until) });
    }

    /// Yields to the other ranks for this duration, regardless of wake-ups.
    pub fn sleep(&self, rank: usize, duration: Duration) {
        let state = self.running(rank);
        let end = state.now + duration;
        self.yield_as(state, rank, RunState::Sleeping(end));
    }

    /// Sleeps for the time that this rank needs for this many floating-point operations.
    pub fn charge(&self, rank: usize, operations: u64) {
        let slowness = self.running(rank).ranks[rank].slowness;
        self.sleep(rank, self.network.computation(operations).mul_f64(slowness));
    }

    /// Lets other ranks run until it is this one's turn again.
    fn yield_as(&self, mut state: MutexGuard<'_, SimulatorState>, rank: usize, run_state: RunState) {
        if state.schedule.state(rank) == RunState::Ended {
            return;
        }
        state.schedule.set(rank, run_state);
        let next = self.advance(&mut state);
        drop(state);
        if next != Some(rank) {
            self.notify(next);
            drop(self.running(rank));
        }
    }

    /// Wakes the thread of a rank that is to run. Best without the lock, which that thread takes at once.
    fn notify(&self, rank: Option<usize>) {
        if let Some(rank) = rank {
            self.scheduled[rank].notify_all();
        }
    }

    /// If no rank runs, lets the next one run, and returns it: it is to be notified.
    fn advance(&self, state: &mut SimulatorState) -> Option<usize> {
        loop {
            if state.schedule.has_absent() || state.schedule.has_running() {
                return None;
            }
            let Some((time, rank)) = state.schedule.next() else {
                // No rank is left that could kill the livelocked ones, or tell others to join: they end with the simulation.
                if let Some(rank) = state.schedule.first(RunState::Livelocked) {
                    self.kill_rank(state, rank);
                    continue;
                }
                while let Some(rank) = state.schedule.first(RunState::Reserved) {
                    state.schedule.set(rank, RunState::Ended);
                    self.notify(Some(rank));
                }
                return None;
            };
            if let Some(fault) = state.faults.pop_if(|fault| fault.at <= time) {
                state.now = state.now.max(fault.at);
                self.inject_fault(state, fault.kind);
                continue;
            }
            state.now = state.now.max(time);
            state.schedule.set(rank, RunState::Running);
            state.record(TraceEvent::Run(rank));
            return Some(rank);
        }
    }

    /// Injects a fault now.
    pub fn inject_now(&self, kind: SimulatedFaultKind) {
        self.inject_fault(&mut self.lock(), kind);
    }

    fn inject_fault(&self, state: &mut SimulatorState, kind: SimulatedFaultKind) {
        let noticed = state.now + self.network.latency;
        match &kind {
            SimulatedFaultKind::Kill { rank } => self.kill_rank(state, *rank),
            SimulatedFaultKind::Livelock { rank } => state.ranks[*rank].livelocks = true,
            SimulatedFaultKind::Stop { rank, duration } => {
                state.schedule.stop(*rank, state.now + *duration);
            }
            SimulatedFaultKind::Slow { rank, factor } => state.ranks[*rank].slowness *= factor.max(0.0),
            SimulatedFaultKind::Cut { one, other } => {
                state.cuts.extend([(*one, *other), (*other, *one)]);
            }
            SimulatedFaultKind::CutOneWay { from, to } => {
                state.cuts.insert((*from, *to));
            }
            SimulatedFaultKind::Garbage { from, to } => {
                let bytes = (0..8).flat_map(|index| mix(self.network.seed ^ index).to_le_bytes());
                if let Some((&generation, _)) = state.meshes.last_key_value() {
                    self.transmit(
                        state,
                        StreamKey { generation, from: *from, to: *to },
                        bytes.collect(),
                        true,
                    );
                }
            }
            SimulatedFaultKind::Forge { from, to, frame } => {
                if let Some((&generation, _)) = state.meshes.last_key_value() {
                    let key = StreamKey { generation, from: *from, to: *to };
                    self.transmit(state, key, frame.encode(generation).into(), true);
                }
            }
            SimulatedFaultKind::Join { rank } if state.schedule.state(*rank) == RunState::Reserved => {
                state.schedule.set(*rank, RunState::Waiting(state.now));
                self.notify(Some(*rank));
            }
            // The rank has slept until now.
            SimulatedFaultKind::Join { .. } => {}
            SimulatedFaultKind::Leave { rank } => state.ranks[*rank].asked_to_leave = true,
            SimulatedFaultKind::FalseReport { rank } => state.ranks[*rank].false_reports += 1,
        }
        state.record(TraceEvent::Fault(kind));
        if state.ranks.len() > self.size {
            state.wake(self.size, Wakeup { at: noticed, event: WakeupEvent::Urgent });
        }
    }

    /// The rank has ended, and all its streams with it.
    pub fn leave(&self, rank: usize) {
        let mut state = self.running(rank);
        if rank < self.size {
            self.end_all(&mut state, rank, None);
        }
        state.schedule.set(rank, RunState::Ended);
        if state.ranks.len() > self.size {
            let noticed = state.now + self.network.latency;
            state.wake(self.size, Wakeup { at: noticed, event: WakeupEvent::Urgent });
        }
        let next = self.advance(&mut state);
        drop(state);
        self.notify(next);
    }
}

impl SimulatorState {
    /// Whether bytes from one rank to the other are lost.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    pub(super) fn record(&mut self, event: TraceEvent) {
        self.trace.push(TraceEntry { time: self.now, event });
    }

    /// Ends the current wait of the rank, or the next, if it is for this.
    pub(super) fn wake(&mut self, rank: usize, wakeup: Wakeup) {
        if self.ranks[rank].wakeups.push(wakeup) {
            self.schedule.wake_at(rank, wakeup.at);
        }
    }
}
