//! Which rank holds up the job: a pure decision from the ranks' heartbeats.
//!
//! A rank without heartbeats for the deadline is silent, whatever the others do. A rank that sends heartbeats but makes no
//! progress with its computation for the deadline while others wait for it is stuck; while it reads data or files it has
//! longer, and the coordinator reports which rank is waited for. A slow rank makes progress and is not blamed.
//!
//! If no rank makes progress and all wait for each other, there is no culprit yet: the group is stalled, and the rank that
//! does not leave its operation after an interrupt is the one.

#[cfg(test)]
mod tests;

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

/// A rank that others wait for.
#[derive(Clone, Copy, Debug)]
pub struct Straggler<'a> {
    pub rank: usize,
    pub heartbeat: &'a Heartbeat,
    /// Time without progress.
    pub idle: Duration,
    /// Whether no other rank is in the same state, so that this rank is the one that is waited for.
    pub alone: bool,
}

#[derive(Clone, Default)]
struct RankState {
    /// Arrival time and content; `None` while no heartbeats are expected.
    last: Option<(Duration, Heartbeat)>,
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

    pub fn on_heartbeat(&mut self, rank: usize, now: Duration, heartbeat: Heartbeat) {
        if heartbeat.phase != Phase::Starting && !self.has_met {
            self.complete_rendezvous(now);
        }
        if rank >= self.ranks.len() {
            // It joined later.
            self.ranks.resize(rank + 1, RankState::default());
        }
        let state = &mut self.ranks[rank];
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

    fn is_idle(&self, rank: usize, now: Duration) -> bool {
        self.idle(rank, now).is_some_and(|idle| idle >= self.idle_limit(rank))
    }

    /// The operation the ranks wait in, if all have been without progress for as long as they may: the culprit is unknown.
    pub fn stalled(&self, now: Duration) -> Option<&Heartbeat> {
        let mut expected = self.expected().peekable();
        if expected.peek().is_none() || !expected.all(|(rank, _)| self.is_idle(rank, now)) {
            return None;
        }
        let heartbeats = self.expected().map(|(_, (_, heartbeat))| heartbeat);
        heartbeats
            .filter(|heartbeat| heartbeat.phase == Phase::Exchanging)
            .max_by_key(|heartbeat| heartbeat.operation)
    }

    /// The rank that is behind all others. If several are, the one that does not poll its transport: ranks that wait for
    /// another poll all the time.
    pub fn straggler(&self, now: Duration) -> Option<Straggler<'_>> {
        let operation = |heartbeat: &Heartbeat| (heartbeat.phase == Phase::Exchanging, heartbeat.operation);
        let first = self.expected().map(|(_, (_, heartbeat))| operation(heartbeat)).min()?;
        let behind = || self.expected().filter(|(_, (_, heartbeat))| operation(heartbeat) == first);
        let polls = |rank: usize| now.saturating_sub(self.ranks[rank].polled) < SILENT_AFTER;
        let not_polling = || behind().filter(|(rank, _)| !polls(*rank));
        let alone = |count: usize| count == 1;
        let (found, alone) = match not_polling().next() {
            Some(found) if alone(not_polling().count()) => (found, true),
            _ => (behind().next()?, alone(behind().count())),
        };
        let (rank, (_, heartbeat)) = found;
        Some(Straggler { rank, heartbeat, idle: self.idle(rank, now)?, alone })
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
                since_poll: now.saturating_sub(self.ranks[rank].polled),
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

    /// A rank without progress of its own for too long, while others have waited for as long.
    fn find_stuck(&self, now: Duration) -> Option<Evidence> {
        let busy = |heartbeat: &Heartbeat| match heartbeat.phase {
            Phase::Computing | Phase::Preparing => true,
            Phase::Leaving => self.shutting_down,
            // No other rank is left to wait for.
            Phase::Exchanging => self.shutting_down && self.expected().count() == 1,
            Phase::Starting => false,
        };
        let (rank, (_, heartbeat)) = self
            .expected()
            .filter(|(rank, (_, heartbeat))| busy(heartbeat) && self.is_idle(*rank, now))
            .min_by_key(|(rank, (_, heartbeat))| (heartbeat.operation, *rank))?;
        let limit = self.idle_limit(rank);
        let waits = |(other, (_, heartbeat)): (usize, &(Duration, Heartbeat))| {
            heartbeat.phase == Phase::Exchanging && self.idle(other, now).is_some_and(|idle| idle >= limit)
        };
        let is_awaited = self.shutting_down || self.expected().any(waits);
        is_awaited.then(|| Evidence::Stuck { rank, heartbeat: heartbeat.clone() })
    }
}
