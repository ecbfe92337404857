//! Block momentum: blockwise model-update filtering with Nesterov momentum (Chen and Huo 2016), which CNTK made known.
//!
//! A block is a round of tau local steps. All workers hold the model `w` and the block momentum `d`, which starts at 0:
//!
//! ```text
//! worker i:   w_i = w + eta * d                           look-ahead
//!             reset the optimizer's state                 merge.optimizer_state, by the preset
//!             tau times:  w_i = update(w_i, gradient of its share of the next step's rows)
//!             m   = sum of n_i * w_i / sum of n_i         n_i: rows that worker i has trained on
//!             d   = eta * d + zeta * (m - (w + eta * d))
//!             w   = w + d
//! ```
//!
//! `eta` is `merge.momentum`, by the preset 1 - 1/n; `zeta` is `merge.rate`. The published model is `w`, without the
//! look-ahead. With eta = 0 and zeta = 1 the round is the plain average of SparkNet.

use super::local_round::{LocalRound, with_slots};
use crate::context::Context;
use crate::reduction::Description;
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

/// The column of `d`.
const MOMENTUM: &str = "block_momentum";

pub struct BlockMomentum {
    state: State,
    round: LocalRound,
    /// Where the round starts.
    start: Vec<f32>,
}

impl BlockMomentum {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> BlockMomentum {
        let state = State::of_parameters(parameters).with_columns(&[MOMENTUM], Spread::Replicated);
        BlockMomentum {
            state: with_slots(state, job, optimizer),
            round: LocalRound::new(job, optimizer, parameters),
            start: vec![0.0; parameters],
        }
    }
}

impl Strategy for BlockMomentum {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (eta, zeta) = (cx.job.merge.momentum as f32, cx.job.merge.rate as f32);
        let ahead = self.state.parameters().iter().zip(self.state.column(MOMENTUM));
        self.start.iter_mut().zip(ahead).for_each(|(start, (w, d))| *start = w + eta * d);
        let updates = cx.moment(cx.work.next()).updates;
        let report = self.round.train(cx, &self.start, &self.state, updates)?;
        let summary = self.round.merge(cx, &report)?;
        let (parameters, momentum) = self.state.parameters_and(MOMENTUM);
        let block = self.round.mean().iter().zip(&self.start);
        for ((w, d), (mean, start)) in parameters.iter_mut().zip(momentum).zip(block) {
            *d = eta * *d + zeta * (mean - start);
            *w += *d;
        }
        self.round.merge_statistics(cx.compute.model.layout(), parameters);
        self.round.commit_slots(&mut self.state);
        Ok(summary)
    }

    fn unit(&self, cx: &Context<'_>) -> u64 {
        LocalRound::steps(cx)
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        self.round.change(cx)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn working_columns(&self) -> usize {
        // The start of the round is one more.
        self.round.columns() + 1
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        self.round.describe(cx)
    }
}
