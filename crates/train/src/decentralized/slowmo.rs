//! SlowMo: slow momentum on top of local descent (Wang, Tantia, Ballas and Rabbat 2019).
//!
//! All workers hold the same model `w` and the slow momentum `u`, which starts at 0. In each round, at the learning rate
//! `gamma` of its first step:
//!
//! ```text
//! worker i:   w_i = w
//!             tau times:  w_i = update(w_i, gradient of its share of the next step's rows)
//!             m   = sum of n_i * w_i / sum of n_i         n_i: rows that worker i has trained on
//!             u   = beta * u + (w - m) / gamma
//!             w   = w - alpha * gamma * u
//! ```
//!
//! `beta` is `merge.momentum`, `alpha` is `merge.rate`. The slow momentum is in units of the learning rate, so it keeps its
//! weight when that changes. The base optimizer's state is reset, kept or averaged: `merge.optimizer_state`. With beta = 0 and
//! alpha = 1 the round is the plain average of SparkNet.

use super::local_round::{LocalRound, with_slots};
use crate::context::Context;
use crate::reduction::Description;
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

/// The column of `u`.
const SLOW_MOMENTUM: &str = "slow_momentum";

pub struct SlowMo {
    state: State,
    round: LocalRound,
}

impl SlowMo {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> SlowMo {
        let state = State::of_parameters(parameters).with_columns(&[SLOW_MOMENTUM], Spread::Replicated);
        SlowMo {
            state: with_slots(state, job, optimizer),
            round: LocalRound::new(job, optimizer, parameters),
        }
    }
}

impl Strategy for SlowMo {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (beta, alpha) = (cx.job.merge.momentum as f32, cx.job.merge.rate as f32);
        let gamma = cx.schedule().rate(cx.work.next());
        let updates = cx.moment(cx.work.next()).updates;
        let report = self.round.train(cx, self.state.parameters(), &self.state, updates)?;
        let summary = self.round.merge(cx, &report)?;
        let (parameters, slow) = self.state.parameters_and(SLOW_MOMENTUM);
        for ((w, u), mean) in parameters.iter_mut().zip(slow).zip(self.round.mean()) {
            // Without a rate nothing was learned that could be divided by it.
            if gamma > 0.0 {
                *u = beta * *u + (*w - mean) / gamma;
                *w -= alpha * gamma * *u;
            }
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
