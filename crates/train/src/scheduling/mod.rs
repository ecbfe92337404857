//! Scheduling: when a worker may begin its next clock, and what becomes of its update. Pure decisions: no input or
//! output, no time of their own. Real runs, simulated ones and tests ask the same objects.
//!
//! A clock is a unit of work between two exchanges with the server. The part that owns the clocks asks for every update;
//! total asynchrony needs nothing to be asked, as every answer is the same.

mod age_limit;
mod asynchronous;
mod bulk_synchronous;
mod eager_stale_synchronous;
mod quorum;
mod stale_synchronous;

pub use age_limit::AgeLimit;
pub use asynchronous::Asynchronous;
pub use bulk_synchronous::BulkSynchronous;
pub use eager_stale_synchronous::EagerStaleSynchronous;
pub use quorum::Quorum;
pub use stale_synchronous::StaleSynchronous;

use std::collections::BTreeMap;
use thalweg_core::JobSpec;
use thalweg_core::spec::scheduling::Apply;
use thalweg_core::spec::strategy::Scheduling;

/// Clocks that the workers have completed, by member id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    completed: BTreeMap<usize, u64>,
    /// Clocks that are closed: no update for them is awaited any more.
    closed: u64,
}

impl Clocks {
    /// Of these workers, all of which have completed as many clocks.
    pub fn at(completed: u64, workers: impl IntoIterator<Item = usize>) -> Clocks {
        Clocks {
            completed: workers.into_iter().map(|worker| (worker, completed)).collect(),
            closed: completed,
        }
    }

    /// The worker has completed one more.
    pub fn complete(&mut self, worker: usize) {
        *self.completed.entry(worker).or_default() += 1;
    }

    /// Clocks that this worker has completed.
    pub fn of(&self, worker: usize) -> u64 {
        self.completed.get(&worker).copied().unwrap_or(0)
    }

    /// The worker has completed so many clocks, or leaves out those that it has not.
    pub fn set(&mut self, worker: usize, completed: u64) {
        self.completed.insert(worker, completed);
    }

    /// Without this worker.
    pub fn remove(&mut self, worker: usize) {
        self.completed.remove(&worker);
    }

    /// One more clock is closed.
    pub fn close(&mut self) {
        self.closed += 1;
    }

    /// Clocks that are closed.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// Clocks that some worker has completed.
    pub fn fastest(&self) -> u64 {
        self.completed.values().copied().max().unwrap_or(0)
    }

    /// The workers that have completed fewer than `clocks`.
    pub fn behind(&self, clocks: u64) -> impl Iterator<Item = usize> + '_ {
        self.completed.iter().filter(move |(_, completed)| **completed < clocks).map(|(worker, _)| *worker)
    }

    pub fn workers(&self) -> impl Iterator<Item = usize> + '_ {
        self.completed.keys().copied()
    }
}

/// Whether a worker may begin its next clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Go,
    /// Not before these workers have completed the clock.
    Wait(Vec<usize>),
}

/// What becomes of an update that a worker has pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is applied at once.
    Apply,
    /// It is held until all updates of its clock are there, and applied with them.
    Hold,
    /// It is too late.
    Drop,
}

/// A kind of scheduling.
pub trait Policy: Send {
    /// May this worker begin its next clock?
    fn may_begin(&self, clocks: &Clocks, worker: usize) -> Decision;

    /// What becomes of the update of the clock that this worker is about to complete?
    fn admit(&self, clocks: &Clocks, worker: usize) -> Admission;

    /// What a worker reads for this clock holds all updates of the clocks below the one returned, and its own.
    fn reads(&self, clock: u64) -> u64 {
        clock
    }

    /// Whether a clock is closed with this many of its updates.
    fn suffices(&self, arrived: usize, of: usize) -> bool {
        arrived == of
    }

    /// Whether a worker is told that the clock is closed which it computes: it abandons its gradient.
    fn tells_late_workers(&self) -> bool {
        false
    }

    /// Whether workers that compute are sent the parameters of each clock that all have completed.
    fn sends_ahead(&self) -> bool {
        false
    }
}

/// The policy of a job.
pub fn policy(job: &JobSpec) -> Box<dyn Policy> {
    let kind = job.scheduling.kind;
    let stale = StaleSynchronous {
        staleness: job.scheduling.staleness,
        admission: match job.strategy.apply(kind) {
            Apply::PerClock => Admission::Hold,
            Apply::PerPush => Admission::Apply,
        },
    };
    match kind {
        Scheduling::Bsp => Box::new(BulkSynchronous),
        Scheduling::Async => Box::new(Asynchronous),
        Scheduling::Ssp => Box::new(stale),
        Scheduling::Essp => Box::new(EagerStaleSynchronous(stale)),
        Scheduling::Quorum => Box::new(Quorum {
            backups: job.scheduling.backups(job.engine.workers),
            late: job.scheduling.late,
        }),
    }
}

#[cfg(test)]
mod tests;
