//! The driver: runs a strategy unit by unit, and does what every strategy needs around it.
//!
//! ```text
//! loop    change the group, if a member is to leave or to be admitted
//!         send new members a chunk of the state
//!         strategy.step                               one commit unit
//!         count its rows, serve requests
//!         at the end of an epoch: validate, audit;    epoch.rs
//!         evaluate, if it is due
//!         write a checkpoint, if one is due
//! end     validate, write the model                   end.rs
//! ```
//!
//! Workers at their own speed have no unit in common: what follows a unit of all comes at a meeting that the coordinator
//! calls (`meeting.rs`).
//!
//! A unit fails if the generation of the group is over. Then the strategy has committed nothing of it: the driver enters
//! the next generation (`group_change.rs`), the strategy answers the change, and the unit is run again.

mod end;
mod epoch;
mod group_change;
mod meeting;
mod own_models;

use crate::checkpoints::Checkpoints;
use crate::compute::Compute;
use crate::context::Context;
use crate::job_progress::{JobProgress, TrainingTime};
use crate::prepare::{Parts, Start};
use crate::recent_steps::RecentSteps;
use crate::registry::{self, Claims, Work};
use crate::roles::Roles;
use crate::state_transfer::{self, Receivers, StateTransfer};
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use crate::work::local_rows::LocalRows;
use crate::work::merge_interval::MergeInterval;
use crate::work::pool::Pool;
use crate::work::{Proof, Shares};
use meeting::Stretch;
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::event::{Event, Outcome};
use thalweg_core::schema::RowShape;
use thalweg_core::{JobSpec, Result};

/// One rank of a job.
pub(crate) struct Driver<'a> {
    cx: Context<'a>,
    strategy: Box<dyn Strategy>,
    claims: Claims,
    roles: Roles,
    progress: JobProgress,
    recent: RecentSteps,
    /// At its own speed: what this worker has done since the last meeting.
    stretch: Stretch,
    /// At its own speed: whether the strategy has made the published model at this meeting.
    is_published: bool,
    checkpoints: Checkpoints<'a>,
    membership: Membership,
    /// The step that this run began after.
    first_step: u64,
}

/// This rank's part in changes of the group.
struct Membership {
    holds: Holds,
    next: Next,
    begun: own_models::Begun,
    /// The transfer of the state to new members, if there is one.
    transfer: Option<StateTransfer>,
    /// The end of the last epoch, if rank 0 was to report it and may not have.
    unreported: Option<Event>,
}

/// What this rank has of the job's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// A new member has not all of it.
    Nothing,
    /// The state between two units.
    State,
    /// The same, with the next unit begun.
    StateInUnit,
}

/// What comes before the next unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Unit,
    /// The group changes.
    Change,
    /// The group changes, and this rank leaves it.
    Leave,
    /// This rank has left; the job goes on.
    Left,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(
        rank: &'a mut Rank,
        job: &'a JobSpec,
        folder: &'a Path,
        parts: Parts,
        start: Start,
    ) -> Result<Driver<'a>> {
        let now = rank.now();
        let Parts { data, model, optimizer, strategy, layers, onnx } = parts;
        let claims = registry::of(job).claims;
        let work = Shares::new(job, &data.training, start.step, &start.consumed)?;
        let pool = match claims.work {
            Work::Leases(per_lease) => Some(Pool::new(job, &data.training, per_lease(job))),
            Work::Shares | Work::Local => None,
        };
        let progress = JobProgress {
            closed: start.step / work.steps_per_epoch().max(1),
            leased_rows: pool.as_ref().map_or(0, |pool| pool.sizes().rows_at(start.step)),
            epoch_loss: start.loss,
            interval: MergeInterval::restored(start.interval),
            time: TrainingTime::starting(now),
            trained_before: start.trained,
            ..JobProgress::default()
        };
        let holds = if start.has_state { Holds::State } else { Holds::Nothing };
        let checkpoints = Checkpoints::new(folder, job, layers, onnx, start.data_digest, start.model_digest);
        let updates = start.step.saturating_sub(start.slots_start);
        let is_local = matches!(claims.work, Work::Local);
        let local_rows = is_local.then(|| LocalRows::new(job, &data.training, start.step, updates));
        let compute = Compute::new(job, data, model);
        let mut cx =
            Context::new(rank, job, compute, (work, local_rows, pool), (optimizer, start.slots_start));
        cx.merge_every = progress.interval.of(job);
        Ok(Driver {
            cx,
            strategy,
            claims,
            roles: Roles::of(job),
            progress,
            recent: RecentSteps::since(now),
            stretch: Stretch::default(),
            is_published: false,
            checkpoints,
            membership: Membership {
                holds,
                next: Next::Unit,
                begun: own_models::Begun::default(),
                transfer: None,
                unreported: None,
            },
            first_step: start.step,
        })
    }

    /// Trains to the end, in as many generations of the group as it takes.
    pub(crate) fn run(mut self, since: Duration) -> Result<Outcome> {
        let mut result = self.enter_group(since).and_then(|()| self.train());
        // The group is asked, not the error: errors also pass through models of users.
        while result.is_err() && self.cx.rank.generation_is_over() {
            result = self.change_group().and_then(|()| self.train());
        }
        result
    }

    fn train(&mut self) -> Result<Outcome> {
        while self.begin_unit()? {
            let summary = self.strategy.step(&mut self.cx)?;
            match self.claims.at_own_speed() {
                true => self.commit_own(&summary)?,
                false => self.commit(&summary)?,
            }
        }
        self.conclude()
    }

    /// Prepares the next unit; false if there is none.
    fn begin_unit(&mut self) -> Result<bool> {
        // It may be due from a generation that ended meanwhile.
        self.close_due_epoch()?;
        self.hold_meetings()?;
        while matches!(self.membership.next, Next::Change | Next::Leave) && !self.is_over() {
            self.change_group_in_order()?;
            // If a member was lost before, the others come from the end of an epoch that this rank has passed.
            self.close_due_epoch()?;
            self.hold_meetings()?;
        }
        if self.membership.next == Next::Left || self.is_over() {
            return Ok(false);
        }
        let step = self.cx.step();
        // The step that all agree on: faults that repeat before the next one are counted.
        self.cx.rank.begin_step(self.cx.work.next());
        // A worker at its own speed repeats no unit of all.
        if self.membership.holds == Holds::State && !self.claims.at_own_speed() {
            self.membership.holds = Holds::StateInUnit;
        }
        self.cx.rank.inject_faults(step);
        self.transfer_chunk()?;
        self.cx.transfers = self.membership.transfer.is_some();
        Ok(true)
    }

    fn is_over(&self) -> bool {
        self.progress.ended.is_some() || self.cx.work.is_done()
    }

    /// Sends new members the next chunk of the state. After the last one they are workers like the others.
    fn transfer_chunk(&mut self) -> Result<()> {
        let Some(mut transfer) = self.membership.transfer.take() else { return Ok(()) };
        let cx = &mut self.cx;
        let (chunk, is_last) = transfer.next_chunk(cx.compute.model.layout());
        let receivers = Receivers { new: transfer.receivers.clone(), ..Receivers::default() };
        state_transfer::transfer(cx.rank, self.strategy.state_mut(), &transfer.holders, &receivers, &chunk)?;
        if !is_last {
            self.membership.transfer = Some(transfer);
            return Ok(());
        }
        self.membership.holds = Holds::StateInUnit;
        self.divide(&[]);
        let (rank, step) = (&self.cx.rank, self.cx.work.next());
        if rank.index() == 0 {
            rank.emit(Event::CaughtUp {
                ranks: transfer.receivers.iter().map(|receiver| rank.member_id_at(*receiver)).collect(),
                step,
                steps: step - transfer.first,
                bytes: self.strategy.state().bytes() as u64,
                took_s: (rank.now() - transfer.since).as_secs_f64(),
            });
        }
        Ok(())
    }

    /// A unit is done: its rows count, and requests that came with it are served.
    fn commit(&mut self, summary: &StepSummary) -> Result<()> {
        let Context { rank, compute, work, .. } = &mut self.cx;
        let before = work.next();
        let proof = if self.claims.proves_rows { Proof::Checksum } else { Proof::Own(compute.consumed()) };
        let committed = work.commit(summary, proof)?;
        if rank.is_elastic() {
            for (rank, rows) in work.ranks().iter().zip(&committed.by_worker) {
                let took = summary.compute_ms.get(*rank).copied().unwrap_or(0.0);
                self.progress.contributions.add(*rank, *rows, took);
            }
        }
        if self.claims.spreads_later {
            let rows = work.ranks().iter().zip(&committed.by_worker);
            self.progress.unspread = rows.map(|(worker, rows)| (rank.member_id_at(*worker), *rows)).collect();
        }
        if self.membership.holds == Holds::StateInUnit {
            self.membership.holds = Holds::State;
        }
        // Workers with models of their own may be units ahead of rank 0: they keep it until the next.
        if self.claims.own_models.is_none() {
            self.membership.unreported = None;
        }
        self.is_published = false;
        rank.forget_change();
        self.progress.units += 1;
        self.progress.rows += committed.rows;
        self.progress.epoch_loss.0 += summary.loss;
        self.progress.epoch_loss.1 += committed.rows;
        self.recent.add(committed.rows, summary);
        let (now, steps, next) = (rank.now(), work.steps_per_epoch(), work.next());
        if rank.index() == 0 && (next.is_multiple_of(steps) || self.recent.is_due(now)) {
            rank.emit(self.recent.event(rank, work.step(next - 1), steps, (now, self.recent.rows())));
            self.recent = RecentSteps::since(now);
        }
        self.serve_requests(summary);
        self.close_due_epoch()?;
        self.evaluate_if_due(before, Duration::ZERO)?;
        self.checkpoints.poll()?;
        self.checkpoints.request(summary.checkpointing);
        let due = self.cx.work.checkpoint_is_due(before, next);
        if (due || summary.checkpointing) && self.progress.ended.is_none() {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Serves the requests of all ranks: every rank has the same summary.
    fn serve_requests(&mut self, summary: &StepSummary) {
        let rank = &self.cx.rank;
        let StepSummary { stopping, leaving, pausing, .. } = summary;
        let members = rank.member_ids();
        let needed = leaving.iter().any(|rank| self.roles.serves(members[*rank]));
        let workers = self.roles.worker_ranks(&members);
        let no_worker_stays = workers.iter().all(|rank| leaving.contains(rank));
        let none_stays = !leaving.is_empty() && (needed || no_worker_stays || !rank.can_spare(leaving));
        if !stopping.is_empty() || none_stays {
            self.progress.ended = Some(Outcome::Interrupted);
            if summary.terminating {
                rank.note_termination();
            }
            rank.announce_stop(if stopping.is_empty() { leaving } else { stopping });
        }
        let changes = match &self.membership.transfer {
            None => *pausing || !leaving.is_empty(),
            // New members wait for those before them, and so does the last rank that has the state.
            Some(transfer) => !leaving.is_empty() && transfer.survives(leaving),
        };
        self.membership.next = match rank.is_elastic() && changes {
            true if leaving.contains(&rank.index()) => Next::Leave,
            true => Next::Change,
            false => Next::Unit,
        };
        if summary.finishing {
            let work = &mut self.cx.work;
            work.end_after(work.next().next_multiple_of(work.steps_per_epoch()));
        }
    }

    fn announce(&self) {
        let cx = &self.cx;
        if cx.rank.index() > 0 {
            return;
        }
        let data = &cx.compute.data;
        let exchange = self.strategy.describe(cx);
        cx.rank.emit(Event::Started {
            rows: data.training.len(),
            validation_rows: data.validation.len(),
            width: data.schema.width(),
            window: match &data.schema.shape {
                RowShape::Text { window, .. } => *window,
                _ => 0,
            },
            classes: data.schema.classes.clone(),
            parameters: cx.parameters(),
            model: self.checkpoints.model_name(),
            epochs: cx.job.train.epochs,
            steps_per_epoch: cx.work.steps_per_epoch(),
            first_step: self.first_step,
            algorithm: exchange.algorithm,
            buckets: exchange.buckets,
        });
    }
}
