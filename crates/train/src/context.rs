//! What a strategy's program is written against: the rank and its groups, compute, work and the update rule.

use crate::compute::{Compute, Computed, Pass};
use crate::finite;
use crate::hooks::AbortCheck;
use crate::reduction::Reduction;
use crate::serving::windows::Windows;
use crate::state::State;
use crate::step_report::{self, Requests, RowChecksum, StepReport, StepSummary};
use crate::work::local_rows::LocalRows;
use crate::work::pool::{Piece, Pool};
use crate::work::{PlannedShare, Shares};
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::spec::schedule::LearningRateSchedule;
use thalweg_core::{Error, JobSpec, Result, Tally};
use thalweg_graph::Optimizer;
use thalweg_graph::optimizer::Moment;

/// The pieces of the training layer on one rank.
pub struct Context<'a> {
    pub rank: &'a mut Rank,
    pub job: &'a JobSpec,
    pub compute: Compute,
    pub work: Shares,
    /// Of workers at their own speed: the rows of this one. Their steps of the job follow the rows of all.
    pub local_rows: Option<LocalRows>,
    /// The same with leases from a server: the rows of all, on the server.
    pub pool: Option<Pool>,
    /// With a server: memory that it shares with the workers of its host.
    pub windows: Windows,
    /// Local steps between two merges.
    pub(crate) merge_every: u64,
    /// Meetings that workers at their own speed have held.
    pub(crate) meetings: u64,
    pub optimizer: Optimizer,
    schedule: LearningRateSchedule,
    /// The step before which the optimizer's slots were zero.
    pub(crate) slots_start: u64,
    /// Whether new members receive the state: no others are admitted meanwhile.
    pub(crate) transfers: bool,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        rank: &'a mut Rank,
        job: &'a JobSpec,
        compute: Compute,
        (work, local_rows, pool): (Shares, Option<LocalRows>, Option<Pool>),
        (optimizer, slots_start): (Optimizer, u64),
    ) -> Context<'a> {
        let schedule = LearningRateSchedule::new(job, work.end());
        Context {
            rank,
            job,
            compute,
            work,
            local_rows,
            pool,
            windows: Windows::default(),
            merge_every: job.merge.every as u64,
            meetings: 0,
            optimizer,
            schedule,
            slots_start,
            transfers: false,
        }
    }

    /// Elements of the parameters.
    pub fn parameters(&self) -> usize {
        self.compute.model.layout().len()
    }

    /// When the update of a step happens: every earlier step was an update too, from the one on that began with slots of
    /// zero.
    pub fn moment(&self, step: u64) -> Moment {
        Moment { updates: step.saturating_sub(self.slots_start), rate: self.schedule.rate(step) }
    }

    /// The learning rate by step.
    pub fn schedule(&self) -> LearningRateSchedule {
        self.schedule
    }

    /// Whether the coordinator has called the next meeting of workers at their own speed.
    pub fn meeting_called(&self) -> bool {
        self.rank.called_meeting() > self.meetings
    }

    /// Whether a meeting of workers at their own speed is due: the coordinator has called it, or this worker's own rows reach
    /// the boundary. The others come there by their own rows, if no coordinator answers.
    pub fn meeting_is_due(&self) -> bool {
        let boundary = self.work.next_boundary();
        self.meeting_called() || self.local_rows.as_ref().is_some_and(|local| local.reaches(boundary))
    }

    /// The step that the job is at: the next one or, with workers at their own speed, as far as is known.
    pub fn step(&self) -> u64 {
        let known = self.rank.group_rows();
        let counted = match (&self.local_rows, &self.pool) {
            (Some(local), _) => local.step(known),
            (None, Some(pool)) => pool.sizes().step_at(known.max(pool.rows())),
            (None, None) => 0,
        };
        counted.min(self.work.end().saturating_sub(1)).max(self.work.next())
    }

    /// With local rows, the moment of this worker's next update: the rate follows the rows of all workers, the count of
    /// updates is that of its own parameters.
    pub fn own_moment(&self) -> Moment {
        let updates = self.local_rows.as_ref().map_or(0, LocalRows::updates);
        Moment { updates, rate: self.schedule.rate(self.step()) }
    }

    /// With local rows, the gradient of this worker's next rows at the parameters `at`: the mean over them.
    pub fn compute_own_gradient(&mut self, at: &[f32], gradient: &mut [f32]) -> Result<Computed> {
        let step = self.step();
        let Context { rank, compute, local_rows, .. } = self;
        let local = local_rows.as_mut().ok_or_else(|| Error::internal("a worker without local rows"))?;
        compute.clear_consumed();
        compute.run(rank, local.plan(step), |pass| {
            let tally = pass.accumulate(at, gradient, None)?;
            pass.check(tally.loss, gradient, 0)?;
            Ok(tally)
        })
    }

    /// The gradient of a piece of a lease at the parameters `at`: the sum over its rows, divided by `divisor`. Rows computed
    /// earlier stay counted until [`Compute::clear_consumed`].
    pub fn compute_piece(
        &mut self,
        piece: &Piece,
        divisor: usize,
        at: &[f32],
        gradient: &mut [f32],
    ) -> Result<Computed> {
        self.compute.run(self.rank, piece.plan(divisor.max(1) as f32), |pass| {
            let tally = pass.accumulate(at, gradient, None)?;
            pass.check(tally.loss, gradient, 0)?;
            Ok(tally)
        })
    }

    /// The gradient of a piece of a step at the parameters `at`: the sum over its rows, divided by those of the step. None if it
    /// becomes useless before its end: then no row counts.
    pub fn compute_piece_unless(
        &mut self,
        piece: &Piece,
        abort_check: Option<&mut AbortCheck<'_>>,
        at: &[f32],
        gradient: &mut [f32],
    ) -> Result<Option<Computed>> {
        let Context { rank, compute, .. } = self;
        compute.clear_consumed();
        let planned = piece.plan(piece.of_step.max(1) as f32);
        let computed = compute.run_unless(rank, planned, abort_check, |pass| {
            let tally = pass.accumulate(at, gradient, None)?;
            pass.check(tally.loss, gradient, 0)?;
            Ok(tally)
        })?;
        if computed.is_none() {
            compute.clear_consumed();
        }
        Ok(computed)
    }

    /// `g_i`: the gradient of this rank's share of the next step's rows, divided by all rows of the step, computed where
    /// the reduction sums it.
    pub(crate) fn compute_gradient(
        &mut self,
        reduction: &mut dyn Reduction,
        state: &State,
    ) -> Result<StepReport> {
        self.compute_share(|pass| reduction.gradient(pass, state))
    }

    /// Computes this rank's share of the next step, divided by all rows of the step.
    pub(crate) fn compute_share(
        &mut self,
        gradient: impl FnOnce(&mut Pass<'_>) -> Result<Tally>,
    ) -> Result<StepReport> {
        let Context { rank, compute, work, .. } = self;
        compute.clear_consumed();
        let computed = compute.run(rank, work.plan(work.next()), gradient)?;
        Ok(self.report(computed.loss, computed.took, 1))
    }

    /// The gradient of this rank's share of a step at the parameters `at`: the mean over its own rows. Rows computed
    /// earlier stay counted until [`Compute::clear_consumed`].
    pub fn compute_local_gradient(
        &mut self,
        step: u64,
        at: &[f32],
        gradient: &mut [f32],
    ) -> Result<Computed> {
        self.compute_gradient_at(step, at, gradient, |planned| planned.share.rows.len().max(1) as f32)
    }

    /// The same, but the sum over its own rows divided by all rows of the step: its part of the mean over all workers.
    pub fn compute_partial_gradient(
        &mut self,
        step: u64,
        at: &[f32],
        gradient: &mut [f32],
    ) -> Result<Computed> {
        self.compute_gradient_at(step, at, gradient, |planned| planned.divisor)
    }

    /// The same times the number of workers: the mean of what all workers compute is the gradient of all rows. A step that
    /// is partly done is divided by all of its rows, too.
    pub fn compute_worker_gradient(
        &mut self,
        step: u64,
        at: &[f32],
        gradient: &mut [f32],
    ) -> Result<Computed> {
        let workers = self.work.workers() as f32;
        self.compute_gradient_at(step, at, gradient, |planned| planned.of_step as f32 / workers)
    }

    fn compute_gradient_at(
        &mut self,
        step: u64,
        at: &[f32],
        gradient: &mut [f32],
        divisor: impl FnOnce(&PlannedShare<'_>) -> f32,
    ) -> Result<Computed> {
        let Context { rank, compute, work, .. } = self;
        let mut planned = work.plan(step);
        planned.divisor = divisor(&planned);
        compute.run(rank, planned, |pass| {
            let tally = pass.accumulate(at, gradient, None)?;
            pass.check(tally.loss, gradient, 0)?;
            Ok(tally)
        })
    }

    /// The report of this rank, with the rows computed since they were last cleared.
    pub fn report(&self, loss: f64, took: Duration, steps: u64) -> StepReport {
        StepReport {
            loss,
            compute_ms: took.as_secs_f32() * 1e3,
            steps,
            rows: RowChecksum::of(self.compute.consumed()),
            requests: Requests::of(self.rank),
        }
    }

    /// One update of parameters and slots, which are the first columns of the state.
    pub fn update(&mut self, moment: Moment, state: &mut State, gradient: &[f32]) -> Result<()> {
        let optimizer = &self.optimizer;
        self.rank.compute("update", 10 * gradient.len() as u64, || {
            optimizer.apply(moment, state.buffers_mut(optimizer.slot_names()), gradient);
            Ok(())
        })
    }

    /// Whether a request is pending that is served between two units: a long unit ends early for it.
    pub fn boundary_requested(&self) -> bool {
        let Requests { stop, leave, .. } = Requests::of(self.rank);
        // Other members are admitted after the transfer: units stay whole meanwhile.
        stop || leave || !self.transfers && self.rank.boundary_requested()
    }

    /// Sums `values` over all ranks, together with their reports.
    pub fn all_reduce_with_report(
        &mut self,
        name: &str,
        values: &mut Vec<f32>,
        report: &StepReport,
    ) -> Result<StepSummary> {
        let (length, world, index) = (values.len(), self.rank.size(), self.rank.index());
        values.resize(length + step_report::len(world), 0.0);
        report.write(index, &mut values[length..]);
        let took = self.rank.world().all_reduce(name, values)?;
        let summary = self.summarize(&values[length..], took)?.0;
        values.truncate(length);
        Ok(summary)
    }

    /// Reads the summed reports of an exchange of that duration, and books the part of it in which this rank waited for
    /// a slower one. Returns the summary and the seconds of waiting.
    pub(crate) fn summarize(&mut self, tail: &[f32], took: Duration) -> Result<(StepSummary, f64)> {
        let summary = StepSummary::read(tail);
        let (rank, step) = (self.rank.member_id(), self.work.next());
        finite::check_loss(rank, step, summary.loss, self.compute.model.layout())?;
        let waited = self.book_wait(&summary, took);
        Ok((summary, waited))
    }

    /// Books the part of an exchange of that duration in which this rank waited for a slower one, in seconds.
    pub(crate) fn book_wait(&mut self, summary: &StepSummary, took: Duration) -> f64 {
        let own = summary.compute_ms[self.rank.index()];
        let waited = (f64::from(summary.slowest().1 - own) / 1e3).clamp(0.0, took.as_secs_f64());
        self.rank.book_wait(waited);
        waited
    }
}
