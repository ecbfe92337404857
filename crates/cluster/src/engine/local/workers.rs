//! The launcher's worker processes: starting them, noticing their exit, replacing them, and choosing the coordinator
//! among them.

use super::Launcher;
use crate::diagnosis::Evidence;
use crate::engine::process::{WorkerProcess, describe, is_fine, spawn};
use crate::launcher_connection::LauncherCommand;
use crate::linux;
use std::collections::BTreeSet;
use thalweg_core::Result;
use thalweg_core::event::Phase;
use thalweg_core::spec::inject::{FaultKind, InjectedFault};

/// Replacements of one rank that may exit in a row before they join the group.
const MAX_FAILED_STARTS: usize = 3;

impl Launcher<'_> {
    pub(super) fn start_worker(&mut self, rank: usize, joins: bool, fault: Option<FaultKind>) -> Result<()> {
        self.left_ranks.remove(&rank);
        let mut worker = spawn(self.plan, &self.program, rank, self.workers.len(), joins, &self.sender)?;
        self.monitor.expect(rank, self.start.elapsed(), Phase::Starting);
        self.diagnosis.set_location(rank, format!("{} (pid {})", linux::host_name(), worker.child.id()));
        if let Some(kind) = fault {
            worker.send(&LauncherCommand::Inject(InjectedFault { step: 0, rank, kind }));
        }
        if let (true, Some(address)) = (joins, &self.coordinator_address) {
            worker.send(&LauncherCommand::Coordinator(address.clone()));
        }
        self.workers.push(worker);
        Ok(())
    }

    /// Starts a worker for a running job, which continues without it if that fails.
    pub(super) fn start_replacement(&mut self, rank: usize, fault: Option<FaultKind>) {
        if let Err(error) = self.start_worker(rank, true, fault) {
            self.warnings.push(format!("{}; the others go on without it", error.message));
        }
    }

    /// Notices workers that have exited, each only after all its records were read.
    pub(super) fn reap(&mut self) {
        let now = self.start.elapsed();
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            if worker.status.is_some() || !worker.closed {
                continue;
            }
            let Ok(Some(status)) = worker.child.try_wait() else { continue };
            worker.status = Some(status);
            self.monitor.remove(worker.rank);
            if is_fine(status) || worker.explained {
                // A worker that joined later may have become the coordinator before it failed.
                if self.workers[index].lost && self.coordinator == Some(index) {
                    self.choose_coordinator();
                }
                continue;
            }
            let (rank, how, heartbeat) = (worker.rank, describe(status), worker.last.clone());
            if self.plan.elastic && self.workers.iter().any(WorkerProcess::keeps_job_alive) {
                self.workers[index].cause.get_or_insert(how);
                self.continue_without(index);
            } else {
                let how = self.workers[index].cause.take().unwrap_or(how);
                self.diagnosis.add(now, Evidence::Exited { rank, how, heartbeat });
            }
        }
    }

    /// Continues the job without this worker, and starts a replacement if the job asks for it.
    fn continue_without(&mut self, index: usize) {
        let rank = self.workers[index].rank;
        self.workers[index].lost = true;
        if self.coordinator == Some(index) {
            self.choose_coordinator();
        } else if let Some(coordinator) = self.coordinator {
            self.workers[coordinator].send(&LauncherCommand::RankExited(rank));
        }
        if self.plan.respawn && self.interrupted.is_none() {
            self.replace(rank);
        }
    }

    /// Starts a replacement of a lost rank, unless several exited before they joined.
    fn replace(&mut self, rank: usize) {
        let earlier = self.workers.iter().rev().filter(|worker| worker.rank == rank);
        let mut failed = earlier.take_while(|worker| worker.has_not_joined()).peekable();
        let cause = failed.peek().and_then(|worker| worker.cause.clone()).unwrap_or_default();
        match failed.count() {
            MAX_FAILED_STARTS.. => self.warnings.push(format!(
                "no replacement of rank {rank}: the last of {MAX_FAILED_STARTS} {cause} before it joined; the others go on"
            )),
            _ => self.start_replacement(rank, None),
        }
    }

    /// Gives the coordinator's role to the lowest rank that has joined, or if none has, to the lowest rank alive.
    pub(super) fn choose_coordinator(&mut self) {
        let has_joined = |worker: &WorkerProcess| worker.last.phase != Phase::Starting;
        let stays = |worker: &WorkerProcess| worker.is_alive() && !self.left_ranks.contains(&worker.rank);
        let present = || self.workers.iter().enumerate().filter(|(_, worker)| stays(worker));
        let next = present().filter(|(_, worker)| has_joined(worker)).min_by_key(|(_, worker)| worker.rank);
        let next = next.or_else(|| present().min_by_key(|(_, worker)| worker.rank)).map(|(index, _)| index);
        self.coordinator = next;
        if let Some(next) = next {
            let living: BTreeSet<usize> = present().map(|(_, worker)| worker.rank).collect();
            let exited = |rank: &usize| !living.contains(rank) && !self.left_ranks.contains(rank);
            let exited = self.workers.iter().map(|worker| worker.rank).filter(exited).collect();
            let command = LauncherCommand::TakeCoordinatorRole {
                exited,
                left: self.left_ranks.iter().copied().collect(),
            };
            self.workers[next].send(&command);
        }
    }
}
