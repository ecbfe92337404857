//! A synchronous parameter server (Langer et al., section 3.3.1 and Figure 6).
//!
//! Rank 0 holds the parameters `w` and the only optimizer state that is used; the others compute. In each step `t`:
//!
//! ```text
//! worker i:   g_i = sum of the gradients of its share of the step's rows / rows of the step
//!             push g_i
//!             pull w
//!
//! server:     g   = g_1 + ... + g_n        once all have arrived, in the order of ranks
//!             w   = update(w, g)
//!             send w to all workers
//! ```
//!
//! The step is the one that a single worker takes, up to rounding. The server sends and receives n times the model, where
//! an all-reduce sends and receives it less than twice on every rank.

use crate::context::Context;
use crate::finite;
use crate::reduction::Description;
use crate::state::{Spread, State};
use crate::step_report::{self, Requests, StepReport, StepSummary};
use crate::strategy::Strategy;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::Result;
use thalweg_graph::optimizer::Optimizer;

/// The rank that serves.
const SERVER: usize = 0;

pub struct ParameterServer {
    state: State,
    /// The gradient of this rank, or the sum of all on the server, with the report behind it.
    gradient: Vec<f32>,
    /// Gradients of the workers, one after the other, on the server.
    pushed: Vec<f32>,
}

impl ParameterServer {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> ParameterServer {
        let state = State::of_parameters(parameters);
        let state = state.with_columns(optimizer.slot_names(), Spread::Replicated);
        ParameterServer { state, gradient: Vec::new(), pushed: Vec::new() }
    }

    fn work(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let report = self.compute_gradient(cx)?;
        self.push(cx, &report)?;
        self.pull(cx)
    }

    fn serve(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let summary = self.gather(cx)?;
        let (gradient, _) = self.gradient.split_at(self.state.len());
        cx.update(cx.moment(cx.work.next()), &mut self.state, gradient)?;
        self.send_parameters(cx)?;
        Ok(summary)
    }

    /// `g_i`, divided by the rows of the whole step.
    fn compute_gradient(&mut self, cx: &mut Context<'_>) -> Result<StepReport> {
        cx.compute.clear_consumed();
        let (step, gradient) = (cx.work.next(), &mut self.gradient[..self.state.len()]);
        let computed = cx.compute_partial_gradient(step, self.state.parameters(), gradient)?;
        Ok(cx.report(computed.loss, computed.took, 1))
    }

    fn push(&mut self, cx: &mut Context<'_>, report: &StepReport) -> Result<()> {
        report.write(cx.rank.index(), &mut self.gradient[self.state.len()..]);
        cx.rank.world().exchange("push", "gradients", &[(SERVER, &self.gradient)], &mut [])?;
        Ok(())
    }

    /// The parameters of the server replace this worker's.
    fn pull(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (pulled, tail) = self.gradient.split_at_mut(self.state.len());
        cx.rank.world().exchange("pull", "parameters", &[], &mut [(SERVER, pulled), (SERVER, tail)])?;
        let summary = StepSummary::read(tail);
        self.state.parameters_mut().copy_from_slice(pulled);
        Ok(summary)
    }

    /// Adds up the gradients and reports of all workers, in the order of ranks.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (length, parameters) = (self.gradient.len(), self.state.len());
        self.pushed.resize(length * cx.work.workers(), 0.0);
        let clients = SERVER + 1..;
        let mut receives: Vec<(usize, &mut [f32])> =
            clients.zip(self.pushed.chunks_exact_mut(length)).collect();
        let took = cx.rank.world().exchange("push", "gradients", &[], &mut receives)?;
        self.gradient.fill(0.0);
        for pushed in self.pushed.chunks_exact(length) {
            self.gradient.iter_mut().zip(pushed).for_each(|(sum, part)| *sum += part);
        }
        cx.compute.clear_consumed();
        let own = StepReport { steps: 1, requests: Requests::of(cx.rank), ..StepReport::default() };
        own.add(SERVER, &mut self.gradient[parameters..]);
        let (rank, step, layout) = (cx.rank.member_id(), cx.work.next(), cx.compute.model.layout());
        finite::check_share(rank, step, &self.gradient[..parameters], 0, layout)?;
        Ok(cx.summarize(&self.gradient[parameters..], took)?.0)
    }

    fn send_parameters(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let (parameters, tail) = (self.state.parameters(), &self.gradient[self.state.len()..]);
        let clients = SERVER + 1..=SERVER + cx.work.workers();
        let sends: Vec<(usize, &[f32])> =
            clients.flat_map(|client| [(client, parameters), (client, tail)]).collect();
        cx.rank.world().exchange("pull", "parameters", &sends, &mut [])?;
        Ok(())
    }
}

impl Strategy for ParameterServer {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        if cx.rank.index() == SERVER { self.serve(cx) } else { self.work(cx) }
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        self.gradient.resize(self.state.len() + step_report::len(cx.rank.size()), 0.0);
        Ok(())
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}
