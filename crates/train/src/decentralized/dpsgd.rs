//! D-PSGD: decentralized parallel stochastic gradient descent (Lian et al. 2017; Langer et al., Figure 15).
//!
//! Every worker `i` has parameters `w_i`, and neighbours in a graph with weights `W_ij` (`mixing.rs`). In each step:
//!
//! ```text
//! send w_i to the neighbours
//! g_i = n r_i / R * gradient of its r_i rows of the step's R, at w_i
//! wait for w_j of this step from the neighbours
//! w_i = update(sum_j W_ij w_j, g_i)
//! ```
//!
//! W knows nothing of rows; the factor n r_i / R makes the mean of all g_i the gradient of all rows, though shares differ.
//! With `mix = "after"` the gradient is applied first, and the updated models are averaged.
//!
//! A worker is at most the diameter of the graph ahead of another, and no step has an exchange of all. At the end of an
//! epoch, for a checkpoint and after the last step all meet and publish the mean of their models; each goes on with its
//! own. They also meet soon after one of them was asked to stop, to leave or to save, or to let a new member in: the wish
//! travels with the models (`meeting.rs`).

use super::meeting::Meeting;
use super::mixing::MixingMatrix;
use super::model_message::Header;
use crate::context::Context;
use crate::reduction::Description;
use crate::reduction::bucket_plan::BucketPlan;
use crate::state::{Spread, State};
use crate::step_report::{self, Requests, StepReport, StepSummary};
use crate::strategy::Strategy;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_cluster::{MessageTag, SendOutcome};
use thalweg_core::event::{Event, Level};
use thalweg_core::spec::neighbours::Mix;
use thalweg_core::{Culprit, Error, JobSpec, Kind, Result};
use thalweg_graph::optimizer::Optimizer;

const MODEL: MessageTag = MessageTag { number: 1, name: "a neighbour's model" };

/// Models that a neighbour may have sent which were not received: those of this step and of the next, and of generations
/// that ended.
const WINDOW: usize = 8;

pub struct Dpsgd {
    /// After the last step committed.
    state: State,
    /// After the step in progress.
    next: State,
    gradient: Vec<f32>,
    /// `W_ii`.
    own_weight: f32,
    /// Every neighbour `j`, with `W_ij`.
    neighbours: Vec<(usize, f32)>,
    meeting: Meeting,
    plan: BucketPlan,
}

impl Dpsgd {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> Dpsgd {
        let state = State::of_own_parameters(parameters);
        let state = state.with_columns(optimizer.slot_names(), Spread::PerMember);
        Dpsgd {
            next: state.clone(),
            state,
            gradient: vec![0.0; parameters],
            own_weight: 1.0,
            neighbours: Vec::new(),
            meeting: Meeting::default(),
            plan: BucketPlan::default(),
        }
    }

    /// Sends the parameters of this worker to its neighbours.
    fn send(&self, cx: &mut Context<'_>, step: u64) -> Result<()> {
        let header = Header { generation: cx.rank.generation().into(), step, meeting: self.meeting.after() };
        let message = header.before(self.next.parameters());
        for (neighbour, _) in &self.neighbours {
            if cx.rank.world().send(*neighbour, MODEL, message.clone())? == SendOutcome::Full {
                return Err(Error::internal("a neighbour has not received the models of earlier steps"));
            }
        }
        Ok(())
    }

    /// Waits for the parameters of all neighbours and averages them with those of this worker.
    fn mix(&mut self, cx: &mut Context<'_>, step: u64) -> Result<()> {
        let (own, generation) = (self.own_weight, cx.rank.generation().into());
        self.next.parameters_mut().iter_mut().for_each(|value| *value *= own);
        for (neighbour, weight) in &self.neighbours {
            let (header, theirs) = loop {
                let message = cx.rank.world().receive(*neighbour, MODEL)?;
                let read = Header::read(&message.bytes, self.state.len(), (generation, step));
                match read.map_err(|cause| invalid(cx.rank.member_id_at(*neighbour), cause))? {
                    // Sent before the last change of the group.
                    (header, _) if header.generation < generation => {}
                    of_this_step => break of_this_step,
                }
            };
            header.meeting.into_iter().for_each(|after| self.meeting.learn(after));
            self.next.parameters_mut().iter_mut().zip(theirs).for_each(|(sum, value)| *sum += weight * value);
        }
        Ok(())
    }

    /// Publishes the mean of all models.
    fn meet(&mut self, cx: &mut Context<'_>, report: &StepReport) -> Result<StepSummary> {
        // Others may be steps behind: the step deadline does not apply.
        cx.rank.begin_preparation("meeting of all workers");
        let share = 1.0 / cx.work.workers() as f32;
        let mut mean: Vec<f32> = self.next.parameters().iter().map(|value| share * value).collect();
        let summary = cx.all_reduce_with_report("parameters", &mut mean, report)?;
        *self.state.published_mut() = mean;
        self.meeting.held();
        Ok(summary)
    }
}

/// Whether all workers meet after a step.
pub(super) fn meets(meeting: &Meeting, cx: &Context<'_>, step: u64) -> bool {
    cx.work.is_boundary(step + 1) || meeting.after() == Some(step)
}

/// The mean of the models that are there after a change: the group may have changed between a meeting and the validation
/// of its model.
pub(super) fn mean_of_all(cx: &mut Context<'_>, own: &[f32]) -> Result<Vec<f32>> {
    let mut mean = own.to_vec();
    // In the first generation all models are the same.
    if cx.rank.generation() > 1 {
        let share = 1.0 / cx.rank.size() as f32;
        mean.iter_mut().for_each(|value| *value *= share);
        cx.rank.world().all_reduce("parameters", &mut mean)?;
    }
    Ok(mean)
}

/// How many steps of a worker are in the model of each of the members with these ids, after so many of theirs.
pub fn arrived(job: &JobSpec, members: &[usize], worker: usize, steps: &[Option<u64>]) -> Vec<Option<u64>> {
    let mixing = MixingMatrix::of_members(&job.neighbours.graph, job.engine.workers, members);
    // A model that is sent after its update takes the rows of its step along.
    let ahead = usize::from(job.neighbours.mix == Mix::After);
    let distances = mixing.distances(worker).into_iter().zip(steps);
    distances.map(|(edges, steps)| (*steps)?.checked_sub(edges?.saturating_sub(ahead) as u64)).collect()
}

pub(super) fn invalid(member: usize, cause: String) -> Error {
    let culprit = Culprit { rank: member, cause: cause.clone(), ..Culprit::default() };
    Error::new(Kind::RankFailed, format!("rank {member} {cause}")).blame(culprit)
}

impl Strategy for Dpsgd {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let step = cx.work.next();
        cx.compute.clear_consumed();
        if Requests::of(cx.rank) != Requests::default() {
            self.meeting.request(step);
        }
        self.next.copy_from(&self.state);
        let before = cx.job.neighbours.mix == Mix::Before;
        if before {
            self.send(cx, step)?;
        }
        let computed = cx.compute_worker_gradient(step, self.state.parameters(), &mut self.gradient)?;
        if before {
            self.mix(cx, step)?;
        }
        cx.update(cx.moment(step), &mut self.next, &self.gradient)?;
        if !before {
            self.send(cx, step)?;
            self.mix(cx, step)?;
        }
        let report = cx.report(computed.loss, computed.took, 1);
        let summary = match meets(&self.meeting, cx, step) {
            true => self.meet(cx, &report)?,
            false => StepSummary::estimate(&report, cx.work.workers(), cx.rank.index(), cx.rank.size()),
        };
        self.state.swap_columns(&mut self.next);
        Ok(summary)
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        let (graph, members) = (&cx.job.neighbours.graph, cx.rank.member_ids());
        let mixing = MixingMatrix::of_members(graph, cx.job.engine.workers, &members);
        mixing.check().map_err(Error::internal)?;
        let (rank, diameter) = (cx.rank.index(), mixing.diameter().unwrap_or(0));
        self.own_weight = mixing.own_weight(rank) as f32;
        self.neighbours = mixing.neighbours(rank).map(|(other, weight)| (other, weight as f32)).collect();
        self.meeting = Meeting::new(diameter);
        *self.state.published_mut() = mean_of_all(cx, self.state.parameters())?;
        let hosts = cx.rank.world().host_numbers().to_vec();
        let length = self.state.len() + step_report::len(cx.rank.size());
        self.plan = BucketPlan::whole(cx.job, cx.compute.model.layout(), &hosts).adopt(cx, length)?;
        if rank == 0 && cx.rank.size() > 1 {
            let message = format!(
                "models are averaged along a graph of diameter {diameter}; differences shrink to {:.4} in a step",
                mixing.second_eigenvalue()
            );
            cx.rank.emit(Event::Notice { level: Level::Info, message });
        }
        Ok(())
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn message_window(&self, _: &JobSpec) -> Option<usize> {
        Some(WINDOW * (2 * Header::BYTES + 4 * self.state.len()))
    }

    fn working_columns(&self) -> usize {
        // The mean, and the state after the step in progress.
        1 + self.next.columns().len()
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        let length = self.state.len() + step_report::len(cx.rank.size());
        self.plan.describe(cx.compute.model.layout(), length)
    }
}
