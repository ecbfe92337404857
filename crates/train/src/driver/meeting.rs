//! Meetings of workers at their own speed.
//!
//! ```text
//! every worker     after a commit unit: reports its rows to the coordinator now and then, and requests at once
//! coordinator      calls meeting k when the rows reach the next boundary, or for a request (`meeting_policy` of cluster)
//! every worker     sees k after a unit, or that its own rows reach the boundary, and meets the others: the clock of the
//!                  step deadline runs for those that wait
//!                  messages in flight arrive, the strategy makes the model that it publishes
//!                  all say how far they are: rows, losses, requests
//!                  at the end of an epoch: validate, audit; evaluate and write a checkpoint, if due; change the group
//! ```
//!
//! With leases a server counts the rows of all. It calls the workers by its answers: when the coordinator has called a
//! meeting, or when no row of the epoch is left. So no lease is out when they meet.
//!
//! The boundaries are the ends of epochs, checkpoints, evaluations and the end of the job. Workers reach them in rows, so what they
//! computed beyond belongs to the time after.

use super::group_change::giver_of;
use super::{Driver, Next};
use crate::audit::ConsumedRows;
use crate::context::Context;
use crate::contributions::Contributions;
use crate::ensembles::combination;
use crate::job_progress::JobProgress;
use crate::recent_steps::RecentSteps;
use crate::stacking;
use crate::step_report::{Requests, StepReport, StepSummary};
use crate::strategy::NextActivity;
use crate::work::local_rows::{LocalRows, Standing};
use crate::work::pool::Finished;
use crate::work::walk::Walk;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thalweg_cluster::WorkReport;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::spec::ensemble::Combine;
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

/// What a rank says at a meeting.
#[derive(Serialize, Deserialize)]
struct Attendance {
    report: StepReport,
    rows: u64,
    /// With local rows.
    walk: Option<Walk>,
    /// Of a server that hands out leases.
    served: Option<Served>,
    /// Of another server: rows that were pushed again after it had applied them.
    mixed: Vec<u8>,
}

/// What a server knows of the job: absolute, so that a meeting may be held again.
#[derive(Serialize, Deserialize)]
struct Served {
    /// Rows of the epoch that were applied, and of the job.
    applied: Vec<u8>,
    leased_rows: u64,
    /// No row is left to be handed out.
    is_exhausted: bool,
    epoch_loss: (f64, u64),
    /// Rows and commit units of this run.
    rows: u64,
    units: u64,
    contributions: Contributions,
}

impl Driver<'_> {
    /// Counts a unit of this worker.
    pub(super) fn commit_own(&mut self, summary: &StepSummary) -> Result<()> {
        self.count_finished();
        let consumed = self.cx.compute.consumed();
        let rows = match &mut self.cx.local_rows {
            Some(local) => local.commit(consumed),
            None => consumed.len() as u64,
        };
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

    /// On a server that hands out leases: those that had their effect count.
    fn count_finished(&mut self) {
        let Some(pool) = &mut self.cx.pool else { return };
        let (finished, members) = (pool.take_finished(), self.cx.rank.member_ids());
        for Finished { member, rows, report } in finished {
            let progress = &mut self.progress;
            progress.epoch_loss.0 += report.loss;
            progress.epoch_loss.1 += rows;
            progress.rows += rows;
            progress.units += 1;
            if let Some(rank) = members.iter().position(|id| *id == member) {
                progress.contributions.add(rank, rows, report.compute_ms);
            }
        }
    }

    /// On a server that hands out leases: they are those of the epoch in progress.
    fn prepare_leases(&mut self) {
        let serves = self.roles.serves(self.cx.rank.member_id());
        let Context { pool: Some(pool), work, .. } = &mut self.cx else { return };
        if serves {
            pool.begin_epoch(self.progress.closed, work.end(), work.consumed());
        }
    }

    /// Rows of all at the last meeting, this rank's since, and those of all at which the next meeting is due. A server
    /// counts those of leases.
    fn rows_to_report(&self) -> Option<(u64, u64, u64)> {
        let boundary = self.cx.work.next_boundary();
        match (&self.cx.local_rows, &self.cx.pool) {
            (Some(local), _) => Some((local.agreed_rows(), local.rows_since(), local.rows_at(boundary))),
            (None, Some(pool)) if self.hands_out_leases() => {
                let before = self.progress.leased_rows;
                Some((before, pool.rows().saturating_sub(before), pool.sizes().rows_at(boundary)))
            }
            (None, Some(_)) => Some((self.progress.leased_rows, 0, u64::MAX)),
            (None, None) => None,
        }
    }

    /// Reports the rows of this worker, and whether a request waits: always, or if enough is new.
    pub(super) fn report_work(&mut self, always: bool) {
        let Some((before, rows, until)) = self.rows_to_report() else { return };
        let (rank, held) = (&self.cx.rank, self.progress.meetings);
        let called = rank.called_meeting().max(held);
        let requested = Requests::of(rank).await_boundary();
        let report = WorkReport { held, called, before, rows, until, requested };
        let (workers, all) = match &self.cx.local_rows {
            Some(local) => (local.workers() as u64, local.rows_per_epoch()),
            // One server reports the rows of all.
            None => (1, self.cx.compute.data.training.len()),
        };
        let (stretch, now) = (&mut self.stretch, rank.now());
        let since = now.saturating_sub(stretch.reported_at);
        // If all are as fast, the meeting is due.
        let has_done_share = |rows: u64| rows.saturating_mul(workers) >= until.saturating_sub(before);
        let is_new = |known: &WorkReport| {
            let rows = report.rows.saturating_sub(known.rows) * REPORTS * workers;
            let enough = since >= MIN_INTERVAL && rows >= all;
            let done = has_done_share(report.rows) && !has_done_share(known.rows);
            enough || done || since >= MAX_INTERVAL || report.requested && !known.requested
        };
        if always || stretch.reported.as_ref().is_none_or(is_new) {
            (stretch.reported, stretch.reported_at) = (Some(report), now);
            rank.report_work(report);
        }
    }

    /// Rank 0 reports the steps of all workers, as far as the coordinator has counted, and its own loss.
    fn emit_step(&mut self) {
        let Some((agreed, ..)) = self.rows_to_report() else { return };
        let (rank, work) = (&self.cx.rank, &self.cx.work);
        let (now, known) = (rank.now(), rank.group_rows().max(agreed));
        if rank.index() == 0 && self.recent.rows() > 0 {
            let last = work.step(self.cx.step().min(work.end()).saturating_sub(1));
            let rows = known.saturating_sub(self.recent.before());
            rank.emit(self.recent.event(rank, last, work.steps_per_epoch(), (now, rows)));
        }
        self.recent = RecentSteps::after(known, now);
    }

    /// Holds the meetings that are due.
    pub(super) fn hold_meetings(&mut self) -> Result<()> {
        while self.claims.at_own_speed() && !self.is_over() && self.membership.next == Next::Unit {
            self.cx.meetings = self.progress.meetings;
            self.prepare_leases();
            if self.strategy.next(&mut self.cx)? == NextActivity::Unit {
                break;
            }
            self.meet()?;
        }
        Ok(())
    }

    fn meet(&mut self) -> Result<()> {
        let (arrived, before) = (self.cx.rank.now(), self.cx.work.next());
        if !self.cx.meeting_called() {
            // This worker knows by its own rows that it is due. The coordinator calls the others.
            self.report_work(true);
        }
        self.is_published = false;
        self.publish()?;
        let summary = self.gather()?;
        let waited = self.cx.rank.now().saturating_sub(arrived);
        self.emit_step();
        self.serve_requests(&summary);
        self.close_due_epoch()?;
        self.evaluate_if_due(before, waited)?;
        self.checkpoints.poll()?;
        self.checkpoints.request(summary.checkpointing);
        let due = self.cx.work.checkpoint_is_due(before, self.cx.work.next());
        if (due || summary.checkpointing) && self.progress.ended.is_none() {
            self.checkpoint()?;
        }
        self.report_work(true);
        Ok(())
    }

    /// The mean time in which workers waited for each other to meet for an evaluation does not count: without it they would
    /// have trained on. All ranks call it.
    pub(super) fn exclude_waits(&mut self, waited: Duration) -> Result<()> {
        let all: Vec<Duration> = self.all_gather("waits for an evaluation", &waited)?;
        let workers = self.cx.work.ranks();
        let total: Duration = workers.iter().filter_map(|rank| all.get(*rank)).sum();
        let now = self.cx.rank.now();
        self.progress.time.exclude_of_others(total / workers.len().max(1) as u32, now);
        Ok(())
    }

    /// All workers say how far they are. From here on the meeting is held.
    fn gather(&mut self) -> Result<StepSummary> {
        self.count_finished();
        let Stretch { loss, compute_ms, units, rows, .. } = self.stretch;
        let requests = Requests::of(self.cx.rank);
        let report = StepReport { loss, compute_ms, steps: units, requests, ..StepReport::default() };
        let walk = self.cx.local_rows.as_ref().map(|local| local.walk().clone());
        let servers = self.roles.servers();
        let is_other_server =
            self.cx.rank.member_id() != servers.start && self.roles.serves(self.cx.rank.member_id());
        let pool = self.cx.pool.as_ref().filter(|_| is_other_server);
        let mixed = pool.map_or(Vec::new(), |pool| pool.mixed().to_bytes());
        let mine = Attendance { report, rows, walk, served: self.served(), mixed };
        let all: Vec<Attendance> = self.all_gather("workers at a meeting", &mine)?;
        let reports: Vec<StepReport> = all.iter().map(|attendance| attendance.report).collect();
        match self.cx.pool.is_some() {
            true => self.agree_on_leases(all)?,
            false => self.agree_on_walks(all)?,
        }
        self.progress.meetings += 1;
        self.stretch = Stretch::default();
        self.membership.unreported = None;
        self.cx.rank.forget_change();
        Ok(StepSummary::of(&reports))
    }

    /// All know what the others have computed of their rows.
    fn agree_on_walks(&mut self, all: Vec<Attendance>) -> Result<()> {
        let Some(local) = &mut self.cx.local_rows else {
            return Err(Error::internal("a meeting without rows"));
        };
        let (work, progress, before) = (&mut self.cx.work, &mut self.progress, local.agreed_rows());
        for (rank, Attendance { report, rows, .. }) in all.iter().enumerate() {
            progress.contributions.add(rank, *rows, report.compute_ms);
            progress.epoch_loss.0 += report.loss;
            progress.epoch_loss.1 += rows;
            progress.units += report.steps;
        }
        local.agree(all.into_iter().filter_map(|attendance| attendance.walk).collect());
        let (boundary, rows) = (work.next_boundary(), local.agreed_rows());
        progress.rows += rows - before;
        work.advance_to(match rows >= local.rows_at(boundary) {
            true => boundary,
            false => local.step(rows).clamp(work.next(), boundary),
        });
        Ok(())
    }

    /// Whether this is the server of leases: the first.
    fn hands_out_leases(&self) -> bool {
        let servers = self.roles.servers();
        !servers.is_empty() && servers.start == self.cx.rank.member_id()
    }

    /// What this rank knows as a server of leases.
    fn served(&self) -> Option<Served> {
        let pool = self.cx.pool.as_ref().filter(|_| self.hands_out_leases())?;
        let JobProgress { epoch_loss, rows, units, contributions, .. } = self.progress.clone();
        let (applied, leased_rows) = (pool.applied().to_bytes(), pool.rows());
        let is_exhausted = pool.is_exhausted();
        Some(Served { applied, leased_rows, is_exhausted, epoch_loss, rows, units, contributions })
    }

    /// All know what the server knows. No lease is out.
    fn agree_on_leases(&mut self, all: Vec<Attendance>) -> Result<()> {
        let mut mixed = ConsumedRows::like(self.cx.work.consumed());
        let reported = all.iter().map(|attendance| &attendance.mixed).filter(|mixed| !mixed.is_empty());
        reported.into_iter().try_for_each(|other| mixed.unite(other))?;
        self.progress.mixed = mixed.count();
        let served = all.into_iter().find_map(|attendance| attendance.served);
        let served = served.ok_or_else(|| Error::internal("a meeting without a server"))?;
        let Context { work, pool: Some(pool), .. } = &mut self.cx else {
            return Err(Error::internal("a meeting without leases"));
        };
        let progress = &mut self.progress;
        work.count(&served.applied)?;
        progress.leased_rows = served.leased_rows;
        (progress.epoch_loss, progress.rows, progress.units) = (served.epoch_loss, served.rows, served.units);
        progress.contributions = served.contributions;
        let due = pool.sizes().rows_at(work.next_end());
        if served.is_exhausted && served.leased_rows < due {
            let lost = due - served.leased_rows;
            return Err(Error::internal(format!(
                "{lost} rows of the epoch were neither applied nor are they leased"
            )));
        }
        let boundary = work.next_boundary();
        let next = pool.sizes().step_at(served.leased_rows);
        work.advance_to(match served.leased_rows >= pool.sizes().rows_at(boundary) {
            true => boundary,
            false => next.clamp(work.next(), boundary),
        });
        Ok(())
    }

    /// The strategy makes the model that is validated and saved, unless it has since the last unit of all.
    pub(super) fn publish(&mut self) -> Result<()> {
        if self.claims.makes_published(self.cx.job) && !self.is_published && !self.server_has_finished() {
            self.strategy.meet(&mut self.cx)?;
            if combination(self.cx.job) == Some(Combine::Stack) {
                let mut published = self.strategy.published().to_vec();
                published.extend(stacking::learn(&mut self.cx, &published)?);
                self.strategy.set_published(published);
            }
            self.is_published = true;
        }
        Ok(())
    }

    /// All go on from what they know of each other: the walks of those that stay, and what is left of those that do not.
    pub(super) fn share_local_rows(&mut self, change: &MembershipChange, source: usize) -> Result<()> {
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

    pub(super) fn all_gather<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        mine: &T,
    ) -> Result<Vec<T>> {
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
