//! Post-local SGD: an all-reduce in every step first, local rounds later (Lin, Stich, Patel and Jaggi 2018).
//!
//! All workers hold the same model `w` between two units:
//!
//! ```text
//! step t < t1:    g   = sum of all workers' gradients of the step's rows
//!                 w   = update(w, g)
//! from t1 on:     worker i:   w_i = w
//!                             tau times:  w_i = update(w_i, gradient of its share of the next step's rows)
//!                 w   = sum of n_i * w_i / sum of n_i     n_i: rows that worker i has trained on
//! ```
//!
//! `t1` is the share `merge.start` of the job's steps. In the first phase all workers have the same optimizer state, which
//! each of them takes along into the second.

use super::local_round::LocalRound;
use crate::context::Context;
use crate::finite;
use crate::reduction::Description;
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::{Strategy, TransferUnit};
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::spec::merge::OptimizerState;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

pub struct PostLocal {
    state: State,
    gradient: Vec<f32>,
    round: LocalRound,
}

/// Whether the next unit is a step with an all-reduce.
fn is_first_phase(cx: &Context<'_>) -> bool {
    (cx.work.next() as f64) < cx.job.merge.start * cx.work.end() as f64
}

impl PostLocal {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> PostLocal {
        // The first phase needs them whatever happens at a merge.
        let spread = match job.merge.optimizer_state {
            OptimizerState::Average => Spread::Replicated,
            OptimizerState::Keep | OptimizerState::Reset => Spread::PerMember,
        };
        PostLocal {
            state: State::of_parameters(parameters).with_columns(optimizer.slot_names(), spread),
            gradient: vec![0.0; parameters],
            round: LocalRound::new(job, optimizer, parameters),
        }
    }

    /// A step of the first phase.
    fn reduce(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (rank, step) = (cx.rank.member_id(), cx.work.next());
        cx.compute.clear_consumed();
        self.gradient.resize(self.state.len(), 0.0);
        let computed = cx.compute_partial_gradient(step, self.state.parameters(), &mut self.gradient)?;
        let report = cx.report(computed.loss, computed.took, 1);
        let summary = cx.all_reduce_with_report("gradients", &mut self.gradient, &report)?;
        finite::check_share(rank, step, &self.gradient, 0, cx.compute.model.layout())?;
        cx.update(cx.moment(step), &mut self.state, &self.gradient)?;
        Ok(summary)
    }

    /// A round of the second phase.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let updates = cx.moment(cx.work.next()).updates;
        let report = self.round.train(cx, self.state.parameters(), &self.state, updates)?;
        let summary = self.round.merge(cx, &report)?;
        self.state.parameters_mut().copy_from_slice(self.round.mean());
        self.round.commit_slots(&mut self.state);
        Ok(summary)
    }
}

impl Strategy for PostLocal {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        match is_first_phase(cx) {
            true => self.reduce(cx),
            false => self.round(cx),
        }
    }

    fn unit(&self, cx: &Context<'_>) -> u64 {
        if is_first_phase(cx) { 1 } else { LocalRound::steps(cx) }
    }

    /// In the first phase a member that was one step behind keeps the slots of its own: all go on with those of the source.
    fn change(&mut self, cx: &mut Context<'_>, change: &MembershipChange) -> Result<()> {
        self.round.change(cx)?;
        if let (Some(source), true) = (change.source(), is_first_phase(cx)) {
            for column in self.state.columns_mut().iter_mut().skip(1) {
                cx.rank.world().broadcast_into(column.name, source, &mut column.values)?;
            }
        }
        Ok(())
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn agree_on_transfer_unit(&self, cx: &mut Context<'_>) -> Result<TransferUnit> {
        Ok(TransferUnit::of(&cx.optimizer))
    }

    fn working_columns(&self) -> usize {
        // The gradient of the first phase is one more.
        self.round.columns() + 1
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        self.round.describe(cx)
    }
}
