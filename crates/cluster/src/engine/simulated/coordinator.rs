//! The coordinator of a simulated group: the policy of real groups, in virtual time.
//!
//! It has an endpoint after those of all ranks, which acts for one rank at a time (`role.rs`). Messages to it take the
//! network's latency, a dead rank appears as a closed connection, and a stopped rank sends no heartbeats.

use super::control::{Envelope, MemberMessage, SimulatedControl, SimulatedRoster};
use super::role::CoordinatorRole;
use crate::control_connection::HEARTBEAT_INTERVAL;
use crate::diagnosis::EVIDENCE_TIMEOUT;
use crate::membership::{MemberPosition, MembershipView};
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
    pub endpoint: SimulatedEndpoint,
    clock: SimClock,
    pub control: Arc<SimulatedControl>,
    pub config: MembershipConfig,
    /// Ranks at the start of the job.
    pub world: usize,
    pub policy: MembershipPolicy,
    pub role: CoordinatorRole,
    pub connected: BTreeSet<usize>,
    /// Ranks that have connected to the present coordinator.
    pub known: BTreeSet<usize>,
    /// The last operation of each rank, and since when in virtual time.
    operations: BTreeMap<usize, (Heartbeat, Duration)>,
    next_heartbeat: Duration,
    /// Injected false reports per rank so far.
    false_reports: BTreeMap<usize, u32>,
    is_over: bool,
    /// Why the job ended for all members.
    abort_error: Option<Error>,
    /// Time of the current tick.
    pub now: Duration,
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
            policy: MembershipPolicy::new(config.clone(), &expected, 0, &[], world, Duration::ZERO),
            role: CoordinatorRole::default(),
            connected: BTreeSet::new(),
            known: BTreeSet::new(),
            operations: BTreeMap::new(),
            next_heartbeat: Duration::ZERO,
            false_reports: BTreeMap::new(),
            is_over: false,
            abort_error: None,
            now: Duration::ZERO,
            endpoint,
            control,
            config,
            world,
        }
    }

    /// Runs until all ranks have ended.
    pub fn run(mut self) {
        let ranks = self.control.rank_statuses.len();
        loop {
            self.endpoint.mark();
            self.now = self.clock.now();
            self.follow_role();
            if self.role.is_active() || self.is_over {
                self.receive();
                self.poll_ranks();
            }
            if self.role.is_active() && !self.is_over {
                let commands = self.policy.tick(self.now);
                self.execute(commands);
                self.check_absent();
                // A command may have ended the process with the role.
                self.follow_role();
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

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn receive(&mut self) {
        while let Some(Envelope { from, term, message }) = self.control.receive(self.now) {
            self.role.observe(from, &message, self.now);
            // What was sent to an earlier coordinator is lost with it.
            if term == self.role.term || self.is_over {
                self.on_message(from, message);
            }
        }
    }

    fn on_message(&mut self, id: usize, message: MemberMessage) {
        let now = self.now;
        let commands = match message {
            MemberMessage::Start | MemberMessage::Join if self.is_over => {
                return self.refuse(id, "the job is over");
            }
            MemberMessage::Start => {
                self.connect(id);
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
                self.connect(id);
                let commands = self.policy.membership.add(id, now);
                self.policy.complete(commands, now)
            }
            MemberMessage::Control(Control::Report(after, position, doing))
                if !self.connected.contains(&id) =>
            {
                return self.on_rejoin(id, after, position, &doing);
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

    /// A member of a group that an earlier coordinator formed.
    fn on_rejoin(&mut self, id: usize, after: u32, position: MemberPosition, doing: &Heartbeat) {
        match &self.abort_error {
            Some(error) => return self.abort_rank(id, error.clone()),
            None if self.is_over || !self.policy.membership.has(id) => {
                return self.abort_rank(id, removal(id));
            }
            None => {}
        }
        self.connect(id);
        self.policy.note_wait(doing);
        let commands = self.policy.membership.report(id, after, position, self.now);
        let commands = self.policy.complete(commands, self.now);
        self.execute(commands);
    }

    fn connect(&mut self, id: usize) {
        self.connected.insert(id);
        self.known.insert(id);
    }

    fn is_unreachable(&self, newcomer: usize) -> bool {
        self.connected.iter().any(|id| self.endpoint.are_cut_off(*id, newcomer))
    }

    fn refuse(&self, id: usize, reason: &str) {
        self.abort_rank(id, Error::new(Kind::Rendezvous, format!("rank {id} cannot join: {reason}")));
    }

    fn abort_rank(&self, id: usize, error: Error) {
        self.control.rank_statuses[id].abort(error);
        self.endpoint.wake_at(id, self.now);
    }

    /// The job is over, and ranks that wait to be admitted are refused.
    pub fn end(&mut self, reason: &str) {
        self.is_over = true;
        self.connected.iter().for_each(|id| self.refuse(*id, reason));
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
                // Before the first group is formed, and of a rank that never connected to this coordinator, only the
                // launcher notices the death.
                let early = self.policy.membership.generation() == 0;
                let commands = match early || !self.known.contains(&id) {
                    true => {
                        let noticed = self.config.epoch + now.as_secs_f64();
                        self.policy.remove(id, join_validation::exited(id, noticed), now)
                    }
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
            let rows = self.policy.meetings.rows();
            for rank_status in self.connected.iter().map(|id| &self.control.rank_statuses[*id]) {
                rank_status.set_group_progress(progress);
                rank_status.set_group_boundary(requested);
                rank_status.set_group_rows(rows);
            }
        }
        if self.policy.membership.is_empty() && !self.is_over {
            self.end("no member is left");
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

/// The error of a rank that the others went on without.
fn removal(id: usize) -> Error {
    Error::new(Kind::RankFailed, format!("rank {id} was removed, and the others went on without it"))
}

impl MembershipActions for SimulatedCoordinator {
    fn disconnect(&mut self, id: usize) {
        // A dead rank receives nothing, nor does one that livelocks: its launcher would kill it.
        let state = self.endpoint.rank_state(id);
        if state.is_livelocked {
            self.endpoint.kill(id);
        }
        if !self.connected.remove(&id) || state.is_dead || state.is_livelocked {
            return;
        }
        match self.config.elastic && id == self.role.holder {
            // Its launcher ends the process, and with it this coordinator.
            true => self.endpoint.kill(id),
            false => self.abort_rank(id, removal(id)),
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

    /// Workers see it at their next commit boundary: none has to be woken.
    fn call_meeting(&mut self, number: u64) {
        let rows = self.policy.meetings.rows();
        for rank_status in self.connected.iter().map(|id| &self.control.rank_statuses[*id]) {
            rank_status.set_group_rows(rows);
            rank_status.call_meeting(number);
        }
    }

    fn remove_stuck(&mut self, id: usize, culprit: Culprit) {
        if self.config.elastic && id == self.role.holder {
            // The next coordinator goes on without it.
            return self.endpoint.kill(id);
        }
        let commands = self.policy.remove(id, culprit, self.now);
        self.execute(commands);
    }

    fn form(&mut self, view: MembershipView, lost: Vec<Culprit>) {
        // After a loss the coordinator stays, because it knows more about it than the next one would.
        let is_complete = view.lost.is_empty() && lost.is_empty();
        if self.role.has_left() && is_complete && view.members.keys().any(|id| self.connected.contains(id)) {
            return self.hand_over();
        }
        let at = self.now + self.endpoint.network().latency;
        let view = Arc::new(view);
        for id in view.members.keys() {
            self.control.rank_statuses[*id].request_pause(false);
            self.control.rank_statuses[*id].set_group_boundary(false);
            let roster = SimulatedRoster { at, view: Arc::clone(&view), lost: lost.clone() };
            self.control.send_roster(*id, roster);
            self.endpoint.wake_at(*id, at);
        }
    }

    fn abort(&mut self, error: Error) {
        self.is_over = true;
        self.abort_error = Some(error.clone());
        self.connected.iter().for_each(|id| self.abort_rank(*id, error.clone()));
        // The launcher kills what does not end by itself.
        for id in 0..self.control.rank_statuses.len() {
            let state = self.endpoint.rank_state(id);
            if state.is_livelocked || state.is_stopped {
                self.endpoint.kill(id);
            }
        }
    }
}
