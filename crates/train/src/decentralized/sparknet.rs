//! SparkNet: synchronous averaging of local models (Moritz et al. 2016; Langer et al., section 3.2.2).
//!
//! All workers start each round from the same model `w`:
//!
//! ```text
//! worker i:   w_i = w
//!             tau times:  w_i = update(w_i, gradient of its share of the next step's rows)
//!             w   = sum of n_i * w_i / sum of n_i        n_i: rows that worker i has trained on
//! ```
//!
//! With tau = 1 and plain gradient descent the round is the step of an all-reduce, up to rounding. Optimizer state stays
//! with its worker, unless `merge.optimizer_state` says otherwise. The model is sent once in tau steps.

use super::local_round::{LocalRound, with_slots};
use crate::context::Context;
use crate::reduction::Description;
use crate::state::State;
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

pub struct SparkNet {
    state: State,
    round: LocalRound,
}

impl SparkNet {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> SparkNet {
        SparkNet {
            state: with_slots(State::of_parameters(parameters), job, optimizer),
            round: LocalRound::new(job, optimizer, parameters),
        }
    }
}

impl Strategy for SparkNet {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let start = self.state.parameters();
        let updates = cx.moment(cx.work.next()).updates;
        let report = self.round.train(cx, start, &self.state, updates)?;
        let summary = self.round.merge(cx, &report)?;
        self.state.parameters_mut().copy_from_slice(self.round.mean());
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
