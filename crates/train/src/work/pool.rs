//! Work from a pool: leases on rows, handed out by a server.
//!
//! The steps of an epoch are cut into pieces of `global_batch / workers` rows. A worker that asks gets the next ones, so a
//! fast worker takes more. A lease commits when its effect survives its worker: the server counts the rows in the same
//! moment in which it applies the update, so both are there or neither is. Leases of workers that are gone are handed out
//! again, whole: other servers may have applied them. At a meeting no lease is out, and none has come back: the rows applied
//! are then the same on all servers.
//!
//! The first server has the table of leases; others count the rows that they have applied. It is no member that a job can
//! lose, so the table is not replicated, and a loss of the coordinator leaves it as it is; what the table says of the epoch
//! is told to all at meetings, and stored with checkpoints.

use super::{PlannedShare, Step, local_rows};
use crate::audit::ConsumedRows;
use crate::known_bugs;
use crate::split::Share;
use crate::step_report::StepReport;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use thalweg_core::JobSpec;
use thalweg_data::{Rows, Sampler, even_range};

/// Rows of one local step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The step of the job that it is a piece of.
    pub step: u64,
    pub epoch: u64,
    /// The number of rows of that step.
    pub of_step: usize,
    pub rows: Vec<u64>,
}

impl Piece {
    /// To be computed, as the sum of its gradients over this divisor.
    pub(crate) fn plan(&self, divisor: f32) -> PlannedShare<'_> {
        PlannedShare {
            step: Step { number: self.step, epoch: self.epoch, index: 0 },
            divisor,
            of_step: self.of_step,
            rows: &self.rows,
            share: Share { rows: 0..self.rows.len(), leaves: 0..0 },
            leaves: None,
            slots: 1,
            held: 1,
        }
    }
}

/// Rows that one worker is to compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// No other lease has it.
    pub number: u64,
    pub pieces: Vec<Piece>,
}

impl Lease {
    /// The part of their steps that its rows are.
    pub fn share(&self) -> f32 {
        let share = |piece: &Piece| piece.rows.len() as f32 / piece.of_step.max(1) as f32;
        self.pieces.iter().map(share).sum()
    }

    #[cfg(test)]
    fn rows(&self) -> impl Iterator<Item = u64> + '_ {
        self.pieces.iter().flat_map(|piece| piece.rows.iter().copied())
    }
}

/// A worker: its member id, and the generation in which it became a member, as ids are used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Worker {
    pub member: usize,
    pub since: u32,
}

/// A lease that had its effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// Of the worker.
    pub member: usize,
    pub rows: u64,
    pub report: StepReport,
}

/// Rows of an epoch and of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    total: u64,
    batch: u64,
}

impl Sizes {
    /// The step that the job is at after so many rows.
    pub fn step_at(self, rows: u64) -> u64 {
        local_rows::step_at(rows, (self.total, self.batch))
    }

    /// The rows after which the job is at that step.
    pub fn rows_at(self, step: u64) -> u64 {
        local_rows::rows_at(step, (self.total, self.batch))
    }
}

/// The rows of an epoch that are still to be computed, and those that are being computed.
pub struct Pool {
    sampler: Sampler,
    sizes: Sizes,
    /// Pieces of a step, and of a lease.
    pieces: usize,
    per_lease: usize,
    /// The epoch of the table.
    epoch: Option<u64>,
    /// The next step to be cut, counted in the epoch, and the one after the last.
    next_step: u64,
    end_step: u64,
    /// Steps of an epoch after which it ends; the rows of the others are dropped.
    steps_computed: u64,
    /// Pieces to hand out, of steps that were cut.
    ready: VecDeque<Piece>,
    /// Those of leases that came back.
    returned: VecDeque<Vec<Piece>>,
    out: BTreeMap<u64, (Worker, Lease)>,
    number: u64,
    /// Rows of the epoch that have been applied, or were before the table was made.
    applied: ConsumedRows,
    /// Their number.
    count: u64,
    finished: Vec<Finished>,
    /// On another server than the first: rows of the epoch that were pushed again after they had been applied.
    mixed: ConsumedRows,
}

impl Pool {
    /// Of leases that have so many pieces.
    pub(crate) fn new(job: &JobSpec, training: &Rows, per_lease: usize) -> Pool {
        let sampler = Sampler::new(training, job.train.seed, job.train.global_batch);
        let steps = sampler.steps_per_epoch();
        let computed = (steps as f64 * job.scheduling.epoch_fraction).ceil() as u64;
        Pool {
            sampler,
            steps_computed: computed.clamp(1, steps.max(1)),
            sizes: Sizes { total: training.len().max(1), batch: job.train.global_batch.max(1) as u64 },
            pieces: job.engine.workers.max(1),
            per_lease: per_lease.max(1),
            epoch: None,
            next_step: 0,
            end_step: 0,
            ready: VecDeque::new(),
            returned: VecDeque::new(),
            out: BTreeMap::new(),
            number: 0,
            applied: ConsumedRows::new(training.source_len()),
            count: 0,
            finished: Vec::new(),
            mixed: ConsumedRows::new(training.source_len()),
        }
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The table, of the epoch that is in progress. On a server, whenever it may have changed: the rows of `done` are not
    /// computed again, and those of steps from `end` on, counted over the job, not at all.
    pub(crate) fn begin_epoch(&mut self, epoch: u64, end: u64, done: &ConsumedRows) {
        let steps = self.sampler.steps_per_epoch();
        self.end_step = end.saturating_sub(epoch * steps).min(self.steps_computed);
        if self.epoch == Some(epoch) {
            return;
        }
        self.epoch = Some(epoch);
        self.next_step = 0;
        self.ready.clear();
        self.returned.clear();
        self.out.clear();
        self.applied.clone_from(done);
        self.count = done.count();
        self.mixed.clear();
        // A checkpoint may be beyond the fraction.
        self.end_at_fraction();
    }

    /// The next lease for a worker; None if no row is left that is not being computed.
    pub(crate) fn hand_out(&mut self, worker: Worker) -> Option<Lease> {
        if let Some(lease) = self.hand_out_returned(worker) {
            return Some(lease);
        }
        while self.ready.len() < self.per_lease && self.next_step < self.end_step {
            self.cut_step();
        }
        let count = self.per_lease.min(self.ready.len());
        let pieces: Vec<Piece> = self.ready.drain(..count).collect();
        (!pieces.is_empty()).then(|| self.lend(worker, pieces))
    }

    /// The next lease that came back from a lost worker.
    pub(crate) fn hand_out_returned(&mut self, worker: Worker) -> Option<Lease> {
        let pieces = self.returned.pop_front()?;
        Some(self.lend(worker, pieces))
    }

    /// Whether leases have come back that were not handed out again.
    pub(crate) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    fn lend(&mut self, worker: Worker, pieces: Vec<Piece>) -> Lease {
        self.number += 1;
        let lease = Lease { number: self.number, pieces };
        self.out.insert(self.number, (worker, lease.clone()));
        lease
    }

    /// The next step in one piece, without the rows that were computed before or dropped; None if no step is left.
    pub(crate) fn next_step(&mut self) -> Option<Piece> {
        while self.ready.is_empty() && self.next_step < self.end_step {
            self.cut_step();
        }
        let mut step = self.ready.pop_front()?;
        while self.ready.front().is_some_and(|piece| piece.step == step.step) {
            step.rows.extend(self.ready.pop_front().into_iter().flat_map(|piece| piece.rows));
        }
        Some(step)
    }

    /// A policy leaves these rows out.
    pub(crate) fn drop_rows(&mut self, rows: &[u64]) {
        self.applied.drop_rows(rows);
        self.count = self.applied.count();
        self.end_at_fraction();
    }

    /// Cuts the next step into pieces, without the rows that were computed before the table was made.
    fn cut_step(&mut self) {
        let (epoch, index) = (self.epoch.unwrap_or(0), self.next_step);
        let step = epoch * self.sampler.steps_per_epoch() + index;
        let all = self.sampler.rows(epoch, index);
        let rows: Vec<u64> = all.iter().copied().filter(|row| !self.applied.contains(*row)).collect();
        for piece in 0..self.pieces {
            let rows = rows[even_range(rows.len(), piece, self.pieces)].to_vec();
            if !rows.is_empty() {
                self.ready.push_back(Piece { step, epoch, of_step: all.len(), rows });
            }
        }
        self.next_step += 1;
    }

    /// Whether this worker has that lease.
    pub(crate) fn has(&self, worker: Worker, number: u64) -> bool {
        self.out.get(&number).is_some_and(|(holder, _)| *holder == worker) || known_bugs::applies_repeats()
    }

    /// The effect of a lease is in the parameters now; `consumed` are the rows that arrived at the model. Returns their
    /// number; 0 if the worker has no such lease.
    pub(crate) fn commit(&mut self, worker: Worker, number: u64, consumed: &[u64]) -> u64 {
        if !self.has(worker, number) {
            return 0;
        }
        self.out.remove(&number);
        self.count(consumed);
        consumed.len() as u64
    }

    /// The effect of these rows is in the parameters now.
    pub(crate) fn count(&mut self, consumed: &[u64]) {
        self.applied.enter(consumed);
        self.count += consumed.len() as u64;
        self.end_at_fraction();
    }

    /// On another server than the first: whether these rows, which are those of one lease, have been applied. Then another
    /// server gets its part of them from a second computation.
    pub(crate) fn skips_repeated(&mut self, rows: &[u64]) -> bool {
        let is_repeated = rows.first().is_some_and(|row| self.applied.contains(*row));
        if is_repeated {
            self.mixed.enter(rows);
        }
        is_repeated
    }

    /// Rows of the epoch whose parts of the gradient come from two computations.
    pub(crate) fn mixed(&self) -> &ConsumedRows {
        &self.mixed
    }

    /// A policy leaves the rows of a lease out.
    pub(crate) fn drop_lease(&mut self, worker: Worker, number: u64) {
        if self.has(worker, number)
            && let Some((_, lease)) = self.out.remove(&number)
        {
            lease.pieces.iter().for_each(|piece| self.drop_rows(&piece.rows));
        }
    }

    /// Drops the rows of the steps that the epoch ends before, once all others are done.
    fn end_at_fraction(&mut self) {
        let steps = self.sampler.steps_per_epoch();
        if self.steps_computed == steps || self.count < self.sizes.rows_at(self.steps_computed) {
            return;
        }
        for index in self.steps_computed..steps {
            let rows = self.sampler.rows(self.epoch.unwrap_or(0), index);
            self.applied.drop_rows(rows);
        }
        self.count = self.applied.count();
    }

    /// These are the workers now: leases of others are handed out again, before new ones.
    pub(crate) fn keep(&mut self, workers: &[Worker]) {
        let gone: Vec<u64> = self
            .out
            .iter()
            .filter(|(_, (holder, _))| !workers.contains(holder))
            .map(|(number, _)| *number)
            .collect();
        for number in gone.into_iter().rev() {
            let Some((_, lease)) = self.out.remove(&number) else { continue };
            if known_bugs::loses_leases() {
                continue;
            }
            self.returned.push_front(lease.pieces);
        }
    }

    /// Whether no row is left to be handed out.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.ready.is_empty() && self.returned.is_empty() && self.next_step >= self.end_step
    }

    /// Rows of the epoch that were applied.
    pub(crate) fn applied(&self) -> &ConsumedRows {
        &self.applied
    }

    /// Rows that were applied since the job began. On a server.
    pub(crate) fn rows(&self) -> u64 {
        self.epoch.unwrap_or(0) * self.sizes.total + self.count
    }

    /// Notes a lease that had its effect.
    pub(crate) fn finish(&mut self, finished: Finished) {
        self.finished.push(finished);
    }

    /// The leases that had their effect since the last call.
    pub(crate) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// The rows of each piece of a lease that is out, with the number of rows of its step.
    #[cfg(test)]
    pub(crate) fn pieces(&self, number: u64) -> Vec<(Vec<u64>, usize)> {
        let (_, lease) = &self.out[&number];
        lease.pieces.iter().map(|piece| (piece.rows.clone(), piece.of_step)).collect()
    }

    /// The lease that a worker has.
    #[cfg(test)]
    pub(crate) fn lease_of(&self, worker: Worker) -> Option<Lease> {
        self.out.values().find(|(holder, _)| *holder == worker).map(|(_, lease)| lease.clone())
    }

    /// Rows that leases which are out will add.
    #[cfg(test)]
    fn rows_out(&self) -> usize {
        self.out.values().map(|(_, lease)| lease.rows().count()).sum()
    }
}

#[cfg(test)]
mod tests;
