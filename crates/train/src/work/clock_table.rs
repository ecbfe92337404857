//! Work by clocks: a clock is a step of the job, and the rows that a worker computes for it are a function of clock and
//! worker. Pure: it says who computes what next, and when a clock is closed.
//!
//! ```text
//! open     the rows of the next step, divided evenly among the workers, when the first of them begins it
//! share    ready -> out (a worker computes it) -> arrived
//! closed   in order, when as many shares have arrived as the policy asks for; those that are missing are dropped
//! ```
//!
//! The shares of a lost worker stay in the open clocks, under a number of their own: the next workers that ask compute
//! them first, and the bound of the policy holds for them as for those of a worker. So no clock is lost.

use super::pool::{Piece, Worker};
use crate::known_bugs;
use crate::scheduling::{Clocks, Decision, Policy};
use crate::step_report::StepReport;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use thalweg_data::even_range;

/// The share of a clock that a worker is to compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// No other task has it.
    pub number: u64,
    pub clock: u64,
    pub piece: Piece,
}

/// The rows of one clock.
pub struct OpenClock {
    /// The step that they are of.
    pub step: Piece,
    /// In the order of workers, without empty ones.
    pub shares: Vec<Share>,
}

pub struct Share {
    /// The member that it fell to, or the number of a lost one.
    owner: usize,
    pub rows: Vec<u64>,
    pub progress: ShareProgress,
}

pub enum ShareProgress {
    Ready,
    Out,
    /// As this task, if it is held for its clock.
    Arrived {
        worker: Worker,
        held: Option<u64>,
        report: StepReport,
        version: u64,
    },
}

/// What a worker does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextTask {
    Compute(Task),
    /// Others have to go on first.
    Wait,
    /// No clock is open, and none is to be opened.
    Meet,
}

/// Who computes what.
pub struct ClockTable {
    workers: Vec<Worker>,
    pub clocks: Clocks,
    /// The first of them is the clock `clocks.closed()`.
    open: VecDeque<OpenClock>,
    /// By worker: its task and the owner of the share.
    out: BTreeMap<Worker, (Task, usize)>,
    number: u64,
    lost: usize,
    /// One worker computes the steps before this one alone.
    warm_start: u64,
}

/// Owners from here on are lost workers.
const LOST: usize = usize::MAX / 2;

impl ClockTable {
    pub fn new(warm_start: u64) -> ClockTable {
        ClockTable {
            workers: Vec::new(),
            clocks: Clocks::default(),
            open: VecDeque::new(),
            out: BTreeMap::new(),
            number: 0,
            lost: LOST,
            warm_start,
        }
    }

    /// The next task of a worker that has none. `open` gives the rows of a further clock, if one may be opened.
    pub fn next(
        &mut self,
        worker: Worker,
        policy: &dyn Policy,
        mut open: impl FnMut() -> Option<Piece>,
    ) -> NextTask {
        if let Some((clock, owner)) = self.of_lost_worker() {
            return self.hand_out(worker, clock, owner);
        }
        let member = worker.member;
        // It was not waited for.
        self.clocks.set(member, self.clocks.of(member).max(self.clocks.closed()));
        loop {
            let clock = self.clocks.of(member);
            if matches!(policy.may_begin(&self.clocks, member), Decision::Wait(_)) {
                return NextTask::Wait;
            }
            let index = (clock - self.clocks.closed()) as usize;
            if index >= self.open.len() {
                if self.open.back().is_some_and(|last| last.step.step + 1 == self.warm_start) {
                    return NextTask::Wait;
                }
                match open() {
                    Some(step) => self.open(step),
                    None if self.open.is_empty() => return NextTask::Meet,
                    None => return NextTask::Wait,
                }
            }
            if self.share(clock, member).is_some() {
                return self.hand_out(worker, clock, member);
            }
            // There are fewer rows than workers.
            self.clocks.complete(member);
        }
    }

    /// The first clock with a share of a lost worker that nobody computes.
    fn of_lost_worker(&mut self) -> Option<(u64, usize)> {
        let closed = self.clocks.closed();
        let is_ready = |share: &&Share| share.owner >= LOST && matches!(share.progress, ShareProgress::Ready);
        let find = |(index, clock): (usize, &OpenClock)| {
            Some((closed + index as u64, clock.shares.iter().find(is_ready)?.owner))
        };
        self.open.iter().enumerate().find_map(find)
    }

    fn open(&mut self, step: Piece) {
        let count = if step.step < self.warm_start { 1 } else { self.workers.len() };
        let rows = |index| match index < count {
            true => step.rows[even_range(step.rows.len(), index, count)].to_vec(),
            false => Vec::new(),
        };
        let shares = self.workers.iter().enumerate().map(|(index, worker)| Share {
            owner: worker.member,
            rows: rows(index),
            progress: ShareProgress::Ready,
        });
        let shares = shares.filter(|share| !share.rows.is_empty()).collect();
        self.open.push_back(OpenClock { step, shares });
    }

    fn share(&mut self, clock: u64, owner: usize) -> Option<&mut Share> {
        let index = clock.checked_sub(self.clocks.closed())?;
        let clock = self.open.get_mut(index as usize)?;
        clock.shares.iter_mut().find(|share| share.owner == owner)
    }

    fn hand_out(&mut self, worker: Worker, clock: u64, owner: usize) -> NextTask {
        let index = (clock - self.clocks.closed()) as usize;
        let mut piece = self.open[index].step.clone();
        self.number += 1;
        let number = self.number;
        if let Some(share) = self.share(clock, owner) {
            piece.rows.clone_from(&share.rows);
            share.progress = ShareProgress::Out;
        }
        let task = Task { number, clock, piece };
        self.out.insert(worker, (task.clone(), owner));
        NextTask::Compute(task)
    }

    /// The task that a worker has, and for whom.
    pub fn task(&self, worker: Worker) -> Option<&(Task, usize)> {
        self.out.get(&worker)
    }

    /// The workers that compute.
    pub fn computing(&self) -> impl Iterator<Item = Worker> + '_ {
        self.out.keys().copied()
    }

    /// The update of a worker's task has arrived. A clock that is closed already has no use for it.
    pub fn arrive(&mut self, worker: Worker, arrived: ShareProgress) {
        let Some((task, owner)) = self.out.remove(&worker) else { return };
        if let Some(share) = self.share(task.clock, owner) {
            share.progress = arrived;
        }
        self.advance(owner);
    }

    /// The tasks of the clock that was closed last which workers still compute.
    pub fn late(&self) -> impl Iterator<Item = (Worker, u64)> + '_ {
        let is_late = |task: &Task| task.clock + 1 == self.clocks.closed();
        self.out
            .iter()
            .filter(move |(_, (task, _))| is_late(task))
            .map(|(worker, (task, _))| (*worker, task.number))
    }

    /// A worker leaves its task, whose clock is closed; false if it has no such task.
    pub fn abandon(&mut self, worker: Worker, number: u64) -> bool {
        let is_late = |(task, _): &(Task, usize)| task.number == number && task.clock < self.clocks.closed();
        let Some((_, owner)) = self.out.get(&worker).filter(|task| is_late(task)).cloned() else {
            return false;
        };
        self.out.remove(&worker);
        self.advance(owner);
        true
    }

    /// Completes the clocks of this owner whose shares have arrived.
    fn advance(&mut self, owner: usize) {
        loop {
            let clock = self.clocks.of(owner).max(self.clocks.closed());
            self.clocks.set(owner, clock);
            let is_open = clock - self.clocks.closed() < self.open.len() as u64;
            match self.share(clock, owner) {
                Some(share) if matches!(share.progress, ShareProgress::Arrived { .. }) => {
                    self.clocks.complete(owner);
                }
                // Its rows were fewer than workers.
                None if is_open && owner >= LOST => self.clocks.set(owner, clock + 1),
                None if owner >= LOST => return self.clocks.remove(owner),
                _ => return,
            }
        }
    }

    /// Closes the first open clock, if as many updates have arrived as the policy asks for.
    pub fn close(&mut self, policy: &dyn Policy) -> Option<OpenClock> {
        let first = self.open.front()?;
        let arrived = |share: &&Share| matches!(share.progress, ShareProgress::Arrived { .. });
        let count = first.shares.iter().filter(arrived).count();
        if !policy.suffices(count, first.shares.len()) {
            return None;
        }
        self.clocks.close();
        let closed = self.open.pop_front();
        let lost: Vec<usize> = self.clocks.workers().filter(|owner| *owner >= LOST).collect();
        lost.into_iter().for_each(|owner| self.advance(owner));
        closed
    }

    /// The updates of a worker, by clock, that are held: the step and the task.
    pub fn held(&self, worker: Worker) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.open.iter().flat_map(move |clock| {
            clock.shares.iter().filter_map(move |share| match &share.progress {
                ShareProgress::Arrived { worker: by, held: Some(task), .. } if *by == worker => {
                    Some((clock.step.step, *task))
                }
                _ => None,
            })
        })
    }

    /// The workers are these now. What lost ones were computing is computed by others; new ones begin with the first clock
    /// that is not open.
    pub fn set_workers(&mut self, workers: &[Worker]) {
        let gone: Vec<Worker> = self.workers.iter().copied().filter(|old| !workers.contains(old)).collect();
        for worker in gone {
            if let Some((task, owner)) = self.out.remove(&worker)
                && let Some(share) = self.share(task.clock, owner)
                && !known_bugs::loses_leases()
            {
                share.progress = ShareProgress::Ready;
            }
            let completed = self.clocks.of(worker.member).max(self.clocks.closed());
            self.clocks.remove(worker.member);
            self.lost += 1;
            let number = self.lost;
            let shares = self.open.iter_mut().flat_map(|clock| clock.shares.iter_mut());
            shares.filter(|share| share.owner == worker.member).for_each(|share| share.owner = number);
            self.clocks.set(number, completed);
            self.advance(number);
        }
        let next = self.clocks.closed() + self.open.len() as u64;
        for worker in workers.iter().filter(|worker| !self.workers.contains(worker)) {
            self.clocks.set(worker.member, next);
        }
        self.workers = workers.to_vec();
    }
}

#[cfg(test)]
mod tests;
