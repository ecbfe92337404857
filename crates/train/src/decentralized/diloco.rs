//! DiLoCo: distributed low-communication training with an outer optimizer (Douillard et al. 2023).
//!
//! All workers hold the model `w` and the velocity `v` of the outer optimizer, which starts at 0. In each round:
//!
//! ```text
//! worker i:   w_i = w
//!             H times:  w_i = AdamW(w_i, gradient of its share of the next step's rows)      its state is kept
//!             g   = w - sum of n_i * w_i / sum of n_i     the outer gradient; n_i: rows of worker i
//!             v   = mu * v + g                            Nesterov momentum
//!             w   = w - rate * (g + mu * v)
//! ```
//!
//! `H` is `merge.every`, `mu` is `merge.momentum`, 0.9 by the preset, and `rate` is `merge.rate`, 0.7. With mu = 0 and rate 1
//! (outer gradient descent) the round is the plain average of SparkNet.

use super::local_round::{LocalRound, with_slots};
use crate::context::Context;
use crate::reduction::Description;
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

/// The column of `v`.
const VELOCITY: &str = "outer_velocity";

pub struct DiLoCo {
    state: State,
    round: LocalRound,
}

impl DiLoCo {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> DiLoCo {
        let state = State::of_parameters(parameters).with_columns(&[VELOCITY], Spread::Replicated);
        DiLoCo {
            state: with_slots(state, job, optimizer),
            round: LocalRound::new(job, optimizer, parameters),
        }
    }
}

impl Strategy for DiLoCo {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (mu, rate) = (cx.job.merge.momentum as f32, cx.job.merge.rate as f32);
        let start = self.state.parameters();
        let updates = cx.moment(cx.work.next()).updates;
        let report = self.round.train(cx, start, &self.state, updates)?;
        let summary = self.round.merge(cx, &report)?;
        let (parameters, velocity) = self.state.parameters_and(VELOCITY);
        for ((w, v), mean) in parameters.iter_mut().zip(velocity).zip(self.round.mean()) {
            let gradient = *w - mean;
            *v = mu * *v + gradient;
            *w -= rate * (gradient + mu * *v);
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
        self.round.columns()
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        self.round.describe(cx)
    }
}
