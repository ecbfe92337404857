//! Scheduling: when a worker may begin its next clock, and what becomes of its update. Pure decisions: no input or
//! output, no time of their own. Real runs, simulated ones and tests ask the same objects.
//!
//! A clock is a unit of work between two exchanges with the server. The part that owns the clocks asks for every update;
//! total asynchrony needs nothing to be asked, as every answer is the same.

mod asynchronous;
mod bulk_synchronous;

pub use asynchronous::Asynchronous;
pub use bulk_synchronous::BulkSynchronous;

use std::collections::BTreeMap;
use thalweg_core::spec::strategy;

/// Clocks that the workers have completed, by member id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    completed: BTreeMap<usize, u64>,
}

impl Clocks {
    /// Of these workers, all of which have completed as many clocks.
    pub fn at(completed: u64, workers: impl IntoIterator<Item = usize>) -> Clocks {
        Clocks { completed: workers.into_iter().map(|worker| (worker, completed)).collect() }
    }

    /// The worker has completed one more.
    pub fn complete(&mut self, worker: usize) {
        *self.completed.entry(worker).or_default() += 1;
    }

    /// Clocks that this worker has completed.
    pub fn of(&self, worker: usize) -> u64 {
        self.completed.get(&worker).copied().unwrap_or(0)
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
}

/// A kind of scheduling.
pub trait Policy: Send {
    /// May this worker begin its next clock?
    fn may_begin(&self, clocks: &Clocks, worker: usize) -> Decision;

    /// What becomes of the update of the clock that this worker is about to complete?
    fn admit(&self, clocks: &Clocks, worker: usize) -> Admission;
}

/// The policy of a kind of scheduling.
pub fn policy(kind: strategy::Scheduling) -> Box<dyn Policy> {
    match kind {
        strategy::Scheduling::Bsp => Box::new(BulkSynchronous),
        strategy::Scheduling::Async => Box::new(Asynchronous),
    }
}

#[cfg(test)]
mod tests;
