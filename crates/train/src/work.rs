//! Work in shares: which rows this rank computes next, and which rows count.
//!
//! The rows of a step are a function of (seed, epoch, step, global batch); the workers divide them (`split.rs`). They
//! count when their commit unit does. A unit of several steps may end early on some ranks: the rows of its later steps that
//! were computed count, and only the others are left. Workers at their own speed have rows of their own: `local_rows.rs`.

pub mod clock_table;
pub(crate) mod evaluations;
pub mod local_rows;
pub(crate) mod merge_interval;
mod planned_share;
pub mod pool;
mod sample;
pub(crate) mod walk;

pub(crate) use planned_share::PlannedShare;

use crate::audit::ConsumedRows;
use crate::leaves::Leaves;
use crate::split::{Share, Split};
use crate::step_report::{RowChecksum, StepSummary};
use evaluations::Evaluations;
use planned_share::partial_sums;
use sample::Sample;
use std::ops::Range;
use thalweg_cluster::{PartialSums, ReductionTree};
use thalweg_core::report::Audit;
use thalweg_core::{Error, JobSpec, Result};
use thalweg_data::{Rows, Sampler};

/// One step of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Counted from 0 over the whole job.
    pub number: u64,
    /// Counted from 0.
    pub epoch: u64,
    /// Counted from 0 within the epoch.
    pub index: u64,
}

/// The rows of the job's steps, divided among the workers.
pub struct Shares {
    sampler: Sampler,
    sample: Sample,
    split: Split,
    /// Rows of the current epoch that count, as far as all ranks know.
    consumed: ConsumedRows,
    /// Those that this rank has computed since, if units do not prove the rows of all.
    own: ConsumedRows,
    /// This rank's index among the workers; None on a server.
    worker: Option<usize>,
    /// The rank of each worker.
    ranks: Vec<usize>,
    /// Steps committed: every row of theirs counts.
    next: u64,
    /// The step after which the job ends.
    end: u64,
    /// A checkpoint is due after so many steps; 0: never.
    checkpoint_every: u64,
    evaluations: Evaluations,
    /// Rows of later steps that count already, as units ended early on some ranks; None if there are none. All ranks have
    /// the same: they divide the other rows.
    ahead: Option<ConsumedRows>,
    /// Rows of the step requested last that do not count yet.
    rows: Vec<u64>,
    /// The number of its rows, those included that count.
    of_step: usize,
}

/// What a committed unit amounts to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    pub rows: u64,
    /// By worker.
    pub by_worker: Vec<u64>,
}

impl Shares {
    /// After `next` steps, with these rows of the epoch consumed by all ranks.
    pub fn new(job: &JobSpec, training: &Rows, next: u64, consumed: &[u8]) -> Result<Shares> {
        let sampler = Sampler::new(training, job.train.seed, job.train.global_batch);
        let mut rows = ConsumedRows::new(training.source_len());
        if !consumed.is_empty() {
            rows.absorb(consumed)?;
        }
        let ahead = (!consumed.is_empty()).then(|| rows.clone());
        let all = job.train.epochs.saturating_mul(sampler.steps_per_epoch());
        let end = job.train.max_steps.map_or(all, |most| most.min(all));
        let split = Split::new(job, 0, &[]);
        let own = ConsumedRows::like(&rows);
        Ok(Shares {
            sampler,
            sample: Sample::new(job),
            split,
            consumed: rows,
            own,
            worker: None,
            ranks: Vec::new(),
            next,
            end,
            checkpoint_every: job.fault.checkpoint_every,
            evaluations: Evaluations::new(job, training.len()),
            ahead,
            rows: Vec::new(),
            of_step: 0,
        })
    }

    /// Divides rows anew among the workers, which have these ranks. This rank is one of them or serves.
    pub(crate) fn divide(&mut self, rank: usize, ranks: Vec<usize>, split: Split) {
        self.worker = ranks.iter().position(|worker| *worker == rank);
        (self.ranks, self.split) = (ranks, split);
    }

    /// Continues after that step, with these rows of its epoch consumed by all ranks.
    pub fn restore(&mut self, next: u64, consumed: &[u8]) -> Result<()> {
        self.consumed.clear();
        self.consumed.absorb(consumed)?;
        self.own.clear();
        (self.next, self.ahead) = (next, Some(self.consumed.clone()));
        Ok(())
    }

    /// Workers at their own speed have agreed that so many steps are done.
    pub(crate) fn advance_to(&mut self, next: u64) {
        self.next = next;
    }

    /// The step at which workers at their own speed meet next: the end of the epoch or of the job, the next checkpoint or
    /// the next evaluation.
    pub(crate) fn next_boundary(&self) -> u64 {
        let every = self.checkpoint_every;
        let checkpoint = self.next.checked_div(every).map_or(u64::MAX, |passed| (passed + 1) * every);
        self.next_end().min(checkpoint).min(self.evaluations.next(self.next)).max(self.next)
    }

    /// The end of the epoch or of the job.
    pub(crate) fn next_end(&self) -> u64 {
        self.next + self.steps_left(self.next)
    }

    /// Whether something follows the step that ends after `next` steps: the end of the epoch or of the job, a checkpoint, an
    /// evaluation.
    pub(crate) fn is_boundary(&self, next: u64) -> bool {
        let before = next.saturating_sub(1);
        next.is_multiple_of(self.steps_per_epoch())
            || next >= self.end
            || self.checkpoint_is_due(before, next)
            || self.evaluations.are_due(before, next)
    }

    /// Whether a checkpoint is due after `next` steps, if a unit began after `before` steps.
    pub(crate) fn checkpoint_is_due(&self, before: u64, next: u64) -> bool {
        self.checkpoint_every > 0 && before / self.checkpoint_every != next / self.checkpoint_every
    }

    /// When the published model is evaluated between the ends of epochs.
    pub(crate) fn evaluations(&self) -> Evaluations {
        self.evaluations
    }

    /// Counts the rows of the epoch's steps so far, so that work in shares can go on from a checkpoint of local rows.
    pub(crate) fn count_earlier_steps(&mut self) {
        self.consumed.clear();
        let Step { epoch, index, .. } = self.step(self.next);
        for index in 0..index {
            self.consumed.enter(self.sampler.rows(epoch, index));
        }
    }

    pub fn steps_per_epoch(&self) -> u64 {
        self.sampler.steps_per_epoch()
    }

    /// Steps committed.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The step after which the job ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The job ends after that step, if not earlier.
    pub fn end_after(&mut self, step: u64) {
        self.end = self.end.min(step);
    }

    pub fn is_done(&self) -> bool {
        self.next >= self.end
    }

    pub fn step(&self, number: u64) -> Step {
        let steps = self.steps_per_epoch();
        Step { number, epoch: number / steps, index: number % steps }
    }

    /// Steps from `from` to the end of its epoch or of the job.
    pub fn steps_left(&self, from: u64) -> u64 {
        let epoch_end = (from / self.steps_per_epoch() + 1) * self.steps_per_epoch();
        epoch_end.min(self.end).saturating_sub(from)
    }

    pub fn workers(&self) -> usize {
        self.split.workers()
    }

    /// The rank of each worker.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    pub(crate) fn leaves(&self) -> Option<Leaves> {
        self.split.leaves()
    }

    /// The order of the sum over the leaves of the step planned last, if it has leaves.
    pub(crate) fn tree(&self) -> Option<&ReductionTree> {
        self.split.tree()
    }

    /// The layout of a rank's partial sums: gradients of `parameters` elements with `tail` elements behind them.
    pub(crate) fn partial_sums(&self, parameters: usize, tail: usize) -> PartialSums {
        partial_sums(self.leaves(), self.split.slots(), parameters, tail)
    }

    /// All rows of a step that do not count yet.
    pub fn rows(&mut self, step: u64) -> &[u64] {
        let Step { epoch, index, .. } = self.step(step);
        let rows = self.sample.of(step, self.sampler.rows(epoch, index)).0;
        self.rows.clear();
        self.of_step = rows.len();
        match &self.ahead {
            Some(ahead) => self.rows.extend(rows.iter().filter(|row| !ahead.contains(**row))),
            None => self.rows.extend_from_slice(rows),
        }
        &self.rows
    }

    /// The order of the sum over the leaves of a step, if it has leaves.
    pub(crate) fn tree_of(&mut self, step: u64) -> Option<ReductionTree> {
        self.leaves()?;
        let count = self.rows(step).len();
        self.split.share(count, 0);
        self.tree().cloned()
    }

    /// The rows of a step and the share of this rank.
    pub(crate) fn plan(&mut self, step: u64) -> PlannedShare<'_> {
        let count = self.rows(step).len();
        let share = self.worker.map_or(Share::default(), |worker| self.split.share(count, worker));
        PlannedShare {
            step: self.step(step),
            rows: &self.rows,
            of_step: self.of_step,
            share,
            leaves: self.split.leaves(),
            slots: self.split.slots(),
            held: self.worker.map_or(0, |worker| self.split.held(worker)),
            divisor: count.max(1) as f32,
        }
    }

    /// A unit counts. With `proof` the rows of all ranks do, which the checksum must confirm; else those of `own`, the
    /// rows that this rank has computed.
    pub fn commit(&mut self, summary: &StepSummary, proof: Proof<'_>) -> Result<Committed> {
        let of_rank = |rank: &usize| summary.steps.get(*rank).copied().unwrap_or(0);
        let workers: Vec<u64> = self.ranks.iter().map(of_rank).collect();
        let most = workers.iter().copied().max().unwrap_or(0);
        let least = workers.iter().copied().min().unwrap_or(0);
        if least == 0 {
            return Err(Error::internal("a unit without a step on some rank"));
        }
        let first = self.next;
        let mut committed = Committed { rows: 0, by_worker: vec![0; workers.len()] };
        let mut done = Vec::new();
        for step in 0..most {
            let rows = self.rows(self.next + step).len();
            for (worker, _) in workers.iter().enumerate().filter(|(_, steps)| **steps > step) {
                let Range { start, end } = self.split.share(rows, worker).rows;
                committed.by_worker[worker] += (end - start) as u64;
                done.extend_from_slice(&self.rows[start..end]);
            }
        }
        committed.rows = done.len() as u64;
        match proof {
            Proof::Checksum if summary.rows != RowChecksum::of(&done) => {
                let step = self.next;
                return Err(Error::internal(format!(
                    "the exchange of step {step} was not made of the rows of that step"
                )));
            }
            Proof::Checksum => self.consumed.enter(&done),
            Proof::Own(rows) => self.own.enter(rows),
        }
        let of_rank = |rank: &usize| summary.compute_ms.get(*rank).copied().unwrap_or(0.0);
        let times: Vec<f32> = self.ranks.iter().map(of_rank).collect();
        self.split.observe(&times);
        if most > least {
            let empty = || ConsumedRows::like(&self.consumed);
            self.ahead.get_or_insert_with(empty).enter(&done);
        }
        if !self.sample.is_all() {
            for step in first..first + least {
                let Step { epoch, index, .. } = self.step(step);
                let left_out = self.sample.of(step, self.sampler.rows(epoch, index)).1;
                self.consumed.drop_rows(left_out);
            }
        }
        self.next += least;
        if let Proof::Checksum = proof {
            // Ranks without rows in them do not hold back steps that are complete.
            while least < most && self.next < first + most && self.rows(self.next).is_empty() {
                self.next += 1;
            }
        }
        Ok(committed)
    }

    /// Rows of the current epoch that count, as far as all ranks know.
    pub fn consumed(&self) -> &ConsumedRows {
        &self.consumed
    }

    /// Rows that only this rank knows of.
    pub fn own(&self) -> &ConsumedRows {
        &self.own
    }

    /// Takes over the rows that only single ranks knew of, this one included.
    pub fn collect(&mut self, own: &[Vec<u8>]) -> Result<()> {
        self.own.clear();
        own.iter().try_for_each(|rows| self.consumed.absorb(rows))
    }

    /// These rows of the epoch count, as all ranks know.
    pub(crate) fn count(&mut self, consumed: &[u8]) -> Result<()> {
        self.consumed.clear();
        self.own.clear();
        self.consumed.absorb(consumed)
    }

    /// An epoch is closed: no row of the next one counts yet.
    pub fn begin_epoch(&mut self) {
        self.consumed.clear();
        self.own.clear();
        self.ahead = None;
    }

    /// The audit of an epoch: the rows consumed against all training rows or, of an unfinished epoch, those of its steps
    /// so far and of the steps that are partly done.
    pub fn audit(&mut self, training: &Rows, epoch: u64) -> Audit {
        let mut expected = ConsumedRows::new(training.source_len());
        let steps = self.steps_per_epoch();
        if self.next >= (epoch + 1) * steps {
            training.ids().for_each(|id| expected.enter(&[id]));
        } else {
            for index in 0..steps {
                let ahead = epoch * steps + index >= self.next;
                let counts = |row: &&u64| !ahead || self.consumed.contains(**row);
                let rows = self.sampler.rows(epoch, index).iter().filter(counts);
                rows.for_each(|row| expected.enter(&[*row]));
            }
        }
        self.consumed.close(epoch, &expected)
    }
}

/// How the rows of a unit are known.
#[derive(Clone, Copy, Debug)]
pub enum Proof<'a> {
    /// A checksum of all ranks' rows was summed with the exchange that the unit commits with.
    Checksum,
    /// This rank knows its own.
    Own(&'a [u64]),
}

#[cfg(test)]
mod tests;
