//! The coordinator of a simulated group: the policy of real groups, in virtual time.
//!
//! It has an endpoint after those of all ranks. Messages to it take the network's latency, a dead rank appears as a closed
//! connection, and a stopped rank sends no heartbeats. It never dies itself: taking over the role is left to tests with
//! real processes.

use super::control::{MemberMessage, SimulatedControl, SimulatedRoster};
use crate::control_connection::HEARTBEAT_INTERVAL;
use crate::diagnosis::EVIDENCE_TIMEOUT;
use crate::membership::MembershipView;
use crate::membership_policy::{MembershipActions, MembershipConfig, MembershipPolicy};
use crate::regroup::false_report;
use crate::rendezvous::join_validation;
use crate::rendezvous::message::Control;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use thalweg_comm::transport::sim::{SimClock, SimulatedEndpoint};
use thalweg_core::event::Heartbeat;
use thalweg_core::{Culprit, Error, Kind};

/// How often deadlines are checked.
const TICK: Duration = Duration::from_millis(50);

/// No test takes longer in virtual time.
const TIME_LIMIT: Duration = Duration::from_secs(24 * 3600);

pub(super) struct SimulatedCoordinator {
    endpoint: SimulatedEndpoint,
    clock: SimClock,
    control: Arc<SimulatedControl>,
    policy: MembershipPolicy,
    connected: BTreeSet<usize>,
    /// The last operation of each rank, and since when in virtual time.
    operations: BTreeMap<usize, (Heartbeat, Duration)>,
    next_heartbeat: Duration,
    /// Injected false reports per rank so far.
    false_reports: BTreeMap<usize, u32>,
    is_over: bool,
    /// Time of the current tick.
    now: Duration,
}

impl SimulatedCoordinator {
    pub fn new(
        endpoint: SimulatedEndpoint,
        control: Arc<SimulatedControl>,
        config: MembershipConfig,
        world: usize,
    ) -> SimulatedCoordinator {
        let expected: Vec<usize> = (0..world).collect();
        SimulatedCoordinator {
            clock: endpoint.clock(),
            policy: MembershipPolicy::new(config, &expected, 0, &[], world, Duration::ZERO),
            connected: BTreeSet::new(),
            operations: BTreeMap::new(),
            next_heartbeat: Duration::ZERO,
            false_reports: BTreeMap::new(),
            is_over: false,
            now: Duration::ZERO,
            endpoint,
            control,
        }
    }

    /// Runs until all ranks have ended.
    pub fn run(mut self) {
        let ranks = self.control.rank_statuses.len();
        loop {
            self.endpoint.mark();
            self.now = self.clock.now();
            while let Some((id, message)) = self.control.receive(self.now) {
                self.on_message(id, message);
            }
            self.poll_ranks();
            if !self.is_over {
                let commands = self.policy.tick(self.now);
                self.execute(commands);
            }
            if (0..ranks).all(|rank| self.endpoint.rank_state(rank).has_ended) {
                return;
            }
            if self.now > TIME_LIMIT {
                // The job hangs, and only the end of all ranks ends it.
                (0..ranks).for_each(|rank| self.endpoint.kill(rank));
            }
            self.endpoint.wait(TICK.min(EVIDENCE_TIMEOUT));
        }
    }

    fn on_message(&mut self, id: usize, message: MemberMessage) {
        let now = self.now;
        let commands = match message {
            MemberMessage::Start | MemberMessage::Join if self.is_over => {
                return self.refuse(id, "the job is over");
            }
            MemberMessage::Start => {
                self.connected.insert(id);
                let commands = self.policy.membership.report(id, 0, Default::default(), now);
                self.policy.complete(commands, now)
            }
            MemberMessage::Join if !self.policy.membership.has_room(0) => {
                return self.refuse(id, "the group is full");
            }
            // Real ranks probe this before one is admitted.
            MemberMessage::Join if self.is_unreachable(id) => {
                return self.refuse(id, "it cannot be connected with all others");
            }
            MemberMessage::Join => {
                self.connected.insert(id);
                let commands = self.policy.membership.add(id, now);
                self.policy.complete(commands, now)
            }
            _ if !self.connected.contains(&id) => return,
            MemberMessage::Closed => self.policy.on_close(id, now, now),
            MemberMessage::Control(message) => {
                if matches!(message, Control::Leave | Control::Goodbye | Control::Failed(..)) {
                    self.connected.remove(&id);
                }
                self.policy.on_message(id, message, now)
            }
        };
        self.execute(commands);
    }

    fn is_unreachable(&self, newcomer: usize) -> bool {
        self.connected.iter().any(|id| self.endpoint.are_cut_off(*id, newcomer))
    }

    fn refuse(&self, id: usize, reason: &str) {
        let message = format!("rank {id} cannot join: {reason}");
        self.control.rank_statuses[id].abort(Error::new(Kind::Rendezvous, message));
        self.endpoint.wake_at(id, self.clock.now());
    }

    /// Observes the state of all ranks: deaths, heartbeats, injected faults, requests to leave.
    fn poll_ranks(&mut self) {
        let now = self.now;
        // After a death the others report what they were doing.
        let died = |id: &usize| self.endpoint.rank_state(*id).is_dead;
        let heartbeats = now >= self.next_heartbeat || (!self.is_over && self.connected.iter().any(died));
        let members = (0..self.control.rank_statuses.len()).filter(|id| self.policy.membership.has(*id));
        for id in members.chain(self.connected.iter().copied()).collect::<BTreeSet<usize>>() {
            let state = self.endpoint.rank_state(id);
            if state.is_dead && !self.is_over {
                // Before the first group is formed, only the launcher notices the death of a rank.
                let early = self.policy.membership.generation() == 0;
                let commands = match early {
                    true => self.policy.remove(id, join_validation::exited(id), now),
                    false => self.policy.on_close(id, now, now),
                };
                self.execute(commands);
            } else if heartbeats && !state.is_stopped && !state.is_dead && self.connected.contains(&id) {
                let heartbeat = self.heartbeat(id);
                let commands = self.policy.on_message(id, Control::Heartbeat(heartbeat), now);
                self.execute(commands);
                let requested = self.control.rank_statuses[id].awaits_boundary();
                let commands = self.policy.on_message(id, Control::BoundaryRequested(requested), now);
                self.execute(commands);
                self.control.rank_statuses[id].set_group_progress(self.policy.monitor.progress_count());
            }
            let reports = self.false_reports.get(&id).copied().unwrap_or(0);
            if reports < state.false_reports && self.connected.contains(&id) {
                *self.false_reports.entry(id).or_default() += 1;
                self.on_false_report(id);
            }
            if state.is_asked_to_leave {
                self.control.rank_statuses[id].request_leave();
            }
        }
        if heartbeats {
            self.next_heartbeat = now + HEARTBEAT_INTERVAL;
            let progress = self.policy.monitor.progress_count();
            let requested = self.policy.boundary_requested();
            for rank_status in self.connected.iter().map(|id| &self.control.rank_statuses[*id]) {
                rank_status.set_group_progress(progress);
                rank_status.set_group_boundary(requested);
            }
        }
        if self.policy.membership.is_empty() && !self.is_over {
            self.is_over = true;
            self.connected.iter().for_each(|id| self.refuse(*id, "no member is left"));
        }
    }

    /// An injected fault: a member reports a generation that never existed, a newcomer that it failed.
    fn on_false_report(&mut self, id: usize) {
        if self.policy.membership.has(id) {
            return self.on_message(id, MemberMessage::Control(false_report()));
        }
        let failed = Error::new(Kind::Data, format!("rank {id} reports that it failed"));
        let failed = Control::Failed(Box::new(failed), Heartbeat::default());
        self.on_message(id, MemberMessage::Control(failed));
        self.refuse(id, "it has failed");
    }

    /// A rank's heartbeat, with `since` in virtual time.
    fn heartbeat(&mut self, id: usize) -> Heartbeat {
        let now = self.now;
        let full = self.control.rank_statuses[id].heartbeat();
        let Heartbeat { progress, polls, waits_for, .. } = full.clone();
        let heartbeat = Heartbeat { since: 0.0, progress: 0, polls: 0, waits_for: None, ..full };
        let (before, since) = self.operations.entry(id).or_insert_with(|| (heartbeat.clone(), now));
        if *before != heartbeat {
            (*before, *since) = (heartbeat.clone(), now);
        }
        Heartbeat { since: (now - *since).as_secs_f64(), progress, polls, waits_for, ..heartbeat }
    }
}

impl MembershipActions for SimulatedCoordinator {
    fn disconnect(&mut self, id: usize) {
        // A dead rank receives nothing, nor does one that livelocks: its launcher would kill it.
        let state = self.endpoint.rank_state(id);
        if state.is_livelocked {
            self.endpoint.kill(id);
        }
        if self.connected.remove(&id) && !state.is_dead && !state.is_livelocked {
            let message = format!("rank {id} was removed, and the others went on without it");
            self.control.rank_statuses[id].abort(Error::new(Kind::RankFailed, message));
            self.endpoint.wake_at(id, self.now);
        }
    }

    fn interrupt(&mut self, generation: u32, reason: Error) {
        for id in &self.connected {
            self.control.rank_statuses[*id].interrupt(generation, reason.clone());
            self.endpoint.wake_at(*id, self.now);
        }
    }

    fn pause(&mut self) {
        let first = self.connected.iter().find(|id| self.policy.membership.has(**id));
        first.iter().for_each(|id| self.control.rank_statuses[**id].request_pause(true));
    }

    fn remove_stuck(&mut self, id: usize, culprit: Culprit) {
        let commands = self.policy.remove(id, culprit, self.now);
        self.execute(commands);
    }

    fn form(&mut self, view: MembershipView, lost: Vec<Culprit>) {
        let at = self.now + self.endpoint.network().latency;
        for id in view.members.keys() {
            self.control.rank_statuses[*id].request_pause(false);
            self.control.rank_statuses[*id].set_group_boundary(false);
            let roster = SimulatedRoster { at, view: view.clone(), lost: lost.clone() };
            self.control.send_roster(*id, roster);
            self.endpoint.wake_at(*id, at);
        }
    }

    fn abort(&mut self, error: Error) {
        self.is_over = true;
        for id in &self.connected {
            self.control.rank_statuses[*id].abort(error.clone());
            self.endpoint.wake_at(*id, self.now);
        }
    }
}
