//! Decides which members are lost, whether the job goes on, and which members form the next group.
//!
//! Pure: its inputs are the members' messages, the closing of their connections and the time; its outputs are
//! [`MembershipCommand`]s. A coordinator executes them ([`MembershipActions`]), on real connections (`coordinator`) or on
//! simulated ones (`engine::simulated`).

mod absence;
mod actions;
mod evidence;
mod progress;
#[cfg(test)]
mod tests;

pub use actions::MembershipActions;

use crate::diagnosis::{Diagnosis, EVIDENCE_TIMEOUT, Evidence, blames_other};
use crate::heartbeat_monitor::{HeartbeatMonitor, StalledGroup};
use crate::meeting_policy::MeetingPolicy;
use crate::membership::{Limits, Membership, MembershipCommand, MembershipView};
use crate::rank::PREPARATION;
use crate::rendezvous::join_validation;
use crate::rendezvous::message::Control;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;
use thalweg_core::event::{Heartbeat, Phase};
use thalweg_core::{Culprit, Error, Kind};

/// What the job asks of the group.
#[derive(Clone, Debug)]
pub struct MembershipConfig {
    /// Whether the others go on when a member is lost.
    pub elastic: bool,
    pub limits: Limits,
    /// Ids of members each of which holds state that no other has: the job ends when one is lost.
    pub servers: Range<usize>,
    /// The longest a rank may hold up a step.
    pub step_deadline: Duration,
    /// The longest the others wait for a rank that reads data or files.
    pub prepare_deadline: Duration,
    /// The wall-clock time, in seconds, of time zero of all times passed in.
    pub epoch: f64,
}

impl MembershipConfig {
    /// For a group of threads that ends with the loss of a member.
    pub fn fixed(step_deadline: Duration) -> MembershipConfig {
        MembershipConfig {
            elastic: false,
            limits: Limits { min: 1, max: usize::MAX, timeout: step_deadline, unit: 1 },
            servers: 0..0,
            step_deadline,
            prepare_deadline: PREPARATION,
            epoch: 0.0,
        }
    }
}

/// Everything known about a group.
pub struct MembershipPolicy {
    config: MembershipConfig,
    pub membership: Membership,
    pub monitor: HeartbeatMonitor,
    pub diagnosis: Diagnosis,
    /// How members were lost since the last group.
    pub lost: Vec<Culprit>,
    /// Per member, the step at which its connections broke last, and how often they did.
    failures: BTreeMap<usize, (u64, u32)>,
    /// Per member, the step of its last conflict with another member, and how many there were.
    conflicts: BTreeMap<usize, (u64, u32)>,
    /// Members on whose report alone another was removed: one such report is not enough for a second removal.
    sole_witnesses: BTreeSet<usize>,
    /// Removed members, and why.
    removed: BTreeMap<usize, String>,
    /// Members that joined after the start of the job.
    newcomers: BTreeSet<usize>,
    /// Members that joined with the current or last generation.
    joined: BTreeSet<usize>,
    /// Meetings of workers at their own speed.
    pub meetings: MeetingPolicy,
    /// Members with a request that waits for a step boundary.
    boundary_requests: BTreeSet<usize>,
    /// The operation in which no rank made progress, if the generation was interrupted for that.
    stall: Option<StalledGroup>,
    /// When the generation was interrupted; `None` once the next group is formed.
    interrupted_at: Option<Duration>,
    /// The step of the last stall after which all members reported: no member caused it.
    stall_without_culprit: Option<u64>,
    /// The job was ended: members that go now are not lost.
    is_over: bool,
}

impl MembershipPolicy {
    /// For the `expected` members, after this generation (0: there was none) and the loss of `lost`; the job began with
    /// `world` ranks.
    pub fn new(
        config: MembershipConfig,
        expected: &[usize],
        after: u32,
        lost: &[usize],
        world: usize,
        now: Duration,
    ) -> MembershipPolicy {
        let (step_deadline, prepare_deadline) = (config.step_deadline, config.prepare_deadline);
        MembershipPolicy {
            membership: Membership::new(expected.iter().copied(), after, config.limits, now),
            monitor: HeartbeatMonitor::new(world, step_deadline, step_deadline, prepare_deadline),
            diagnosis: Diagnosis::new(world, EVIDENCE_TIMEOUT),
            lost: lost
                .iter()
                .map(|id| join_validation::exited(*id, config.epoch + now.as_secs_f64()))
                .collect(),
            failures: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            sole_witnesses: BTreeSet::new(),
            removed: BTreeMap::new(),
            newcomers: BTreeSet::new(),
            joined: BTreeSet::new(),
            meetings: MeetingPolicy::default(),
            boundary_requests: BTreeSet::new(),
            stall: None,
            interrupted_at: None,
            stall_without_culprit: None,
            is_over: false,
            config,
        }
    }

    pub fn on_message(&mut self, id: usize, message: Control, now: Duration) -> Vec<MembershipCommand> {
        if self.is_over || !self.membership.has(id) {
            return self.on_outsider_message(id, &message, now);
        }
        match message {
            Control::Heartbeat(heartbeat) => {
                self.diagnosis.on_heartbeat(id, heartbeat.clone());
                self.monitor.on_heartbeat(id, now, heartbeat);
                Vec::new()
            }
            Control::Witness(error, heartbeat, source) => {
                let source = source.filter(|source| *source != id && self.membership.has(*source));
                if let (Some(source), Some(accused)) = (source, &error.culprit) {
                    self.diagnosis.add_source(id, source, accused.rank);
                }
                self.diagnosis.add(now, Evidence::Lost { rank: id, error: *error, heartbeat });
                Vec::new()
            }
            Control::Report(after, position, heartbeat) => {
                self.note_wait(&heartbeat);
                let commands = self.membership.report(id, after, position, now);
                self.complete(commands, now)
            }
            Control::Failed(error, heartbeat) => {
                let mut commands = vec![self.disconnect(id)];
                if self.config.elastic && blames_other(id, &error) {
                    // It ended before the next group was formed: for the others it is lost.
                    commands.extend(self.on_evidence(Evidence::Vanished { rank: id, heartbeat }, now, now));
                } else if self.is_dispensable(id) {
                    let cause = format!("failed: {}", error.message);
                    let culprit = self.noticed_at_once(id, cause, now);
                    commands.extend(self.remove(id, culprit, now));
                } else {
                    self.diagnosis.add(now, Evidence::Failed { rank: id, error: *error, heartbeat });
                }
                commands
            }
            Control::Leave | Control::Goodbye => {
                let mut commands = vec![self.disconnect(id)];
                if message == Control::Goodbye {
                    self.monitor.begin_shutdown(now);
                }
                let left = self.membership.leave(id, message == Control::Goodbye, now);
                commands.extend(self.complete(left, now));
                commands
            }
            Control::BoundaryRequested(true) => {
                self.boundary_requests.insert(id);
                Vec::new()
            }
            Control::BoundaryRequested(false) => {
                self.boundary_requests.remove(&id);
                Vec::new()
            }
            Control::Work(report) => {
                let called = self.meetings.on_report(id, report);
                called.map(MembershipCommand::CallMeeting).into_iter().collect()
            }
            Control::Interrupt(..)
            | Control::Meeting { .. }
            | Control::Roster(_)
            | Control::Abort(_)
            | Control::Moved
            | Control::Pause
            | Control::Probe(_)
            | Control::Probed { .. } => Vec::new(),
        }
    }

    /// A process outside of the group, or after the end of the job, can only leave: no message of it changes anything for the
    /// members.
    fn on_outsider_message(&mut self, id: usize, message: &Control, now: Duration) -> Vec<MembershipCommand> {
        match message {
            Control::Failed(..) | Control::Leave | Control::Goodbye => {
                let _ = self.membership.remove(id, now);
                vec![self.disconnect(id)]
            }
            _ => Vec::new(),
        }
    }

    /// Takes the operation that a member had to leave as the one in which the lost members were waited for.
    pub fn note_wait(&mut self, heartbeat: &Heartbeat) {
        if heartbeat.phase != Phase::Exchanging {
            return;
        }
        for culprit in &mut self.lost {
            if culprit.step.is_none_or(|step| step <= heartbeat.step) {
                (culprit.step, culprit.operation) = (Some(heartbeat.step), Some(heartbeat.name.clone()));
            }
        }
    }

    /// Whether a request of any member waits for a step boundary.
    pub fn boundary_requested(&self) -> bool {
        !self.boundary_requests.is_empty()
    }

    fn disconnect(&mut self, id: usize) -> MembershipCommand {
        self.monitor.remove(id);
        self.boundary_requests.remove(&id);
        self.meetings.remove(id);
        MembershipCommand::Disconnect(id)
    }

    /// A member's connection was `seen` to close.
    pub fn on_close(&mut self, id: usize, seen: Duration, now: Duration) -> Vec<MembershipCommand> {
        let heartbeat = self.monitor.last_heartbeat(id).cloned().unwrap_or_default();
        let mut commands = vec![self.disconnect(id)];
        if self.membership.generation() == 0 {
            // It may connect again: the rendezvous has its own deadline, and the launcher knows whether it died.
            self.membership.expect(id);
        } else if self.membership.has(id) && !self.is_over {
            commands.extend(self.on_evidence(Evidence::Vanished { rank: id, heartbeat }, seen, now));
        } else {
            let _ = self.membership.remove(id, now);
        }
        commands
    }

    /// Whether a member joined after the start, so that the others can go on without it whatever its failure is.
    fn is_dispensable(&self, id: usize) -> bool {
        self.config.elastic && self.newcomers.contains(&id) && self.membership.len() > 1
    }

    /// Why the others went on without a member; `None` if they did not.
    pub fn removal_reason(&self, id: usize) -> Option<&str> {
        self.removed.get(&id).map(String::as_str)
    }

    /// The others go on without a member whose process has ended or is being ended.
    pub fn remove(&mut self, id: usize, culprit: Culprit, now: Duration) -> Vec<MembershipCommand> {
        let mut commands = vec![self.disconnect(id)];
        if self.membership.has(id) {
            self.removed.insert(id, culprit.cause.clone());
        }
        self.lost.push(culprit);
        let removed = self.membership.remove(id, now);
        match self.lost_server() {
            Some(error) => commands.push(self.abort(error)),
            None => commands.extend(self.complete(removed, now)),
        }
        commands
    }

    fn abort(&mut self, error: Error) -> MembershipCommand {
        self.is_over = true;
        MembershipCommand::Abort(Box::new(error))
    }

    /// The error that ends the job if a server is lost. One that has completed the job has left, and is not needed any more.
    fn lost_server(&self) -> Option<Error> {
        let is_lost = |id: usize| self.config.servers.contains(&id) && !self.membership.has(id);
        let culprit = self.lost.iter().find(|culprit| is_lost(culprit.rank))?;
        let message = format!(
            "{}, a server, {}; no other rank has its state",
            self.diagnosis.name(culprit.rank),
            culprit.cause
        );
        let error = Error::new(Kind::RankFailed, message).blame(culprit.clone());
        Some(error.hint("`thalweg resume` goes on from the last checkpoint"))
    }

    /// Checks all deadlines.
    pub fn tick(&mut self, now: Duration) -> Vec<MembershipCommand> {
        if self.is_over {
            return Vec::new();
        }
        if let Some(error) = self.lost_server() {
            // It was lost together with the coordinator before this one.
            return vec![self.abort(error)];
        }
        let mut commands = Vec::new();
        if !self.diagnosis.has_direct_evidence()
            && let Some(evidence) = self.monitor.find_culprit(now)
        {
            commands.extend(self.on_evidence(evidence, now, now));
        }
        if let Some(error) = self.diagnosis.conclude(now) {
            commands.extend(self.on_diagnosis(error, now));
        }
        commands.extend(self.interrupt_stalled(now));
        commands.extend(self.remove_unreported(now));
        let formed = self.membership.try_form(now);
        commands.extend(self.complete(formed, now));
        commands
    }

    /// Adds reasons and culprits to the commands of [`Membership`].
    pub fn complete(&mut self, partial: Vec<MembershipCommand>, now: Duration) -> Vec<MembershipCommand> {
        let mut commands = Vec::new();
        for command in partial {
            commands.push(match command {
                MembershipCommand::Interrupt(generation, _) => {
                    self.diagnosis.clear();
                    self.interrupted_at.get_or_insert(now);
                    let reason = join_validation::interruption(self.lost.last(), self.stall.as_ref());
                    MembershipCommand::Interrupt(generation, Box::new(reason))
                }
                MembershipCommand::Remove(id, culprit) => {
                    let noticed = self.wall_clock(now);
                    commands.extend(self.remove_or_abort(id, Culprit { noticed, ..*culprit }, now));
                    continue;
                }
                MembershipCommand::Form(view, _) => self.form(view, now),
                MembershipCommand::Abort(error) => {
                    let error = join_validation::after_loss(*error, &self.lost);
                    self.abort(error)
                }
                command @ (MembershipCommand::Pause
                | MembershipCommand::CallMeeting(_)
                | MembershipCommand::Disconnect(_)) => command,
            });
        }
        commands
    }

    /// A member broke the protocol: the others go on without it, or the job ends with it as the culprit.
    fn remove_or_abort(&mut self, id: usize, culprit: Culprit, now: Duration) -> Vec<MembershipCommand> {
        if self.config.elastic {
            return self.remove(id, culprit, now);
        }
        let message = format!("{} {}", self.diagnosis.name(id), culprit.cause);
        vec![self.abort(Error::new(Kind::RankFailed, message).blame(culprit))]
    }

    fn form(&mut self, view: MembershipView, now: Duration) -> MembershipCommand {
        // A member lost after the others had left their operations was waited for only while the group was formed.
        let positions = view.members.values().filter_map(|member| member.position);
        let step = positions.map(|position| position.step).max();
        let known = self.lost.iter().find_map(|culprit| culprit.operation.clone());
        for culprit in self.lost.iter_mut().filter(|culprit| culprit.operation.is_none()) {
            culprit.operation = known.clone().or_else(|| Some("forming of the group".into()));
            culprit.step = culprit.step.or(step).or(Some(0));
        }
        self.interrupted_at = None;
        let stall = self.stall.take().filter(|_| self.lost.is_empty());
        self.stall_without_culprit = stall.map(|stall| stall.heartbeat.step).or(self.stall_without_culprit);
        // Evidence so far is about the last group: members send it before they report.
        self.diagnosis.clear();
        self.meetings.clear();
        self.newcomers.extend(&view.joined);
        self.joined = view.joined.iter().copied().collect();
        view.members.keys().for_each(|id| drop(self.removed.remove(id)));
        view.members.keys().for_each(|id| self.monitor.expect(*id, now, Phase::Preparing));
        MembershipCommand::Form(view, std::mem::take(&mut self.lost))
    }

    /// A culprit whose failure took no time to detect.
    fn noticed_at_once(&self, rank: usize, cause: String, now: Duration) -> Culprit {
        let noticed = self.wall_clock(now);
        Culprit { rank, cause, detect_s: Some(0.0), noticed, ..Culprit::default() }
    }

    fn wall_clock(&self, now: Duration) -> Option<f64> {
        Some(self.config.epoch + now.as_secs_f64())
    }
}
