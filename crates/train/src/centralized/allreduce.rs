//! Synchronous data-parallel gradient descent with replicated optimizer state.
//!
//! Every worker holds the parameters `w` and the optimizer's state. In each step `t`:
//!
//! ```text
//! worker i:   g_i = sum of the gradients of its share of the step's rows / rows of the step
//!             g   = all-reduce(g_1 + ... + g_n)
//!             w   = update(w, g)
//! ```
//!
//! All add the same numbers in the same order, so all hold the same `w` without ever sending it. The step is the one that
//! a single worker takes, up to rounding: with one worker this is the reference for all other strategies. On one host the
//! last two lines are one: each worker sums its shard of `g` and updates its shard of a `w` that all of them read.

use crate::context::Context;
use crate::reduction::{self, Description, Reduction};
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::{Strategy, TransferUnit};
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::Result;
use thalweg_graph::optimizer::Optimizer;

pub struct AllReduce {
    state: State,
    /// Of this generation.
    reduction: Option<Box<dyn Reduction>>,
}

impl AllReduce {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> AllReduce {
        let state = State::of_parameters(parameters);
        AllReduce { state: state.with_columns(optimizer.slot_names(), Spread::Replicated), reduction: None }
    }
}

impl Strategy for AllReduce {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let reduction = reduction::current(&mut self.reduction)?;
        let report = cx.compute_gradient(reduction, &self.state)?;
        reduction.sum_and_update(cx, &report, &mut self.state)
    }

    fn suspend(&mut self, step: Option<u64>) -> Result<()> {
        match (self.reduction.take(), step) {
            (Some(reduction), Some(step)) => reduction.copy_state(step, &mut self.state),
            _ => Ok(()),
        }
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        self.reduction = Some(reduction::open(cx, &self.state)?);
        Ok(())
    }

    fn column(&self, index: usize) -> &[f32] {
        match &self.reduction {
            Some(reduction) => reduction.column(index, &self.state),
            None => &self.state.columns()[index].values,
        }
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn agree_on_transfer_unit(&self, cx: &mut Context<'_>) -> Result<TransferUnit> {
        // The reduction of this generation is opened after the transfer. An arena is filled with all of the state then.
        match reduction::agree_on_arena(cx)? {
            true => Ok(TransferUnit::State),
            false => Ok(TransferUnit::of(&cx.optimizer)),
        }
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        let layout = cx.compute.model.layout();
        self.reduction.as_ref().map_or_else(Description::none, |reduction| reduction.describe(layout))
    }
}
