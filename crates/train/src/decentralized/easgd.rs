//! EASGD: elastic averaging (Zhang, Choromanska and LeCun 2015; Langer et al., sections 3.3.2 and 3.3.5).
//!
//! Every worker `i` trains a model `w_i` of its own; a rank of its own holds the centre `c`. Asynchronously, each worker at
//! its own speed:
//!
//! ```text
//! worker i:   tau times:  w_i = update(w_i, gradient of its next rows)
//!             send w_i;  receive d;  w_i = w_i - alpha * d
//! centre:     d = w_i - c                  when w_i arrives, against the value that c has then
//!             c = c + beta * d
//!             send d
//! ```
//!
//! So no two workers pull the centre by the same difference. Synchronously all send their models after tau steps, and
//! `d_i = w_i - c` with the same `c` for all: `c = c + beta * (d_1 + ... + d_n)`.
//!
//! The elastic force keeps the workers near the centre and lets them explore around it. The centre is the published model.
//! Optimizer state stays with its worker: with momentum this is EAMSGD. With an alpha that adapts (`elastic_rate.rs`) and a
//! slower centre it is DeepSpark.
//!
//! A lost worker takes its model with it; rows that it has computed since its last merge are computed again by others. A
//! new worker begins at the centre. Synchronous merges of more than 1/alpha workers use 1/n.

use super::elastic_rate::ElasticRate;
use super::local_round::LocalRound;
use crate::context::Context;
use crate::envelope::Values;
use crate::reduction::Description;
use crate::serving::leased::Client;
use crate::serving::owner::Owner;
use crate::serving::{clocked, leased};
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::{NextActivity, Strategy};
use std::time::Duration;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::{Moment, Optimizer};

/// The rate of a worker in a merge of so many at once.
fn alpha_of(job: &JobSpec, workers: usize) -> f32 {
    job.merge.alpha(job.engine.workers).min(1.0 / workers.max(1) as f64) as f32
}

/// `w - alpha * (w - c)`
fn pull(parameters: &mut [f32], alpha: f32, differences: impl Iterator<Item = f32>) {
    parameters.iter_mut().zip(differences).for_each(|(value, difference)| *value -= alpha * difference);
}

/// The updates that this worker's optimizer state has had, in its first group: none in a new member.
fn earlier_updates(cx: &Context<'_>, change: &MembershipChange) -> u64 {
    let mine = change.positions.get(cx.rank.index());
    let is_new = mine.is_some_and(|mine| mine.position.is_none());
    if is_new { 0 } else { cx.moment(cx.work.next()).updates }
}

/// What the centre's rank keeps.
pub struct Centre {
    state: State,
    /// Of one worker.
    beta: f64,
    sum: Vec<f32>,
}

impl Centre {
    /// With zeros for the optimizer's slots of workers that begin here.
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> Centre {
        let state = State::of_own_parameters(parameters);
        let state = state.with_columns(optimizer.slot_names(), Spread::PerMember);
        Centre { state, beta: job.merge.beta(job.engine.workers), sum: vec![0.0; parameters] }
    }
}

impl Owner for Centre {
    fn apply(&mut self, pushed: Values<'_>, _: Moment, answer: &mut Vec<f32>) {
        let (centre, beta) = (self.state.parameters_mut(), self.beta as f32);
        for (centre, model) in centre.iter_mut().zip(pushed.iter()) {
            let difference = model - *centre;
            *centre += beta * difference;
            answer.push(difference);
        }
    }

    fn begin(&mut self) {
        self.sum.fill(0.0);
    }

    fn add(&mut self, start: usize, pushed: Values<'_>) {
        let differences =
            pushed.iter().zip(&self.state.parameters()[start..]).map(|(model, centre)| model - centre);
        self.sum[start..].iter_mut().zip(differences).for_each(|(sum, difference)| *sum += difference);
    }

    fn commit(&mut self, workers: usize, _: Moment, answer: &mut Vec<f32>) {
        answer.extend_from_slice(self.state.parameters());
        let beta = self.beta.min(1.0 / workers.max(1) as f64) as f32;
        let centre = self.state.parameters_mut();
        centre.iter_mut().zip(&self.sum).for_each(|(centre, sum)| *centre += beta * sum);
    }

    fn initial_answer(&self) -> &[f32] {
        &[]
    }

    fn repeats_answer(&self) -> bool {
        true
    }

    fn published(&self) -> &[f32] {
        self.state.parameters()
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// A worker that merges when all do.
pub struct SynchronousWorker {
    state: State,
    round: LocalRound,
    /// The centre before the last merge, and after it.
    centre: Vec<f32>,
    sent: Option<Sent>,
    /// That the optimizer state has had.
    updates: Option<u64>,
}

/// A round whose model was sent, and not merged yet.
struct Sent {
    /// At which it began.
    step: u64,
    /// Of the workers that take part in the merge.
    alpha: f32,
    /// Local steps.
    updates: u64,
}

impl SynchronousWorker {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> SynchronousWorker {
        let state = State::of_own_parameters(parameters);
        SynchronousWorker {
            state: state.with_columns(optimizer.slot_names(), Spread::PerMember),
            round: LocalRound::new(job, optimizer, parameters),
            centre: Vec::new(),
            sent: None,
            updates: None,
        }
    }

    /// `w_i - alpha * (w_i - c)` becomes this worker's model.
    fn merge(&mut self) {
        let Some(Sent { alpha, updates, .. }) = self.sent.take() else { return };
        let own = self.state.parameters_mut();
        own.copy_from_slice(self.round.local());
        for (own, centre) in own.iter_mut().zip(&self.centre) {
            *own -= alpha * (*own - centre);
        }
        self.round.commit_slots(&mut self.state);
        *self.updates.get_or_insert_default() += updates;
    }
}

impl Strategy for SynchronousWorker {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let updates = self.updates.unwrap_or(0);
        let report = self.round.train(cx, self.state.parameters(), &self.state, updates)?;
        clocked::push(cx, &report, self.round.local())?;
        let alpha = alpha_of(cx.job, cx.work.workers());
        self.sent = Some(Sent { step: cx.work.next(), alpha, updates: report.steps });
        self.centre.resize(self.state.len(), 0.0);
        let summary = clocked::pull(cx, &mut self.centre)?;
        self.merge();
        Ok(summary)
    }

    fn unit(&self, cx: &Context<'_>) -> u64 {
        LocalRound::steps(cx)
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        self.centre.resize(self.state.len(), 0.0);
        leased::receive_published(cx, &mut self.centre)
    }

    /// A worker whose model was merged while the group changed has yet to be pulled. If it was not merged, all train the
    /// round again.
    fn change(&mut self, cx: &mut Context<'_>, change: &MembershipChange) -> Result<()> {
        self.updates.get_or_insert_with(|| earlier_updates(cx, change));
        let missed = self.sent.as_ref().is_some_and(|sent| sent.step < cx.work.next());
        if clocked::answer_again(cx, missed, &mut self.centre)? && missed {
            self.merge();
        }
        self.sent = None;
        Ok(())
    }

    fn published(&self) -> &[f32] {
        &self.centre
    }

    fn set_published(&mut self, model: Vec<f32>) {
        self.centre = model;
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn shown_values(&self, _: &JobSpec) -> usize {
        self.state.len()
    }

    fn message_window(&self, _: &JobSpec) -> Option<usize> {
        Some(clocked::window(self.state.len()))
    }

    fn working_columns(&self) -> usize {
        self.round.columns() + 1
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}

/// A worker that merges at its own speed.
pub struct AsynchronousWorker {
    /// After the last merge.
    state: State,
    /// After the steps of the lease.
    local: State,
    gradient: Vec<f32>,
    rate: ElasticRate,
    client: Client,
    /// That the optimizer state has had.
    updates: Option<u64>,
}

impl AsynchronousWorker {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> AsynchronousWorker {
        let state = State::of_own_parameters(parameters);
        let state = state.with_columns(optimizer.slot_names(), Spread::PerMember);
        AsynchronousWorker {
            local: state.clone(),
            state,
            gradient: vec![0.0; parameters],
            rate: ElasticRate::default(),
            client: Client::default(),
            updates: None,
        }
    }
}

impl Strategy for AsynchronousWorker {
    fn next(&mut self, cx: &mut Context<'_>) -> Result<NextActivity> {
        let job = cx.job;
        let AsynchronousWorker { state, local, rate, client, .. } = self;
        client.next(cx, local.parameters(), |_, differences| {
            if differences.len() != state.len() {
                return Err(format!("sent a difference of {} values", differences.len()));
            }
            let alpha = rate.of(job, job.merge.alpha(job.engine.workers), differences.iter());
            state.copy_from(local);
            pull(state.parameters_mut(), alpha, differences.iter());
            Ok(())
        })
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        cx.compute.clear_consumed();
        self.local.copy_from(&self.state);
        let (mut loss, mut took, mut updates) = (0.0, Duration::ZERO, self.updates.unwrap_or(0));
        for piece in &self.client.lease()?.pieces {
            cx.rank.check()?;
            let at = self.local.parameters();
            let computed = cx.compute_piece(piece, piece.rows.len(), at, &mut self.gradient)?;
            let moment = Moment { updates, rate: cx.schedule().rate(piece.step) };
            cx.update(moment, &mut self.local, &self.gradient)?;
            updates += 1;
            loss += computed.loss;
            took += computed.took;
        }
        let report = cx.report(loss, took, 1);
        self.client.push(cx, &report, self.local.parameters())?;
        self.updates = Some(updates);
        Ok(StepSummary::alone(&report))
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let length = self.state.len();
        let centre = self.state.published_mut();
        centre.resize(length, 0.0);
        leased::receive_published(cx, centre)
    }

    fn change(&mut self, cx: &mut Context<'_>, change: &MembershipChange) -> Result<()> {
        self.updates.get_or_insert_with(|| earlier_updates(cx, change));
        self.client.change(cx)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn shown_values(&self, _: &JobSpec) -> usize {
        self.state.len()
    }

    fn message_window(&self, job: &JobSpec) -> Option<usize> {
        Some(leased::window(job, self.state.len(), job.merge.every))
    }

    fn working_columns(&self) -> usize {
        self.local.columns().len() + 1
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::spec::JobLayers;

    /// More workers than 1/alpha have joined: alpha follows them, and a merge still conserves and contracts.
    #[test]
    fn synchronous_rates_follow_the_members() {
        let mut layers = JobLayers::default();
        for setting in ["strategy.preset=easgd", "engine.workers=4", "strategy.scheduling.kind=bsp"] {
            layers.add_assignment(setting).expect("a setting");
        }
        let job = crate::registry::resolve(layers).expect("a job").spec;
        assert_eq!([1, 4, 5, 20].map(|members| alpha_of(&job, members)), [0.225, 0.225, 0.2, 0.05]);
        let alpha = alpha_of(&job, 20);
        let mut centre = Centre::new(&job, &Optimizer::new(job.optimizer.rule(), 1), 1);
        let mut models: Vec<f32> = (0..20).map(|worker| worker as f32 - 3.0).collect();
        let mean = models.iter().sum::<f32>() / 21.0;
        let spread = |models: &[f32], centre: f32| {
            models.iter().chain([&centre]).map(|value| (value - mean).powi(2)).sum::<f32>().sqrt()
        };
        for _ in 0..3 {
            let before = spread(&models, centre.published()[0]);
            centre.begin();
            models.iter().for_each(|model| centre.add(0, Values::of(&[*model])));
            let mut answer = Vec::new();
            centre.commit(models.len(), Moment { updates: 0, rate: 0.0 }, &mut answer);
            models.iter_mut().for_each(|model| *model -= alpha * (*model - answer[0]));
            let (after, sum) = (spread(&models, centre.published()[0]), models.iter().sum::<f32>());
            assert!((sum + centre.published()[0] - 21.0 * mean).abs() < 1e-3, "conserved");
            assert!(after <= (1.0 - alpha + 1e-4) * before, "{after} after {before}");
        }
    }
}
