//! The members of the group, generation by generation: a pure state machine.
//!
//! Its inputs are reports, losses, departures and joins of members; its outputs are [`MembershipCommand`]s, which
//! [`MembershipPolicy`](crate::membership_policy::MembershipPolicy) completes and a coordinator executes, on real or on
//! simulated connections. It reads no clock and does no IO, so the same inputs always give the same group: a replicated
//! coordinator could keep them as its log.
//!
//! ```text
//!              all members have reported, and they are enough
//!    forming  ------------------------------------------------>  working
//!       ^                                                           |
//!       |   a member was lost: `Interrupt` ends its operations      |
//!       |   a member reports by itself, at a step boundary          |
//!       +-----------------------------------------------------------+
//! ```
//!
//! A member keeps its id for the whole job; the ranks of a generation are its members in the order of their ids.

use crate::rendezvous::join_validation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use thalweg_core::{Culprit, Error};

/// Progress of a member's work, ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Completed steps.
    pub step: u64,
    /// What is completed at that step boundary: closed epochs, for instance.
    pub stage: u64,
}

/// A member's state in its report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberPosition {
    /// `None` as long as it has no training state.
    pub position: Option<Position>,
    /// Whether it had begun the next step.
    pub begun: bool,
}

/// Size of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Fewer members do not go on.
    pub min: usize,
    /// More members are not admitted.
    pub max: usize,
    /// How long to wait for `min` members.
    pub timeout: Duration,
    /// Steps of a commit unit: members are before a unit or after it.
    pub unit: u64,
}

/// What the coordinator has to do. [`Membership`] knows neither reasons nor culprits of failures: the policy adds them.
#[derive(Clone, Debug, PartialEq)]
pub enum MembershipCommand {
    /// Close the control connection to this member.
    Disconnect(usize),
    /// Tell the members that this generation is over, and why: they leave their operations and report.
    Interrupt(u32, Box<Error>),
    /// A new member waits: ask the members to report at the next step boundary.
    Pause,
    /// From the policy: workers at their own speed meet after their commit units.
    CallMeeting(u64),
    /// The group goes on without this member. From [`Membership`]: its report is impossible. From the policy: it is
    /// connected but makes no progress, so its process has to be ended before the policy's `remove`.
    Remove(usize, Box<Culprit>),
    /// Send the members their group, and how members were lost since the last one.
    Form(MembershipView, Vec<Culprit>),
    /// End the job for all members.
    Abort(Box<Error>),
}

/// How far beyond its own knowledge a coordinator that took over the role accepts a member's generation: the coordinator
/// before it may have formed groups it was not part of.
const UNKNOWN_GENERATIONS: u32 = 1 << 20;

/// An agreed group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipView {
    pub generation: u32,
    /// By id.
    pub members: BTreeMap<usize, MemberPosition>,
    /// Members lost since the last generation.
    pub lost: Vec<usize>,
    /// Members added since the last generation.
    pub joined: Vec<usize>,
    /// Members that left in good order since the last generation.
    pub left: Vec<usize>,
}

/// The members of a job.
#[derive(Clone, Debug)]
pub struct Membership {
    limits: Limits,
    /// Of the current or last group; 0 before the first.
    generation: u32,
    /// Since when a group is being formed; `None` while one works.
    forming: Option<Duration>,
    /// Members of the current or last group, and their reports for the next one.
    members: BTreeMap<usize, Option<MemberPosition>>,
    /// Ready, and waiting for the next generation.
    newcomers: BTreeMap<usize, MemberPosition>,
    /// Whether the members were asked to pause for them.
    paused: bool,
    lost: Vec<usize>,
    left: Vec<usize>,
    /// A member has completed the job: the others need not wait for more members.
    done: bool,
    /// Whether another coordinator formed the groups so far, so that members may know of later generations.
    inherited: bool,
    /// The step from which the current or last group went on.
    resumed: u64,
}

impl Membership {
    /// The group of the `expected` members is to be formed, after this generation (0: there was none).
    pub fn new(
        expected: impl IntoIterator<Item = usize>,
        after: u32,
        limits: Limits,
        now: Duration,
    ) -> Membership {
        Membership {
            limits,
            generation: after,
            forming: Some(now),
            members: expected.into_iter().map(|id| (id, None)).collect(),
            newcomers: BTreeMap::new(),
            paused: false,
            lost: Vec::new(),
            left: Vec::new(),
            done: false,
            inherited: after > 0,
            resumed: 0,
        }
    }

    /// The current or last generation.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    pub fn is_working(&self) -> bool {
        self.forming.is_none()
    }

    /// `None` while a group works.
    pub fn forming_since(&self) -> Option<Duration> {
        self.forming
    }

    pub fn has(&self, id: usize) -> bool {
        self.members.contains_key(&id)
    }

    /// Ids of the group that works or is being formed, in order.
    pub fn members(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.members.keys().copied()
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Members without a report for the next group.
    pub fn missing(&self) -> Vec<usize> {
        self.members.iter().filter(|(_, report)| report.is_none()).map(|(id, _)| *id).collect()
    }

    /// Whether any member has reported for the next group.
    pub fn has_reports(&self) -> bool {
        self.members.values().any(Option::is_some)
    }

    /// How many members are missing to the minimum.
    pub fn wanted(&self) -> usize {
        self.limits.min.saturating_sub(self.members.len() + self.newcomers.len())
    }

    /// The lowest unused id that is not below `from`.
    pub fn free_id(&self, from: usize) -> usize {
        let taken: BTreeSet<usize> = self.members.keys().chain(self.newcomers.keys()).copied().collect();
        (from..).find(|id| !taken.contains(id)).unwrap_or(0)
    }

    /// Whether one more member fits, beside `coming` that are being admitted.
    pub fn has_room(&self, coming: usize) -> bool {
        self.members.len() + self.newcomers.len() + coming < self.limits.max
    }

    /// Why a report is impossible; `None` if it is not.
    pub fn objection(&self, after: u32, reported: MemberPosition) -> Option<String> {
        let known = self.generation.saturating_add(if self.inherited { UNKNOWN_GENERATIONS } else { 0 });
        if after > known {
            return Some(format!("it reports generation {after}, and the last one was {}", self.generation));
        }
        // A member that had not received the state of the step the group resumed from may be one commit unit behind.
        let step = reported.position?.step;
        (step.saturating_add(self.limits.unit.max(1)) < self.resumed)
            .then(|| format!("it reports step {step}, and its group went on from step {}", self.resumed))
    }

    /// A member has left its operations; `after` is the last generation it knows. If a group works, the report comes from
    /// a step boundary at which all members do the same. An impossible report removes the member; reports of processes
    /// that are not members have no effect.
    pub fn report(
        &mut self,
        id: usize,
        after: u32,
        reported: MemberPosition,
        now: Duration,
    ) -> Vec<MembershipCommand> {
        let objection = self.objection(after, reported);
        let Some(report) = self.members.get_mut(&id) else { return Vec::new() };
        if after < self.generation && self.forming.is_none() {
            // The report is about a generation that is over.
            return Vec::new();
        }
        if let Some(objection) = objection {
            return vec![removal(id, objection)];
        }
        // An earlier coordinator may have formed groups that are unknown here.
        self.generation = self.generation.max(after);
        *report = Some(reported);
        self.forming.get_or_insert(now);
        self.try_form(now)
    }

    /// Withdraws a member's report: its connection closed before the group was formed, and it may connect again.
    pub fn expect(&mut self, id: usize) {
        self.newcomers.remove(&id);
        if let Some(report) = self.members.get_mut(&id) {
            *report = None;
        }
    }

    /// Adds a new member, which takes part from the next generation on.
    pub fn add(&mut self, id: usize, now: Duration) -> Vec<MembershipCommand> {
        self.newcomers.insert(id, MemberPosition::default());
        let mut commands = self.try_form(now);
        if self.is_working() && !self.paused && !self.newcomers.is_empty() {
            self.paused = true;
            commands.push(MembershipCommand::Pause);
        }
        commands
    }

    /// A member died or was given up: the generation is over.
    pub fn remove(&mut self, id: usize, now: Duration) -> Vec<MembershipCommand> {
        if self.newcomers.remove(&id).is_some() || self.members.remove(&id).is_none() {
            return Vec::new();
        }
        self.lost.push(id);
        self.interrupt(now)
    }

    /// Ends the generation with the same members, because their connections failed or they are stalled.
    pub fn interrupt(&mut self, now: Duration) -> Vec<MembershipCommand> {
        if self.forming.is_none() {
            self.forming = Some(now);
        }
        let reason = Box::new(join_validation::interruption(None, None));
        let mut commands = vec![MembershipCommand::Interrupt(self.generation, reason)];
        commands.extend(self.try_form(now));
        commands
    }

    /// A member leaves in good order: because the job is `done`, or because it was asked to.
    pub fn leave(&mut self, id: usize, done: bool, now: Duration) -> Vec<MembershipCommand> {
        self.newcomers.remove(&id);
        self.done |= done;
        if self.members.remove(&id).is_none() {
            return Vec::new();
        }
        if !done {
            self.left.push(id);
            self.forming.get_or_insert(now);
        }
        self.try_form(now)
    }

    /// Forms the group once all its members have reported; gives up if they are too few for longer than the timeout.
    pub fn try_form(&mut self, now: Duration) -> Vec<MembershipCommand> {
        let Some(since) = self.forming else { return Vec::new() };
        // Newcomers have no state to go on from: a group needs at least one earlier member.
        if self.members.is_empty() || !self.missing().is_empty() {
            return Vec::new();
        }
        let count = self.members.len() + self.newcomers.len();
        if count < self.limits.min && !self.done {
            let late = now.saturating_sub(since) >= self.limits.timeout;
            let too_few = || MembershipCommand::Abort(Box::new(join_validation::too_few(count, self.limits)));
            return late.then(too_few).into_iter().collect();
        }
        if let Some(command) = self.remove_implausible() {
            return vec![command];
        }
        let joined: Vec<usize> = self.newcomers.keys().copied().collect();
        let stayed = std::mem::take(&mut self.members);
        let mut members: BTreeMap<usize, MemberPosition> =
            stayed.into_iter().map(|(id, report)| (id, report.unwrap_or_default())).collect();
        members.append(&mut self.newcomers);
        self.generation += 1;
        self.inherited = false;
        let positions = members.values().filter_map(|member| member.position);
        self.resumed = positions.map(|position| position.step).max().unwrap_or(0);
        self.members = members.keys().map(|id| (*id, None)).collect();
        (self.forming, self.paused) = (None, false);
        let view = MembershipView {
            generation: self.generation,
            members,
            lost: std::mem::take(&mut self.lost),
            joined: if self.generation == 1 { Vec::new() } else { joined },
            left: std::mem::take(&mut self.left),
        };
        vec![MembershipCommand::Form(view, Vec::new())]
    }

    /// Members are before a commit unit or after it: a member that reports a later step would be asked for a state that
    /// does not exist.
    fn remove_implausible(&self) -> Option<MembershipCommand> {
        let position = |report: &Option<MemberPosition>| report.and_then(|member| member.position);
        let mut steps: Vec<u64> = self.members.values().filter_map(position).map(|at| at.step).collect();
        steps.sort_unstable();
        let median = *steps.get(steps.len().checked_sub(1)? / 2)?;
        let claims = |(id, report): (&usize, &Option<MemberPosition>)| Some((*id, position(report)?.step));
        let (id, step) = self
            .members
            .iter()
            .filter_map(claims)
            .find(|(_, step)| *step > median.saturating_add(self.limits.unit))?;
        Some(removal(id, format!("it reports step {step}, and the others are at step {median}")))
    }
}

/// Removes a member that broke the protocol.
fn removal(id: usize, objection: String) -> MembershipCommand {
    let cause = format!("broke the protocol: {objection}");
    let culprit = Culprit { rank: id, cause, detect_s: Some(0.0), ..Culprit::default() };
    MembershipCommand::Remove(id, Box::new(culprit))
}
