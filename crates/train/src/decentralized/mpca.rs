//! MPCA-SGD: local steps under a penalty, while the models are summed (Langer, Hall et al. 2018; Langer et al. 2020, sections
//! 3.3.5 and 4).
//!
//! Every worker `i` has a model `w_i` of its own, and all know the means `m` of the rounds before. In round `r`:
//!
//! ```text
//! start the sum of all models:  m_r = sum of n_i w_i / sum of n_i      n_i: rows of worker i in the round before
//! for k = 0 ... tau - 1:
//!     a   = m_(r-1) + gamma (1 + k / tau) (m_(r-1) - m_(r-2))        where the mean is by now, if it goes on as before
//!     w_i = update(w_i, gradient of its rows + rho (w_i - a))        that of the loss + rho/2 |w_i - a|^2
//! wait for m_r, and for the reports of all
//! ```
//!
//! So updates and sharing are apart: a model is never replaced, and the sum is on its way while the workers compute. The mean
//! that a worker knows is of the start of the round before; the extrapolation by `gamma` makes up for it. `tau` is
//! `merge.every`, `rho` is `merge.penalty`, `gamma` is `merge.extrapolation`. The document describes the method in a
//! sentence: these formulas are ours.
//!
//! The published model is the mean of all models, formed anew where it is evaluated or saved. A lost worker takes its model
//! with it: what it had learned in the round before is in no mean. The others go on with their models and with the means that
//! they know, also one that was interrupted behind the last sum of a round, which others have completed. A new worker
//! begins with the model of another one.

use super::local_round::{LocalRound, with_slots};
use crate::context::Context;
use crate::finite;
use crate::reduction::Description;
use crate::state::State;
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use std::ops::Range;
use thalweg_cluster::Collective;
use thalweg_cluster::collective::Sum;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::model::TensorRole;
use thalweg_core::{Error, JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

pub struct MpcaSgd {
    state: State,
    round: LocalRound,
    /// The first step of a round that is trained and not committed: others may have completed it.
    trained: Option<u64>,
    /// `m_(r-1)`, and its difference from `m_(r-2)`; empty before the first mean.
    mean: Vec<f32>,
    movement: Vec<f32>,
    /// The part of the rows of the round before that this worker computed; 1 before the first round.
    weight: f32,
}

impl MpcaSgd {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> MpcaSgd {
        MpcaSgd {
            state: with_slots(State::of_own_parameters(parameters), job, optimizer),
            round: LocalRound::new(job, optimizer, parameters),
            trained: None,
            mean: Vec::new(),
            movement: Vec::new(),
            weight: 1.0,
        }
    }

    /// The model by its weight, and the weight: what all sum.
    fn weighted(&self) -> Vec<f32> {
        let values = self.state.parameters().iter().map(|value| self.weight * value);
        values.chain(std::iter::once(self.weight)).collect()
    }

    /// The mean of all models, at once.
    fn mean_of_all(&self, cx: &mut Context<'_>) -> Result<Vec<f32>> {
        let mut sum = self.weighted();
        cx.rank.world().all_reduce("models", &mut sum)?;
        mean_of(sum)
    }

    /// The round counts: this worker goes on with the model that it trained.
    fn commit(&mut self) {
        self.trained = None;
        self.state.parameters_mut().copy_from_slice(self.round.local());
        self.round.commit_slots(&mut self.state);
    }

    /// All go on with the means that the source of the state knows; without any they are formed of the models at hand.
    fn share_means(&mut self, cx: &mut Context<'_>, change: &MembershipChange) -> Result<()> {
        let mut known = Vec::new();
        if let Some(source) = change.source() {
            let own = self.mean.iter().chain(&self.movement).flat_map(|value| value.to_le_bytes()).collect();
            let sent = cx.rank.world().broadcast("means of all models", source, own)?;
            known.extend(sent.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        if known.is_empty() {
            known = self.mean_of_all(cx)?;
            known.resize(2 * self.state.len(), 0.0);
        }
        self.movement = known.split_off(self.state.len());
        self.mean = known;
        Ok(())
    }
}

/// The mean, of weighted sums and the sum of the weights.
fn mean_of(mut sum: Vec<f32>) -> Result<Vec<f32>> {
    match sum.pop() {
        Some(total) if total > 0.0 => sum.iter_mut().for_each(|value| *value /= total),
        total => return Err(Error::internal(format!("the weights of all models add up to {total:?}"))),
    }
    Ok(sum)
}

impl Strategy for MpcaSgd {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (rho, gamma) = (cx.job.merge.penalty as f32, cx.job.merge.extrapolation as f32);
        let (first, tau) = (cx.work.next(), LocalRound::steps(cx));
        // Running statistics are no parameters of the cost.
        let layout = cx.compute.model.layout();
        let trainable = layout.tensors().iter().filter(|tensor| tensor.role == TensorRole::Trainable);
        let ranges: Vec<Range<usize>> = trainable.map(|tensor| tensor.range()).collect();
        self.trained = None;
        let sum = cx.rank.world().start(Collective::AllReduce, "models", self.weighted(), Sum)?;
        let MpcaSgd { state, round, mean, movement, .. } = self;
        let penalize = |cx: &mut Context<'_>, done: u64, own: &[f32], gradient: &mut [f32]| {
            cx.rank.progress_operations()?;
            let ahead = gamma * (1.0 + done as f32 / tau as f32);
            for index in ranges.iter().cloned().flatten() {
                gradient[index] += rho * (own[index] - (mean[index] + ahead * movement[index]));
            }
            Ok(())
        };
        let updates = cx.moment(first).updates;
        let report = round.train_with(cx, state.parameters(), state, updates, penalize)?;
        finite::check_model(cx.rank.member_id(), first, 0.0, round.local(), cx.compute.model.layout())?;
        self.trained = Some(first);
        let sum = mean_of(cx.rank.finish(sum)?)?;
        let summary = cx.all_reduce_with_report("reports", &mut Vec::new(), &report)?;
        for ((mean, movement), sum) in self.mean.iter_mut().zip(&mut self.movement).zip(sum) {
            *movement = sum - *mean;
            *mean = sum;
        }
        self.weight = cx.compute.consumed().len() as f32 / (cx.job.train.global_batch as u64 * tau) as f32;
        self.commit();
        Ok(summary)
    }

    fn unit(&self, cx: &Context<'_>) -> u64 {
        LocalRound::steps(cx)
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        *self.state.published_mut() = self.mean_of_all(cx)?;
        Ok(())
    }

    fn change(&mut self, cx: &mut Context<'_>, change: &MembershipChange) -> Result<()> {
        if self.trained.take().is_some_and(|first| first < cx.work.next()) {
            self.commit();
        }
        self.round.change(cx)?;
        self.weight = 1.0;
        self.share_means(cx, change)?;
        self.state.published_mut().clone_from(&self.mean);
        Ok(())
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn working_columns(&self) -> usize {
        // The mean, its movement, the sum under way, what is published.
        self.round.columns() + 4
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        self.round.describe(cx)
    }
}
