//! Which rank holds up the job: a pure decision from the ranks' heartbeats.
//!
//! A rank without heartbeats for the deadline is silent, whatever the others do. A rank that sends heartbeats but makes no
//! progress with its computation for the deadline while others wait for it is stuck; while it reads data or files it has
//! longer, and the coordinator reports which rank is waited for. A slow rank makes progress and is not blamed.
//!
//! Whom a rank waits for is in its heartbeats (`wait_graph` follows the waits), so ranks need not be in the same operation,
//! nor count their operations alike. If ranks wait for each other only, there is no culprit yet: the group is stalled, and
//! the rank that does not leave its operation after an interrupt is the one.

#[cfg(test)]
mod tests;
mod verdict;

pub use verdict::{StalledGroup, Straggler};

use crate::diagnosis::Evidence;
use crate::stall::{self, LastHeartbeat, SILENT_AFTER, Stall};
use std::time::Duration;
use thalweg_core::event::{Heartbeat, Phase};

/// The last heartbeats of a group, and when they arrived.
pub struct HeartbeatMonitor {
    deadline: Duration,
    /// How long a rank may be silent before the rendezvous is complete.
    start_deadline: Duration,
    /// How long the others wait for a rank that reads data or files.
    prepare_deadline: Duration,
    ranks: Vec<RankState>,
    /// When this process last came back from a suspension.
    awake_since: Duration,
    /// A rank is past the rendezvous, so all have reached it.
    has_met: bool,
    /// A rank has completed its work and waits for the others.
    shutting_down: bool,
    progress_count: u64,
}

#[derive(Clone, Default)]
struct RankState {
    /// Arrival time and content; `None` while no heartbeats are expected.
    last: Option<(Duration, Heartbeat)>,
    /// A heartbeat has been expected or has arrived. A launcher sees those of its own ranks only.
    is_known: bool,
    /// When its progress last grew.
    progressed: Duration,
    /// When it last polled its transport.
    polled: Duration,
}

impl HeartbeatMonitor {
    pub fn new(
        world: usize,
        deadline: Duration,
        start_deadline: Duration,
        prepare_deadline: Duration,
    ) -> HeartbeatMonitor {
        // A little before the deadline, so that the job has ended by then.
        let deadline = deadline - deadline.min(Duration::from_secs(2)) / 10;
        HeartbeatMonitor {
            deadline,
            start_deadline,
            prepare_deadline,
            ranks: vec![RankState::default(); world],
            awake_since: Duration::ZERO,
            has_met: false,
            shutting_down: false,
            progress_count: 0,
        }
    }

    /// Expects heartbeats of a rank from this moment on: it can be silent without ever having sent one.
    pub fn expect(&mut self, rank: usize, from: Duration, phase: Phase) {
        self.on_heartbeat(rank, from, Heartbeat { phase, name: "starting".into(), ..Heartbeat::default() });
    }

    pub fn on_heartbeat(&mut self, rank: usize, now: Duration, mut heartbeat: Heartbeat) {
        if heartbeat.phase != Phase::Starting && !self.has_met {
            self.complete_rendezvous(now);
        }
        if rank >= self.ranks.len() {
            // It joined later.
            self.ranks.resize(rank + 1, RankState::default());
        }
        // It comes from a peer: no rank waits for more ranks than there are.
        let world = self.ranks.len();
        heartbeat.waits_for = heartbeat.waits_for.filter(|waits_for| waits_for.ranks().len() <= world);
        let state = &mut self.ranks[rank];
        state.is_known = true;
        let before = state.last.as_ref().map(|(_, last)| (last.progress, last.phase, last.operation));
        if before != Some((heartbeat.progress, heartbeat.phase, heartbeat.operation)) {
            state.progressed = now;
            self.progress_count += 1;
        }
        if state.last.as_ref().is_none_or(|(_, last)| last.polls != heartbeat.polls) {
            state.polled = now;
        }
        state.last = Some((now, heartbeat));
    }

    /// How many heartbeats have shown progress of any rank.
    pub fn progress_count(&self) -> u64 {
        self.progress_count
    }

    /// From now on no rank may be without progress for longer than this, except while it reads data or files.
    pub fn shorten_deadline(&mut self, limit: Duration) {
        self.deadline = self.deadline.min(limit);
    }

    /// How long a rank may hold up the others.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// A rank has completed all its work: the others must end, too. How long they have waited until now does not count.
    pub fn begin_shutdown(&mut self, now: Duration) {
        if !std::mem::replace(&mut self.shutting_down, true) {
            self.ranks.iter_mut().for_each(|state| state.progressed = now);
        }
    }

    /// Time without progress of a rank whose heartbeats are expected.
    pub fn idle(&self, rank: usize, now: Duration) -> Option<Duration> {
        let state = self.ranks.get(rank)?;
        state.last.as_ref().map(|_| now.saturating_sub(state.progressed))
    }

    /// The longest time a rank may be without progress in its current phase.
    pub fn idle_limit(&self, rank: usize) -> Duration {
        let preparing = |heartbeat: &Heartbeat| heartbeat.phase == Phase::Preparing;
        if self.last_heartbeat(rank).is_some_and(preparing) { self.prepare_deadline } else { self.deadline }
    }

    /// The rendezvous is complete: a rank without a heartbeat since is no longer starting, but silent.
    fn complete_rendezvous(&mut self, now: Duration) {
        self.has_met = true;
        for (when, heartbeat) in self.ranks.iter_mut().filter_map(|state| state.last.as_mut()) {
            if heartbeat.phase == Phase::Starting {
                (*when, heartbeat.phase) = (now, Phase::Preparing);
            }
        }
    }

    /// Expects no more heartbeats of a rank.
    pub fn remove(&mut self, rank: usize) {
        if let Some(state) = self.ranks.get_mut(rank) {
            state.last = None;
        }
    }

    /// Restarts all timers after a suspension of this process or machine: that time is no rank's fault.
    pub fn restart_timers(&mut self, now: Duration) {
        self.awake_since = now;
        for state in &mut self.ranks {
            (state.progressed, state.polled) = (now, now);
            if let Some((when, _)) = &mut state.last {
                *when = now;
            }
        }
    }

    pub fn last_heartbeat(&self, rank: usize) -> Option<&Heartbeat> {
        self.ranks.get(rank)?.last.as_ref().map(|(_, heartbeat)| heartbeat)
    }

    /// The rank that has read data or files for longest while others wait, its heartbeat, and for how many seconds they
    /// have waited.
    pub fn awaited(&self) -> Option<(usize, &Heartbeat, f64)> {
        let heartbeats = || self.expected().map(|(rank, (_, heartbeat))| (rank, heartbeat));
        let waiting = heartbeats().filter(|(_, heartbeat)| heartbeat.phase == Phase::Exchanging);
        let waited = waiting.map(|(_, heartbeat)| heartbeat.since).max_by(f64::total_cmp)?;
        let (rank, heartbeat) = heartbeats()
            .filter(|(_, heartbeat)| heartbeat.phase == Phase::Preparing)
            .max_by(|(_, one), (_, other)| one.since.total_cmp(&other.since))?;
        Some((rank, heartbeat, waited.min(heartbeat.since)))
    }

    /// The ranks that the others wait for, once they have waited for a while.
    pub fn find_stall(&self, now: Duration) -> Option<Stall> {
        // Heartbeats from before a suspension of this process are outdated.
        if !self.has_met || now.saturating_sub(self.awake_since) < SILENT_AFTER {
            return None;
        }
        let seen: Vec<LastHeartbeat<'_>> = self
            .expected()
            .map(|(rank, (when, heartbeat))| LastHeartbeat {
                rank,
                age: now.saturating_sub(*when),
                since_poll: self.since_poll(rank, now),
                heartbeat,
            })
            .collect();
        stall::find(&seen)
    }

    /// Whether a rank's heartbeats have been missing for a while.
    pub fn is_silent(&self, rank: usize, now: Duration) -> bool {
        let last = self.ranks.get(rank).and_then(|state| state.last.as_ref());
        last.is_some_and(|(when, _)| now.saturating_sub(*when) >= SILENT_AFTER)
    }

    /// Time since a rank last polled its transport; ranks that wait for another poll all the time.
    fn since_poll(&self, rank: usize, now: Duration) -> Duration {
        now.saturating_sub(self.ranks[rank].polled)
    }

    fn expected(&self) -> impl Iterator<Item = (usize, &(Duration, Heartbeat))> {
        self.ranks.iter().enumerate().filter_map(|(rank, state)| state.last.as_ref().map(|last| (rank, last)))
    }

    /// The rank that holds up the job beyond its deadline.
    pub fn find_culprit(&self, now: Duration) -> Option<Evidence> {
        let silence = |when: &Duration| now.saturating_sub(*when);
        let silent = self
            .expected()
            .filter(|(_, (when, heartbeat))| {
                let starting = heartbeat.phase == Phase::Starting;
                silence(when) >= if starting { self.start_deadline } else { self.deadline }
            })
            .max_by_key(|(rank, (when, _))| (silence(when), usize::MAX - rank));
        if let Some((rank, (when, heartbeat))) = silent {
            return Some(Evidence::Silent {
                rank,
                seconds: silence(when).as_secs_f64(),
                heartbeat: heartbeat.clone(),
            });
        }
        self.find_stuck(now)
    }
}
