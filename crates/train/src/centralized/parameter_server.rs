//! A parameter server, synchronous or asynchronous (Langer et al., sections 3.2.1, 3.3.1 and 3.3.3, Figures 6 and 8).
//!
//! One rank of its own holds the parameters `w` and the only optimizer state; the others compute. Synchronously, in each
//! step `t`:
//!
//! ```text
//! worker i:   g_i = sum of the gradients of its share of the step's rows / rows of the step
//!             push g_i;  pull w
//! server:     g   = g_1 + ... + g_n        once all have arrived, in the order of ranks
//!             w   = update(w, g)
//!             send w to all workers
//! ```
//!
//! The step is the one that a single worker takes, up to rounding. Asynchronously, each worker at its own speed:
//!
//! ```text
//! worker i:   g   = sum of the gradients of the rows of its lease / rows of a step, at the w it has
//!             push g;  pull w and the next lease
//! server:     w   = update(w, g)           when it arrives
//!             send w to that worker
//! ```
//!
//! With n_push a lease has so many pieces, whose gradients are added up. With n_fetch > 1 only every (n_fetch / n_push)-th
//! push is answered with `w`, and the worker updates its copy by each gradient, `w = w - rate * g` (Dean et al. 2012). Or it
//! pushes the change of its copy, which the server adds.
//!
//! Other workers may have updated `w` meanwhile: the gradient is stale. As it is divided by the rows of a whole step, n
//! pushes move as far as one synchronous step. With one worker both are plain gradient descent.

use crate::context::Context;
use crate::envelope::Values;
use crate::reduction::Description;
use crate::registry::Setup;
use crate::roles::Roles;
use crate::serving::gradient_push::GradientPush;
use crate::serving::leased::Client;
use crate::serving::owner::Owner;
use crate::serving::{clocked, leased};
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::{NextActivity, Strategy, TransferUnit};
use std::ops::Range;
use std::time::Duration;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::spec::scheduling::Push;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::{Moment, Optimizer};

/// What the server keeps.
pub struct Parameters {
    state: State,
    optimizer: Optimizer,
    /// What is pushed.
    push: Push,
    gradient: Vec<f32>,
}

impl Parameters {
    /// Gradients are pushed.
    pub fn new(optimizer: &Optimizer, parameters: usize) -> Parameters {
        let state = State::with_parameters(Spread::OnServers, parameters);
        let state = state.with_columns(optimizer.slot_names(), Spread::OnServers);
        Parameters {
            state,
            optimizer: optimizer.clone(),
            push: Push::Gradient,
            gradient: vec![0.0; parameters],
        }
    }

    /// What the workers of this job push.
    pub fn with(self, job: &JobSpec) -> Parameters {
        Parameters { push: job.strategy.push(job.scheduling.kind), ..self }
    }

    fn update(&mut self, moment: Moment, answer: &mut Vec<f32>) {
        let Parameters { state, optimizer, push, gradient } = self;
        match push {
            Push::Gradient => optimizer.apply(moment, state.buffers_mut(optimizer.slot_names()), gradient),
            Push::Delta => {
                state.parameters_mut().iter_mut().zip(gradient).for_each(|(value, delta)| *value += *delta)
            }
        }
        answer.extend_from_slice(self.state.parameters());
    }
}

impl Owner for Parameters {
    fn apply(&mut self, pushed: Values<'_>, moment: Moment, answer: &mut Vec<f32>) {
        pushed.copy_to(&mut self.gradient);
        self.update(moment, answer);
    }

    fn begin(&mut self) {
        // The only number that changes no bit of a number that is added to it.
        self.gradient.fill(-0.0);
    }

    fn add(&mut self, start: usize, pushed: Values<'_>) {
        pushed.add_to(&mut self.gradient[start..start + pushed.len()]);
    }

    fn commit(&mut self, _: usize, moment: Moment, answer: &mut Vec<f32>) {
        self.update(moment, answer);
    }

    fn keep(&mut self, range: &Range<usize>) {
        if range.len() < self.state.len() {
            self.state.keep(range);
            self.optimizer = self.optimizer.part(range);
            self.gradient = vec![0.0; range.len()];
        }
    }

    fn answers_alike(&self) -> bool {
        true
    }

    fn initial_answer(&self) -> &[f32] {
        self.state.parameters()
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

/// A worker of the synchronous server.
pub struct Worker {
    /// The parameters that it has pulled.
    state: State,
    /// The step that they are for.
    next: Option<u64>,
    /// Of this generation.
    gradient: GradientPush,
}

impl Worker {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> Worker {
        let state = State::with_parameters(Spread::OnServers, parameters);
        let state = state.without_values(optimizer.slot_names());
        Worker { state, next: None, gradient: GradientPush::default() }
    }
}

impl Strategy for Worker {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (gradient, parameters) = (&mut self.gradient, self.state.parameters());
        let report = cx.compute_share(|pass| gradient.compute(pass, parameters))?; // g_i; parts of it leave
        let since = cx.rank.now();
        gradient.push(cx, &report)?;
        let summary = clocked::pull(cx, self.state.parameters_mut())?;
        self.next = Some(cx.work.next() + 1);
        self.gradient.book(cx, &summary, since);
        Ok(summary)
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        leased::receive_published(cx, self.state.parameters_mut())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        if Roles::of(cx.job).missing_server(&cx.rank.member_ids()).is_some() {
            // It has completed the job.
            return Ok(());
        }
        self.gradient = GradientPush::open(cx)?;
        let next = Some(cx.work.next());
        // In the first generation all have the initial parameters of a new job.
        let is_initial = cx.rank.generation() == 1 && next == Some(0);
        clocked::refresh(cx, self.next != next && !is_initial, self.state.parameters_mut())?;
        self.next = next;
        Ok(())
    }

    fn set_published(&mut self, model: Vec<f32>) {
        *self.state.parameters_mut() = model;
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn agree_on_transfer_unit(&self, _: &mut Context<'_>) -> Result<TransferUnit> {
        Ok(TransferUnit::State)
    }

    fn shown_values(&self, job: &JobSpec) -> usize {
        // Terms of a fixed sum are sent: their number changes with the members.
        if job.train.reproducible { 0 } else { self.state.len() }
    }

    fn message_window(&self, job: &JobSpec) -> Option<usize> {
        Some(clocked::window(clocked::pushed_values(job, self.state.len())))
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        self.gradient.describe(cx.compute.model.layout())
    }
}

/// A worker of the asynchronous server.
pub struct AsynchronousWorker {
    /// The parameters that it has pulled, with its own updates since.
    state: State,
    push: Push,
    /// Whether it updates its copy by each gradient.
    steps_locally: bool,
    /// The copy during a lease: one that is interrupted is computed again.
    local: State,
    gradient: Vec<f32>,
    /// The gradients, or the change of the copy, that it has pushed last.
    pushed: Vec<f32>,
    client: Client,
}

impl AsynchronousWorker {
    pub(crate) fn new(of: Setup<'_>) -> AsynchronousWorker {
        let state = State::with_parameters(Spread::OnServers, of.parameters);
        let state = state.without_values(of.optimizer.slot_names());
        let (scheduling, push) = (&of.job.scheduling, of.job.strategy.push(of.job.scheduling.kind));
        let steps_locally = scheduling.n_fetch > 1 || push == Push::Delta;
        AsynchronousWorker {
            local: state.clone(),
            state,
            push,
            steps_locally,
            gradient: vec![0.0; of.parameters],
            pushed: vec![0.0; of.parameters],
            client: Client::fetching(scheduling.n_fetch / scheduling.n_push),
        }
    }

    /// `w_i = w_i - rate * g`, or the update of the job, whose change is pushed.
    fn step_locally(&mut self, cx: &mut Context<'_>, step: u64) -> Result<()> {
        let moment = Moment { updates: step, rate: cx.schedule().rate(step) };
        match self.push {
            Push::Delta => cx.update(moment, &mut self.local, &self.gradient)?,
            Push::Gradient => {
                let (parameters, gradient) = (self.local.parameters_mut(), &self.gradient);
                let statistics: Vec<f32> = cx
                    .optimizer
                    .statistics()
                    .iter()
                    .flat_map(|range| &parameters[range.clone()])
                    .copied()
                    .collect();
                parameters.iter_mut().zip(gradient).for_each(|(value, g)| *value -= moment.rate * g);
                // A running statistic moves by all of its change.
                let moved = cx.optimizer.statistics().iter().cloned().flatten();
                moved.zip(statistics).for_each(|(at, before)| parameters[at] = before - gradient[at]);
            }
        }
        Ok(())
    }
}

impl Strategy for AsynchronousWorker {
    fn next(&mut self, cx: &mut Context<'_>) -> Result<NextActivity> {
        let parameters = self.state.parameters_mut();
        self.client.next(cx, &self.pushed, |range, pulled| {
            if pulled.len() != range.len() {
                return Err(format!("sent {} parameters", pulled.len()));
            }
            pulled.copy_to(&mut parameters[range]);
            Ok(())
        })
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        cx.compute.clear_consumed();
        self.local.copy_from(&self.state);
        // The only number that changes no bit of a number that is added to it.
        self.pushed.fill(-0.0);
        let (mut loss, mut took) = (0.0, Duration::ZERO);
        for piece in self.client.lease()?.pieces.clone() {
            cx.rank.check()?;
            let computed =
                cx.compute_piece(&piece, piece.of_step, self.local.parameters(), &mut self.gradient)?;
            self.pushed.iter_mut().zip(&self.gradient).for_each(|(sum, g)| *sum += g);
            if self.steps_locally {
                self.step_locally(cx, piece.step)?;
            }
            loss += computed.loss;
            took += computed.took;
        }
        if self.push == Push::Delta {
            let change = self.local.parameters().iter().zip(self.state.parameters());
            self.pushed.iter_mut().zip(change).for_each(|(delta, (after, before))| *delta = after - before);
        }
        self.state.copy_from(&self.local);
        let report = cx.report(loss, took, 1);
        self.client.push(cx, &report, &self.pushed)?;
        Ok(StepSummary::alone(&report))
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        leased::receive_published(cx, self.state.parameters_mut())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        self.client.change(cx)
    }

    fn set_published(&mut self, model: Vec<f32>) {
        *self.state.parameters_mut() = model;
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn agree_on_transfer_unit(&self, _: &mut Context<'_>) -> Result<TransferUnit> {
        Ok(TransferUnit::State)
    }

    fn shown_values(&self, _: &JobSpec) -> usize {
        self.state.len()
    }

    fn message_window(&self, job: &JobSpec) -> Option<usize> {
        Some(leased::window(job, self.state.len(), job.scheduling.n_push))
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}
