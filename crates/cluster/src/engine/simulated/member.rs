//! A simulated rank's membership client, and its clock. Both end the rank's thread once the rank is killed.

use super::control::{MemberMessage, SimulatedControl, SimulatedRoster};
use crate::fault_injection::FaultyProcess;
use crate::hosts::Hosts;
use crate::membership::MemberPosition;
use crate::membership_policy::MembershipConfig;
use crate::rank_status::RankStatus;
use crate::regroup::{Generation, MembershipChange, MembershipClient, false_report, include_lost};
use crate::rendezvous::message::Control;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use thalweg_comm::host::LocalPeers;
use thalweg_comm::transport::sim::{SimulatedEndpoint, SimulatedFaultKind};
use thalweg_core::clock::Clock;
use thalweg_core::event::Heartbeat;
use thalweg_core::{Culprit, Error, Kind, Result};

/// Interval of checks whether the job is over.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The panic payload that ends the thread of a killed rank: no program can catch it.
pub(super) struct Killed;

#[derive(Clone)]
pub(super) struct SimulatedMember {
    pub id: usize,
    pub endpoint: SimulatedEndpoint,
    pub control: Arc<SimulatedControl>,
    pub config: MembershipConfig,
    /// The generation it is in, or enters.
    pub generation: Arc<AtomicU32>,
    /// The coordinator that it is connected to.
    pub term: Arc<AtomicU32>,
}

impl SimulatedMember {
    fn rank_status(&self) -> &RankStatus {
        &self.control.rank_statuses[self.id]
    }

    fn now(&self) -> Duration {
        self.endpoint.clock().now()
    }

    /// Ends this thread if the rank was killed.
    fn die_if_killed(&self) {
        if self.endpoint.rank_state(self.id).is_dead {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }

    fn wait(&self) {
        self.endpoint.wait(POLL_INTERVAL);
        self.die_if_killed();
    }

    pub fn send(&self, message: MemberMessage) {
        self.control.send(&self.endpoint, self.id, self.term.load(Ordering::Relaxed), message);
    }

    /// The first generation of this rank.
    pub fn join(&mut self, is_new: bool) -> Result<Generation> {
        self.die_if_killed();
        self.term.store(self.control.latest_term(), Ordering::Relaxed);
        let request = if is_new { MemberMessage::Join } else { MemberMessage::Start };
        let roster = self.request_roster(&request, 0)?;
        self.enter(roster, MemberPosition::default(), &Heartbeat::default())
    }

    /// Reports the loss of a peer, and waits for the coordinator's reaction.
    pub fn report_witness(&self, error: &Error, heartbeat: &Heartbeat, source: Option<usize>) {
        self.die_if_killed();
        let witness = Control::Witness(Box::new(error.clone()), heartbeat.clone(), source);
        self.send(MemberMessage::Control(witness));
        let end = self.now() + self.config.step_deadline + self.config.prepare_deadline;
        loop {
            self.endpoint.mark();
            if self.rank_status().end_reason(self.generation.load(Ordering::Relaxed)).is_some() {
                return;
            }
            if self.now() >= end {
                // The coordinator did not react.
                return self.rank_status().abort(error.clone());
            }
            self.wait();
        }
    }

    /// Sends a request to the coordinator, and again to each that takes over the role, and waits for the next group.
    fn request_roster(&self, request: &MemberMessage, after: u32) -> Result<SimulatedRoster> {
        let MembershipConfig { limits, step_deadline, prepare_deadline, .. } = &self.config;
        let timeout = limits.timeout.max(*prepare_deadline) + 2 * *step_deadline;
        let connected = self.term.load(Ordering::Relaxed);
        let (mut end, mut sent) = (self.now() + timeout, None);
        loop {
            self.endpoint.mark();
            self.rank_status().abort_reason().map_or(Ok(()), Err)?;
            if let Some(mut roster) = self.control.roster(self.id, after, self.now()) {
                // A new coordinator does not know how the last one was lost; its ranks do.
                include_lost(&mut roster.lost, self.control.lost_since(connected));
                return Ok(roster);
            }
            if let Some(term) = self.control.term().filter(|term| sent != Some(*term)) {
                self.term.store(term, Ordering::Relaxed);
                self.send(request.clone());
                (end, sent) = (self.now() + timeout, Some(term));
            }
            if self.now() >= end {
                let message = format!("no group was formed within {} s", timeout.as_secs_f64());
                return Err(Error::new(Kind::RankFailed, message));
            }
            self.wait();
        }
    }

    /// Enters that group or, if it is interrupted before, the next that is not.
    fn enter(
        &mut self,
        mut roster: SimulatedRoster,
        position: MemberPosition,
        doing: &Heartbeat,
    ) -> Result<Generation> {
        // Changes of groups that were not completed.
        let mut unreported = MembershipChange::default();
        loop {
            let generation = roster.view.generation;
            self.generation.store(generation, Ordering::Relaxed);
            if let Err(error) = self.check_reachable(&roster, doing)
                && self.rank_status().end_reason(generation).is_none()
            {
                self.rank_status().report_witness(&error);
            }
            self.rank_status().abort_reason().map_or(Ok(()), Err)?;
            if !self.rank_status().generation_is_over(generation) {
                let mut connected = self.connect(roster);
                connected.change.include_earlier(unreported);
                return Ok(connected);
            }
            let SimulatedRoster { view, lost, .. } = roster;
            let mut passed = MembershipChange {
                lost,
                joined: view.joined.clone(),
                left: view.left.clone(),
                ..MembershipChange::default()
            };
            passed.include_earlier(unreported);
            unreported = passed;
            roster = self.request_roster(&report(generation, position, doing), generation)?;
        }
    }

    /// Waits if a member cannot be reached, and returns the error.
    fn check_reachable(&self, roster: &SimulatedRoster, doing: &Heartbeat) -> Result<()> {
        let Some(&peer) = roster.view.members.keys().find(|peer| self.endpoint.is_cut_off(**peer)) else {
            return Ok(());
        };
        // It gives up on the peer before the coordinator takes both for stalled.
        let timeout = self.config.step_deadline / 2;
        let end = self.now() + timeout;
        while self.now() < end {
            self.endpoint.mark();
            self.rank_status().end_reason(roster.view.generation).map_or(Ok(()), Err)?;
            self.wait();
        }
        let cause = format!("cannot be reached: no answer within {} s", timeout.as_secs_f64());
        Err(Error::new(Kind::RankFailed, format!("rank {peer} {cause}")).blame(Culprit {
            rank: peer,
            step: Some(doing.step),
            operation: Some("forming of the group".into()),
            cause,
            ..Culprit::default()
        }))
    }

    fn connect(&self, roster: SimulatedRoster) -> Generation {
        let SimulatedRoster { view, lost, .. } = roster;
        let member_ids: Vec<usize> = view.members.keys().copied().collect();
        Generation {
            number: view.generation,
            transport: Box::new(self.endpoint.connect(view.generation, &member_ids)),
            local_peers: LocalPeers::new(),
            carrier: "sim",
            hosts: Hosts::one("sim", member_ids.len()),
            member_ids,
            change: MembershipChange {
                positions: view.members.values().copied().collect(),
                lost,
                joined: view.joined.clone(),
                left: view.left.clone(),
                reaches_launcher: Vec::new(),
            },
        }
    }
}

fn report(after: u32, position: MemberPosition, doing: &Heartbeat) -> MemberMessage {
    MemberMessage::Control(Control::Report(after, position, doing.clone()))
}

impl MembershipClient for SimulatedMember {
    fn next(
        &mut self,
        after: u32,
        position: MemberPosition,
        doing: &Heartbeat,
        _: &LocalPeers,
    ) -> Result<Generation> {
        self.die_if_killed();
        let roster = self.request_roster(&report(after, position, doing), after)?;
        self.enter(roster, position, doing)
    }

    fn leave(&mut self) {
        self.send(MemberMessage::Control(Control::Leave));
    }

    fn send_false_report(&mut self) {
        self.send(MemberMessage::Control(false_report()));
    }
}

impl FaultyProcess for SimulatedMember {
    fn kill(&self) {
        self.endpoint.inject(SimulatedFaultKind::Kill { rank: self.id });
        self.die_if_killed();
    }

    fn stop(&self) {
        // Until the others have gone on without it.
        let duration = 2 * (self.config.step_deadline + self.config.prepare_deadline);
        self.endpoint.inject(SimulatedFaultKind::Stop { rank: self.id, duration });
        self.wait();
    }

    fn livelock(&self) -> ! {
        self.endpoint.inject(SimulatedFaultKind::Livelock { rank: self.id });
        loop {
            self.wait();
        }
    }
}

impl Clock for SimulatedMember {
    fn now(&self) -> Duration {
        SimulatedMember::now(self)
    }

    fn sleep(&self, duration: Duration) {
        self.endpoint.clock().sleep(duration);
        self.die_if_killed();
    }

    fn charge(&self, operations: u64) {
        self.endpoint.clock().charge(operations);
        self.die_if_killed();
    }

    fn is_virtual(&self) -> bool {
        true
    }
}
