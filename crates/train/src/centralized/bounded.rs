//! A parameter server of workers at different clocks: stale synchronous, eager, or with a quorum (Langer et al., sections
//! 3.3.1 and 3.3.4; Ho et al. 2013, Dai et al. 2015, Chen et al. 2016).
//!
//! A clock `c` is a step of the job; worker `i` computes the rows that fall to it by (c, i).
//!
//! ```text
//! worker i, clock c:   wait until it may begin c;  w_i = what it reads: w, or its copy while the bound allows
//!                      g = sum of the gradients of its rows of c / rows of the step, at w_i
//!                      push g                                                        push = gradient
//!                      or:  d = update(w_i, g) - w_i;  w_i = w_i + d;  push d        push = delta
//! server:              w = update(w, g), or w + d:  for each push as it arrives, or for all of a clock together
//!                      each of several servers for its shard of w, in the order in which the first one decides
//! ```
//!
//! | | may begin clock c | what it reads holds |
//! |---|---|---|
//! | ssp | when all have completed c - s | the clocks below c - s, and its own pushes |
//! | essp | the same | the same, and each clock that all have completed, as soon as it has arrived |
//! | quorum | when clock c - 1 has all pushes but those of the slowest b | the clocks below c |

use crate::context::Context;
use crate::hooks::AbortCheck;
use crate::reduction::Description;
use crate::registry::Setup;
use crate::scheduling::policy;
use crate::serving::bounded::{Client, Parameters, Server, window};
use crate::serving::{leased, part};
use crate::state::{Spread, State};
use crate::step_report::{StepReport, StepSummary};
use crate::strategy::{NextActivity, Strategy, TransferUnit};
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::spec::scheduling::Push;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::{Moment, Optimizer};

/// The server, or a worker.
pub(crate) fn start(of: Setup<'_>) -> Box<dyn Strategy> {
    let push = of.job.strategy.push(of.job.scheduling.kind);
    match of.serves {
        Some(shard) => {
            let parameters = Parameters::new(of.optimizer, of.parameters, push);
            Box::new(Server::new(of.job, parameters, shard.clone()))
        }
        None => {
            let abandons = policy(of.job).tells_late_workers();
            Box::new(Worker::new(of.optimizer, of.parameters, push, abandons))
        }
    }
}

struct Worker {
    /// The parameters that it reads.
    state: State,
    push: Push,
    /// Whether it leaves a task whose clock is closed.
    abandons: bool,
    /// The gradient or the change that it has pushed last.
    pushed: Vec<f32>,
    client: Client,
}

impl Worker {
    fn new(optimizer: &Optimizer, parameters: usize, push: Push, abandons: bool) -> Worker {
        let state = State::with_parameters(Spread::OnServers, parameters);
        let state = state.without_values(optimizer.slot_names());
        Worker { state, push, abandons, pushed: vec![0.0; parameters], client: Client::default() }
    }

    /// `d = update(w, g) - w`, and `w = w + d`.
    fn make_delta(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let step = self.client.task()?.piece.step;
        let before = self.state.parameters().to_vec();
        let moment = Moment { updates: step, rate: cx.schedule().rate(step) };
        cx.update(moment, &mut self.state, &self.pushed)?;
        for ((delta, after), before) in self.pushed.iter_mut().zip(self.state.parameters()).zip(before) {
            *delta = after - before;
        }
        Ok(())
    }
}

impl Strategy for Worker {
    fn next(&mut self, cx: &mut Context<'_>) -> Result<NextActivity> {
        let Worker { state, pushed, client, .. } = self;
        client.next(cx, pushed, |read| {
            let parameters = state.parameters_mut();
            parameters.copy_from_slice(read.values);
            if read.is_ahead {
                parameters.iter_mut().zip(&*pushed).for_each(|(value, delta)| *value += delta);
            }
        })
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let piece = self.client.task()?.piece.clone();
        let (at, gradient) = (self.state.parameters(), &mut self.pushed);
        let mut is_closed = self.client.is_closed(part::server(cx)?);
        let abort_check: Option<&mut AbortCheck<'_>> =
            if self.abandons { Some(&mut is_closed) } else { None };
        let Some(computed) = cx.compute_piece_unless(&piece, abort_check, at, gradient)? else {
            drop(is_closed);
            self.client.abandon(cx)?;
            return Ok(StepSummary::alone(&StepReport::default()));
        };
        drop(is_closed);
        let report = cx.report(computed.loss, computed.took, 1);
        if self.push == Push::Delta {
            self.make_delta(cx)?;
        }
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

    fn message_window(&self, job: &JobSpec) -> Option<usize> {
        Some(window(job, self.state.len()))
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}
