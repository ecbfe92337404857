//! A distributed ensemble: independent models that answer together.
//!
//! ```text
//! worker i:       w_i = initial parameters by a seed drawn from (seed, i)
//!     in each local step:   w_i = update(w_i, gradient of its next rows)
//! where all meet: the published model is (w_1, ..., w_n), whose predictions are combined
//! ```
//!
//! Every worker walks its share of the rows at its own speed (`work/local_rows.rs`), and sends nothing until all meet: at
//! the end of an epoch, for a checkpoint and at the end.
//!
//! A lost worker takes its model with it: the ensemble has a member less, and the others divide its share of the rows. A new
//! worker begins with the model of another one and goes its own way from there.

#[cfg(test)]
#[path = "ensemble_record.rs"]
mod replayed;

#[cfg(test)]
use super::gosgd::recorded;
use crate::context::Context;
use crate::reduction::Description;
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use thalweg_cluster::Collective;
use thalweg_cluster::collective::Sum;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

pub struct Ensemble {
    state: State,
    gradient: Vec<f32>,
    workers: usize,
}

impl Ensemble {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> Ensemble {
        let state = State::of_own_parameters(parameters);
        Ensemble {
            state: state.with_columns(optimizer.slot_names(), Spread::PerMember),
            gradient: vec![0.0; parameters],
            workers: job.engine.workers,
        }
    }
}

impl Strategy for Ensemble {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let computed = cx.compute_own_gradient(self.state.parameters(), &mut self.gradient)?;
        cx.update(cx.own_moment(), &mut self.state, &self.gradient)?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || recorded::Recorded::Updated(cx.compute.consumed().to_vec()));
        Ok(StepSummary::alone(&cx.report(computed.loss, computed.took, 1)))
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let mut members = vec![0.0; cx.rank.size() * self.state.len()];
        let own = cx.rank.index() * self.state.len();
        members[own..own + self.state.len()].copy_from_slice(self.state.parameters());
        cx.rank.world().collective(Collective::AllGather, "models", &mut members, &Sum)?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || recorded::Recorded::Met(0.0, members.clone()));
        *self.state.published_mut() = members;
        Ok(())
    }

    fn change(&mut self, _cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        self.state.publish_own();
        #[cfg(test)]
        recorded::record(_cx.rank.member_id(), || {
            recorded::Recorded::Began(0.0, self.state.parameters().to_vec())
        });
        Ok(())
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn working_columns(&self) -> usize {
        self.workers
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}
