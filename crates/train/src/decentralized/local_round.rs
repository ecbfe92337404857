//! A round of local training: what SparkNet, block momentum and DiLoCo have in common.
//!
//! Every worker takes `merge.every` steps (or fewer as the loss falls: `work/merge_interval.rs`) with its share of each step's rows, on a model of its own. Then all workers
//! average their models, weighted by rows: shares differ, and a round ends early at the end of an epoch and, on each
//! worker by itself, when a request is pending. A round that fails leaves no trace: the model it started from is untouched.
//!
//! The optimizer's state stays with its worker, is averaged with the models, or starts at 0 in every round
//! (`merge.optimizer_state`).

use crate::context::Context;
use crate::finite;
use crate::reduction::Description;
use crate::reduction::bucket_plan::BucketPlan;
use crate::state::{Spread, State};
use crate::step_report::{self, StepReport, StepSummary};
use std::time::Duration;
use thalweg_core::model::TensorRole;
use thalweg_core::spec::merge::OptimizerState;
use thalweg_core::{JobSpec, Layout, Result};
use thalweg_graph::optimizer::{Moment, Optimizer};

/// The local model of a worker, and the memory to average it.
pub struct LocalRound {
    /// Parameters and slots during the round.
    local: State,
    gradient: Vec<f32>,
    /// The mean of all models after a merge.
    mean: Vec<f32>,
    at_merge: OptimizerState,
    plan: BucketPlan,
}

/// Adds the optimizer's slots to what a strategy keeps between two rounds.
pub fn with_slots(state: State, job: &JobSpec, optimizer: &Optimizer) -> State {
    match job.merge.optimizer_state {
        OptimizerState::Keep => state.with_columns(optimizer.slot_names(), Spread::PerMember),
        OptimizerState::Average => state.with_columns(optimizer.slot_names(), Spread::Replicated),
        OptimizerState::Reset => state,
    }
}

impl LocalRound {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> LocalRound {
        let local = State::of_parameters(parameters);
        LocalRound {
            local: local.with_columns(optimizer.slot_names(), Spread::PerMember),
            gradient: vec![0.0; parameters],
            mean: Vec::new(),
            at_merge: job.merge.optimizer_state,
            plan: BucketPlan::default(),
        }
    }

    /// Adopts the all-reduce algorithm of this generation. All ranks must call it.
    pub fn change(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let hosts = cx.rank.world().host_numbers().to_vec();
        let plan = BucketPlan::whole(cx.job, cx.compute.model.layout(), &hosts);
        self.plan = plan.adopt(cx, self.exchanged(cx))?;
        Ok(())
    }

    /// Steps of the next round, which ends with its epoch.
    pub fn steps(cx: &Context<'_>) -> u64 {
        cx.merge_every.min(cx.work.steps_left(cx.work.next())).max(1)
    }

    /// Trains the local model from `start` on, with the optimizer's slots of the state, which have had so many updates.
    pub fn train(
        &mut self,
        cx: &mut Context<'_>,
        start: &[f32],
        state: &State,
        updates: u64,
    ) -> Result<StepReport> {
        self.train_with(cx, start, state, updates, |_, _, _, _| Ok(()))
    }

    /// The same; `adjust` is given the steps done, the local model and its gradient before each update.
    pub fn train_with(
        &mut self,
        cx: &mut Context<'_>,
        start: &[f32],
        state: &State,
        updates: u64,
        mut adjust: impl FnMut(&mut Context<'_>, u64, &[f32], &mut [f32]) -> Result<()>,
    ) -> Result<StepReport> {
        let resets = self.at_merge == OptimizerState::Reset;
        self.local.parameters_mut().copy_from_slice(start);
        for column in self.local.columns_mut().iter_mut().skip(1) {
            match resets {
                true => column.values.fill(0.0),
                false => column.values.copy_from_slice(state.column(column.name)),
            }
        }
        cx.compute.clear_consumed();
        let (first, mut loss, mut took, mut done) = (cx.work.next(), 0.0, Duration::ZERO, 0);
        for step in first..first + LocalRound::steps(cx) {
            // The loss of a member ends the round now, not at its merge.
            cx.rank.check()?;
            if done > 0 {
                cx.rank.begin_step(step);
                cx.rank.inject_faults(step);
            }
            let computed = cx.compute_local_gradient(step, self.local.parameters(), &mut self.gradient)?;
            if computed.rows > 0 {
                adjust(cx, done, self.local.parameters(), &mut self.gradient)?;
                let before = if resets { 0 } else { updates };
                let moment = Moment { updates: before + done, ..cx.moment(step) };
                cx.update(moment, &mut self.local, &self.gradient)?;
            }
            loss += computed.loss;
            took += computed.took;
            done += 1;
            if cx.boundary_requested() {
                break;
            }
        }
        Ok(cx.report(loss, took, done))
    }

    /// Averages the local models of all workers, weighted by their rows; without any row they are what they were.
    pub fn merge(&mut self, cx: &mut Context<'_>, report: &StepReport) -> Result<StepSummary> {
        let (rank, step, layout) = (cx.rank.member_id(), cx.work.next(), cx.compute.model.layout());
        finite::check_model(rank, step, 0.0, self.local.parameters(), layout)?;
        // Relative to a whole round, so that sums stay in the range of the parameters.
        let round = (cx.job.train.global_batch as u64 * LocalRound::steps(cx)) as f32;
        let weight = cx.compute.consumed().len() as f32 / round;
        self.mean.clear();
        for column in &self.local.columns()[..self.averaged()] {
            self.mean.extend(column.values.iter().map(|value| weight * value));
        }
        self.mean.push(weight);
        let summary = cx.all_reduce_with_report("models", &mut self.mean, report)?;
        match self.mean.pop() {
            Some(total) if total > 0.0 => self.mean.iter_mut().for_each(|sum| *sum /= total),
            _ => {
                let own = self.local.columns().iter().flat_map(|column| &column.values);
                self.mean.iter_mut().zip(own).for_each(|(mean, own)| *mean = *own);
            }
        }
        let slots = self.mean.split_off(self.local.len());
        let columns = self.local.columns_mut()[1..].iter_mut();
        for (column, mean) in columns.zip(slots.chunks_exact(self.mean.len().max(1))) {
            column.values.copy_from_slice(mean);
        }
        let (rank, step, layout) = (cx.rank.member_id(), cx.work.next(), cx.compute.model.layout());
        finite::check_model(rank, step, 0.0, &self.mean, layout)?;
        Ok(summary)
    }

    /// Columns that a merge averages: the parameters first.
    fn averaged(&self) -> usize {
        match self.at_merge {
            OptimizerState::Average => self.local.columns().len(),
            OptimizerState::Keep | OptimizerState::Reset => 1,
        }
    }

    /// The model of this worker.
    pub fn local(&self) -> &[f32] {
        self.local.parameters()
    }

    /// The mean of the last merge.
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// Running statistics are averages, not parameters of an outer update: they become those of the mean.
    pub fn merge_statistics(&self, layout: &Layout, parameters: &mut [f32]) {
        for tensor in layout.tensors().iter().filter(|tensor| tensor.role == TensorRole::Statistic) {
            parameters[tensor.range()].copy_from_slice(&self.mean[tensor.range()]);
        }
    }

    /// Puts the slots of the round into the state, by swapping them.
    pub fn commit_slots(&mut self, state: &mut State) {
        for own in self.local.columns_mut().iter_mut().skip(1) {
            if let Some(kept) = state.columns_mut().iter_mut().find(|kept| kept.name == own.name) {
                std::mem::swap(&mut kept.values, &mut own.values);
            }
        }
    }

    /// Vectors as long as the parameters: the local model with its slots, and the mean.
    pub fn columns(&self) -> usize {
        self.local.columns().len() + self.averaged()
    }

    pub fn describe(&self, cx: &Context<'_>) -> Description {
        self.plan.describe(cx.compute.model.layout(), self.exchanged(cx))
    }

    /// Elements of the exchange: the model, its weight, the reports.
    fn exchanged(&self, cx: &Context<'_>) -> usize {
        self.averaged() * self.local.len() + 1 + step_report::len(cx.rank.size())
    }
}
