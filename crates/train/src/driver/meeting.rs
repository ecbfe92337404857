//! Meetings of workers at their own speed.
//!
//! ```text
//! every worker     after a commit unit: reports its rows to the coordinator now and then, and requests at once
//! coordinator      calls meeting k when the rows reach the next boundary, or for a request (`meeting_policy` of cluster)
//! every worker     sees k after a unit, and meets the others: the clock of the step deadline runs for those that wait
//!                  messages in flight arrive, the strategy makes the model that it publishes
//!                  all say how far they are: rows, losses, requests
//!                  at the end of an epoch: validate, audit; write a checkpoint, if one is due; change the group
//! ```
//!
//! The boundaries are the ends of epochs, checkpoints and the end of the job. Workers reach them in rows, so what they
//! computed beyond belongs to the time after.

use super::group_change::giver_of;
use super::{Driver, Next};
use crate::recent_steps::RecentSteps;
use crate::step_report::{Requests, StepReport, StepSummary};
use crate::work::local_rows::{LocalRows, Standing};
use crate::work::walk::Walk;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thalweg_cluster::WorkReport;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::{Error, Result};

/// Reports of all workers in an epoch; each makes them in turn.
const REPORTS: u64 = 64;

/// The least time between two reports of a worker, and the most while it computes.
const MIN_INTERVAL: Duration = Duration::from_millis(2);
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// What this worker has done since the last meeting, and what the coordinator knows of it.
#[derive(Default)]
pub(super) struct Stretch {
    loss: f64,
    rows: u64,
    compute_ms: f32,
    units: u64,
    reported: Option<WorkReport>,
    reported_at: Duration,
}

/// What a worker says at a meeting.
#[derive(Serialize, Deserialize)]
struct Attendance {
    walk: Walk,
    report: StepReport,
    rows: u64,
}

impl Driver<'_> {
    /// Counts a unit of this worker.
    pub(super) fn commit_own(&mut self, summary: &StepSummary) -> Result<()> {
        let Some(local) = &mut self.cx.local_rows else { return Ok(()) };
        let rows = local.commit(self.cx.compute.consumed());
        let stretch = &mut self.stretch;
        stretch.loss += summary.loss;
        stretch.rows += rows;
        stretch.compute_ms += summary.compute_ms.first().copied().unwrap_or(0.0);
        stretch.units += 1;
        self.recent.add(rows, summary);
        self.report_work(false);
        if self.recent.is_due(self.cx.rank.now()) {
            self.emit_step();
        }
        self.checkpoints.poll()
    }

    /// Reports the rows of this worker, and whether a request waits: always, or if enough is new.
    pub(super) fn report_work(&mut self, always: bool) {
        let (rank, work) = (&self.cx.rank, &self.cx.work);
        let Some(local) = &self.cx.local_rows else { return };
        let held = self.progress.meetings;
        let report = WorkReport {
            held,
            called: rank.called_meeting().max(held),
            before: local.agreed_rows(),
            rows: local.rows_since(),
            until: local.rows_at(work.next_boundary(self.cx.job.fault.checkpoint_every)),
            requested: Requests::of(rank).await_boundary(),
        };
        let (stretch, now) = (&mut self.stretch, rank.now());
        let since = now.saturating_sub(stretch.reported_at);
        let is_new = |known: &WorkReport| {
            let rows = report.rows.saturating_sub(known.rows) * REPORTS * local.workers() as u64;
            let enough = since >= MIN_INTERVAL && rows >= local.rows_per_epoch();
            enough || since >= MAX_INTERVAL || report.requested && !known.requested
        };
        if always || stretch.reported.as_ref().is_none_or(is_new) {
            (stretch.reported, stretch.reported_at) = (Some(report), now);
            rank.report_work(report);
        }
    }

    /// Rank 0 reports the steps of all workers, as far as the coordinator has counted, and its own loss.
    fn emit_step(&mut self) {
        let (rank, work) = (&self.cx.rank, &self.cx.work);
        let Some(local) = &self.cx.local_rows else { return };
        let (now, known) = (rank.now(), rank.group_rows().max(local.agreed_rows()));
        if rank.index() == 0 && self.recent.rows() > 0 {
            let last = work.step(local.step(known).min(work.end()).saturating_sub(1));
            let rows = known.saturating_sub(self.recent.before());
            rank.emit(self.recent.event(rank, last, work.steps_per_epoch(), (now, rows)));
        }
        self.recent = RecentSteps::after(known, now);
    }

    /// Holds the meetings that were called.
    pub(super) fn hold_meetings(&mut self) -> Result<()> {
        let is_called = |driver: &Self| driver.cx.rank.called_meeting() > driver.progress.meetings;
        while self.claims.local_rows
            && !self.is_over()
            && self.membership.next == Next::Unit
            && is_called(self)
        {
            self.meet()?;
        }
        Ok(())
    }

    fn meet(&mut self) -> Result<()> {
        let before = self.cx.work.next();
        self.is_published = false;
        self.publish()?;
        let summary = self.gather()?;
        self.emit_step();
        self.serve_requests(&summary);
        self.close_due_epoch()?;
        self.checkpoints.poll()?;
        self.checkpoints.request(summary.checkpointing);
        let (every, next) = (self.cx.job.fault.checkpoint_every, self.cx.work.next());
        let due = every > 0 && before / every != next / every;
        if (due || summary.checkpointing) && self.progress.ended.is_none() {
            self.checkpoint()?;
        }
        self.report_work(true);
        Ok(())
    }

    /// All workers say how far they are. From here on the meeting is held.
    fn gather(&mut self) -> Result<StepSummary> {
        let local = self.cx.local_rows.as_ref().ok_or_else(|| Error::internal("a meeting without rows"))?;
        let Stretch { loss, compute_ms, units, rows, .. } = self.stretch;
        let requests = Requests::of(self.cx.rank);
        let report = StepReport { loss, compute_ms, steps: units, requests, ..StepReport::default() };
        let mine = Attendance { walk: local.walk().clone(), report, rows };
        let all: Vec<Attendance> = self.all_gather("workers at a meeting", &mine)?;
        let Some(local) = &mut self.cx.local_rows else { return Ok(StepSummary::default()) };
        let (work, progress, before) = (&mut self.cx.work, &mut self.progress, local.agreed_rows());
        for (rank, Attendance { report, rows, .. }) in all.iter().enumerate() {
            progress.contributions.add(rank, *rows, report.compute_ms);
            progress.epoch_loss.0 += report.loss;
            progress.epoch_loss.1 += rows;
            progress.units += report.steps;
        }
        let reports: Vec<StepReport> = all.iter().map(|attendance| attendance.report).collect();
        local.agree(all.into_iter().map(|attendance| attendance.walk).collect());
        let (boundary, rows) = (work.next_boundary(self.cx.job.fault.checkpoint_every), local.agreed_rows());
        progress.rows += rows - before;
        progress.meetings += 1;
        work.advance_to(match rows >= local.rows_at(boundary) {
            true => boundary,
            false => local.step(rows).clamp(work.next(), boundary),
        });
        self.stretch = Stretch::default();
        self.membership.unreported = None;
        self.cx.rank.forget_change();
        Ok(StepSummary::of(&reports))
    }

    /// The strategy makes the model that is validated and saved, unless it has since the workers met.
    pub(super) fn publish(&mut self) -> Result<()> {
        if self.claims.local_rows && !self.is_published {
            self.strategy.meet(&mut self.cx)?;
            self.is_published = true;
        }
        Ok(())
    }

    /// All go on from what they know of each other: the walks of those that stay, and what is left of those that do not.
    pub(super) fn share_local_rows(&mut self, change: &MembershipChange, source: usize) -> Result<()> {
        self.is_published = false;
        let Some(local) = &self.cx.local_rows else { return Ok(()) };
        let mine = local.standing();
        let standings: Vec<Standing> = self.all_gather("rows of all workers", &mine)?;
        let Some(local) = &mut self.cx.local_rows else { return Ok(()) };
        let rank = &mut *self.cx.rank;
        let from = LocalRows::newest(&standings, source);
        let agreement = if rank.index() == from { to_bytes(local.agreement())? } else { Vec::new() };
        let agreement = rank.world().broadcast("agreed rows", from, agreement)?;
        let (index, members) = (rank.index(), rank.member_ids());
        let giver = giver_of(index, change);
        local.regroup(from_bytes(&agreement)?, &standings, &members, (index, giver))
    }

    fn all_gather<T: Serialize + DeserializeOwned>(&mut self, name: &str, mine: &T) -> Result<Vec<T>> {
        let all = self.cx.rank.world().all_gather(name, &to_bytes(mine)?)?;
        all.iter().map(|bytes| from_bytes(bytes)).collect()
    }
}

fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|error| Error::internal(error.to_string()))
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| Error::internal(error.to_string()))
}
