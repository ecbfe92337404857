//! Which simulated rank has the coordinator's role, and which takes it over.
//!
//! The role is in the process of one rank, rank 0 at first, and ends with it: when the rank is killed, when it is stopped
//! for longer than the deadline, so that its launcher kills it, when it is removed, or when it fails. A rank that leaves
//! hands it over. As with real processes the next coordinator starts with an empty policy, and the members report their
//! positions to it.

use super::control::MemberMessage;
use super::coordinator::SimulatedCoordinator;
use crate::membership_policy::{MembershipActions, MembershipPolicy};
use crate::rendezvous::join_validation;
use crate::rendezvous::message::Control;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use thalweg_core::event::Heartbeat;
use thalweg_core::{Culprit, Error, Kind};

/// From the end of a process to the next coordinator: its launcher notices the exit and commands another rank to take the
/// role.
const TAKEOVER: Duration = Duration::from_millis(20);

/// A gap in the time of a coordinator that is no ordinary delay.
const SUSPENSION: Duration = Duration::from_secs(1);

/// How long a process whose program failed keeps the role, until the others know why.
const FAILED_ROLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The role, and what the launcher knows that chooses who has it.
#[derive(Default)]
pub(super) struct CoordinatorRole {
    pub holder: usize,
    /// Counts the coordinators before this one.
    pub term: u32,
    /// Since when no rank has the role.
    vacant: Option<Duration>,
    /// Since when the rank with the role is stopped.
    stopped: Option<Duration>,
    /// Ranks that left in good order, that completed the job, and that failed, and when.
    left: BTreeSet<usize>,
    finished: BTreeSet<usize>,
    failed: BTreeMap<usize, Duration>,
}

impl CoordinatorRole {
    /// Whether the coordinator runs.
    pub fn is_active(&self) -> bool {
        self.vacant.is_none() && self.stopped.is_none()
    }

    pub fn has_left(&self) -> bool {
        self.left.contains(&self.holder)
    }

    /// Notes how a rank's process ends, which its launcher sees even without a coordinator.
    pub fn observe(&mut self, id: usize, message: &MemberMessage, now: Duration) {
        let MemberMessage::Control(message) = message else { return };
        match message {
            Control::Leave => drop(self.left.insert(id)),
            Control::Goodbye => drop(self.finished.insert(id)),
            Control::Failed(..) => drop(self.failed.insert(id, now)),
            _ => {}
        }
    }
}

impl SimulatedCoordinator {
    /// Ends and moves the role with the processes that have it.
    pub(super) fn follow_role(&mut self) {
        if !self.config.elastic || self.is_over() {
            return;
        }
        if let Some(since) = self.role.vacant {
            if self.now >= since + TAKEOVER {
                self.take_over();
            }
            return;
        }
        let holder = self.role.holder;
        let state = self.endpoint.rank_state(holder);
        if state.is_dead {
            self.lose_role("vanished: its connection closed without a goodbye");
        } else if self
            .role
            .failed
            .get(&holder)
            .is_some_and(|failed| self.now >= *failed + FAILED_ROLE_TIMEOUT)
        {
            self.lose_role("ended: its process is gone");
        } else if state.is_stopped {
            let since = *self.role.stopped.get_or_insert(self.now);
            if self.now >= since + self.policy.monitor.deadline() {
                self.endpoint.kill(holder);
                let silent = (self.now - since).as_secs_f64();
                self.lose_role(&format!("has been silent for {silent:.1} s"));
            }
        } else if let Some(since) = self.role.stopped.take()
            && self.now > since + SUSPENSION
        {
            self.policy.monitor.restart_timers(self.now);
        }
    }

    /// All that is connected sees the end of its connection: the generation is over.
    fn lose_role(&mut self, cause: &str) {
        let holder = self.role.holder;
        let culprit = Culprit {
            rank: holder,
            cause: cause.into(),
            detect_s: Some(self.role.stopped.map_or(0.0, |since| (self.now - since).as_secs_f64())),
            noticed: Some(self.config.epoch + self.now.as_secs_f64()),
            ..Culprit::default()
        };
        let generation = self.policy.membership.generation();
        for id in self.connected.iter().filter(|id| **id != holder && generation > 0) {
            let rank_status = &self.control.rank_statuses[*id];
            let Heartbeat { step, name, .. } = rank_status.heartbeat();
            let message =
                format!("rank {holder}, the coordinator, {cause} at step {step}; this rank was in {name}");
            let culprit = Culprit { step: Some(step), operation: Some(name), ..culprit.clone() };
            rank_status.interrupt(generation, Error::new(Kind::RankFailed, message).blame(culprit));
        }
        self.vacate(Some(culprit));
    }

    /// Hands the role over instead of forming a group: all members have reported and wait.
    pub(super) fn hand_over(&mut self) {
        self.vacate(None);
    }

    fn vacate(&mut self, lost: Option<Culprit>) {
        let connected = std::mem::take(&mut self.connected);
        self.known.clear();
        self.control.vacate(lost);
        (self.role.vacant, self.role.stopped) = (Some(self.now), None);
        connected.iter().for_each(|id| self.endpoint.wake_at(*id, self.now));
    }

    /// The lowest rank alive that has been in a group takes the role, with the members of its last group; before the first
    /// group the lowest rank.
    fn take_over(&mut self) {
        let views = self.control.views();
        let is_alive = |id: usize| {
            let state = self.endpoint.rank_state(id);
            !state.is_dead && !state.has_ended
        };
        let next = match views.is_empty() {
            true => (0..self.world).find(|id| is_alive(*id)).map(|id| (id, (0..self.world).collect(), 0)),
            false => views
                .into_iter()
                .find(|(id, _)| is_alive(*id))
                .map(|(id, view)| (id, view.members.keys().copied().collect::<Vec<usize>>(), 1)),
        };
        let Some((holder, known, after)) = next else {
            // Only ranks that wait to be admitted are left, if any.
            self.end("no member is left");
            self.control.appoint();
            return;
        };
        let role = &self.role;
        let is_gone = |id: usize| role.left.contains(&id) || role.finished.contains(&id);
        let (expected, lost): (Vec<usize>, Vec<usize>) =
            known.into_iter().partition(|id| is_alive(*id) || is_gone(*id));
        let mut policy =
            MembershipPolicy::new(self.config.clone(), &expected, after, &lost, self.world, self.now);
        for id in expected.into_iter().filter(|id| is_gone(*id)) {
            // A rank that has left says goodbye, too.
            let _ = policy.membership.leave(id, !role.left.contains(&id), self.now);
        }
        self.policy = policy;
        (self.role.holder, self.role.vacant) = (holder, None);
        self.role.term = self.control.appoint();
        (0..self.control.rank_statuses.len()).for_each(|id| self.endpoint.wake_at(id, self.now));
    }

    /// Members that have not connected in time: before the first group the job ends, later it goes on without them.
    pub(super) fn check_absent(&mut self) {
        let absent = self.policy.absent(|id| self.connected.contains(&id), self.now);
        if absent.is_empty() {
            return;
        }
        if self.policy.membership.generation() > 0 {
            let commands = self.policy.remove_absent(&absent, self.now);
            return self.execute(commands);
        }
        let (refused, unauthenticated) = (BTreeMap::new(), BTreeMap::new());
        let deadline = self.config.limits.timeout;
        let error = join_validation::rendezvous_timeout(None, &absent, &refused, &unauthenticated, deadline);
        self.abort(error);
    }
}
