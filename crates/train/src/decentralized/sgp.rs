//! SGP: stochastic gradient push (Assran, Loizou, Ballas and Rabbat 2019).
//!
//! Every worker `i` has a model `z_i` and a weight `a_i`, at first 1, and successors in a directed graph (`push_graph.rs`).
//! In each step:
//!
//! ```text
//! x_i = a_i z_i
//! g_i = n r_i / R * gradient of its r_i rows of the step's R, at z_i
//! x_i = update(x_i, g_i)
//! send p (x_i, a_i) to the successors and keep as much        p = 1 / (1 + their number)
//! wait for the shares of the predecessors of this step
//! (x_i, a_i) = the sum of what was kept and received
//! z_i = x_i / a_i
//! ```
//!
//! Nothing is asked for: a worker waits for its predecessors alone. The weights of all add up to n; who receives more than
//! it sends has more weight, and the division takes it out again. Where all have as many predecessors as successors, as in
//! the exponential graph, all weights stay 1. With `mix = "before"` shares are sent before the gradient is computed.
//!
//! At the end of an epoch, for a checkpoint and after the last step all meet, and soon after a request (`meeting.rs`), as in
//! D-PSGD. The published model is the weighted mean of all `z_i`. A change of the group loses the shares in flight: push-sum
//! begins again from the `z_i` of those that are left, with weights of 1.

use super::dpsgd::{invalid, mean_of_all, meets};
use super::meeting::Meeting;
use super::model_message::Header;
use super::push_graph::PushGraph;
use crate::context::Context;
use crate::reduction::Description;
use crate::reduction::bucket_plan::BucketPlan;
use crate::state::{Spread, State};
use crate::step_report::{self, Requests, StepReport, StepSummary};
use crate::strategy::Strategy;
use thalweg_cluster::MessageTag;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::event::{Event, Level};
use thalweg_core::spec::neighbours::Mix;
use thalweg_core::{Error, JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

const SHARE: MessageTag = MessageTag { number: 1, name: "a predecessor's share" };

/// Shares that a predecessor may have sent which were not received. It may be ahead of its successor by more steps: then it
/// waits.
const WINDOW: usize = 8;

pub struct Sgp {
    /// `z_i`, after the last step committed.
    state: State,
    /// After the step in progress: `x_i` on the way.
    next: State,
    /// `a_i`, after the last step committed.
    weight: f32,
    gradient: Vec<f32>,
    graph: PushGraph,
    meeting: Meeting,
    plan: BucketPlan,
}

impl Sgp {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> Sgp {
        let state = State::of_own_parameters(parameters);
        let state = state.with_columns(optimizer.slot_names(), Spread::PerMember);
        Sgp {
            next: state.clone(),
            state,
            weight: 1.0,
            gradient: vec![0.0; parameters],
            graph: PushGraph::default(),
            meeting: Meeting::default(),
            plan: BucketPlan::default(),
        }
    }

    /// Sends equal shares of `(x_i, a_i)` to the successors and keeps one. Returns the weight that is kept.
    fn push(&mut self, cx: &mut Context<'_>, step: u64) -> Result<f32> {
        let successors = self.graph.successors(cx.rank.index(), step);
        let share = 1.0 / (1 + successors.len()) as f32;
        self.next.parameters_mut().iter_mut().for_each(|value| *value *= share);
        let kept = share * self.weight;
        let header = Header { generation: cx.rank.generation().into(), step, meeting: self.meeting.after() };
        let mut values = self.next.parameters().to_vec();
        values.push(kept);
        let message = header.before(&values);
        for successor in successors {
            cx.rank.world().send_waiting(*successor, SHARE, message.clone())?;
        }
        Ok(kept)
    }

    /// Waits for the shares of all predecessors and adds them. Returns the weight of all.
    fn receive(&mut self, cx: &mut Context<'_>, step: u64, kept: f32) -> Result<f32> {
        let generation = cx.rank.generation().into();
        let predecessors: Vec<usize> = self.graph.predecessors(cx.rank.index(), step).collect();
        let mut weight = kept;
        for from in predecessors {
            let (header, mut theirs) = loop {
                let message = cx.rank.world().receive(from, SHARE)?;
                let read = Header::read(&message.bytes, self.state.len() + 1, (generation, step));
                match read.map_err(|cause| invalid(cx.rank.member_id_at(from), cause))? {
                    // Sent before the last change of the group.
                    (header, _) if header.generation < generation => {}
                    of_this_step => break of_this_step,
                }
            };
            let pushed = theirs.pop().filter(|pushed| *pushed > 0.0);
            weight += pushed.ok_or_else(|| invalid(cx.rank.member_id_at(from), "sent no weight".into()))?;
            header.meeting.into_iter().for_each(|after| self.meeting.learn(after));
            self.next.parameters_mut().iter_mut().zip(theirs).for_each(|(sum, value)| *sum += value);
        }
        Ok(weight)
    }

    /// Publishes the mean of all models, by their weights.
    fn meet(&mut self, cx: &mut Context<'_>, weight: f32, report: &StepReport) -> Result<StepSummary> {
        // Others may be steps behind: the step deadline does not apply.
        cx.rank.begin_preparation("meeting of all workers");
        let share = weight / cx.work.workers() as f32;
        let mut mean: Vec<f32> = self.next.parameters().iter().map(|value| share * value).collect();
        mean.push(share);
        let summary = cx.all_reduce_with_report("parameters", &mut mean, report)?;
        let sum = mean.pop().unwrap_or(1.0);
        if (sum - 1.0).abs() > 1e-3 {
            return Err(Error::internal(format!(
                "the weights of all workers add up to {sum} of their number"
            )));
        }
        mean.iter_mut().for_each(|value| *value /= sum);
        *self.state.published_mut() = mean;
        self.meeting.held();
        Ok(summary)
    }

    /// Elements of the exchange of a meeting: a model, its weight, the reports.
    fn exchanged(&self, cx: &Context<'_>) -> usize {
        self.state.len() + 1 + step_report::len(cx.rank.size())
    }
}

impl Strategy for Sgp {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let step = cx.work.next();
        cx.compute.clear_consumed();
        if Requests::of(cx.rank) != Requests::default() {
            self.meeting.request(step);
        }
        self.next.copy_from(&self.state);
        let own = self.weight;
        self.next.parameters_mut().iter_mut().for_each(|value| *value *= own);
        let mut weight = own;
        let before = cx.job.neighbours.mix == Mix::Before;
        if before {
            weight = self.push(cx, step)?;
        }
        let computed = cx.compute_worker_gradient(step, self.state.parameters(), &mut self.gradient)?;
        if before {
            weight = self.receive(cx, step, weight)?;
        }
        cx.update(cx.moment(step), &mut self.next, &self.gradient)?;
        if !before {
            weight = self.push(cx, step)?;
            weight = self.receive(cx, step, weight)?;
        }
        self.next.parameters_mut().iter_mut().for_each(|value| *value /= weight);
        let report = cx.report(computed.loss, computed.took, 1);
        let summary = match meets(&self.meeting, cx, step) {
            true => self.meet(cx, weight, &report)?,
            false => StepSummary::estimate(&report, cx.work.workers(), cx.rank.index(), cx.rank.size()),
        };
        self.state.swap_columns(&mut self.next);
        self.weight = weight;
        Ok(summary)
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        let members = cx.rank.member_ids();
        let graph = PushGraph::of_members(&cx.job.neighbours.graph, cx.job.engine.workers, &members);
        graph.check().map_err(Error::internal)?;
        let diameter = graph.diameter().unwrap_or(0);
        (self.graph, self.weight, self.meeting) = (graph, 1.0, Meeting::new(diameter));
        *self.state.published_mut() = mean_of_all(cx, self.state.parameters())?;
        let hosts = cx.rank.world().host_numbers().to_vec();
        let length = self.exchanged(cx);
        self.plan = BucketPlan::whole(cx.job, cx.compute.model.layout(), &hosts).adopt(cx, length)?;
        if cx.rank.index() == 0 && cx.rank.size() > 1 {
            let message = format!(
                "models are pushed along a directed graph; what one worker learns has reached all after {diameter} steps"
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
        Some(WINDOW * (2 * Header::BYTES + 4 * (self.state.len() + 1)))
    }

    fn working_columns(&self) -> usize {
        // The mean, and the state after the step in progress.
        1 + self.next.columns().len()
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        self.plan.describe(cx.compute.model.layout(), self.exchanged(cx))
    }
}
