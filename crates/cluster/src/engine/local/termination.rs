//! Kills workers: one that holds up the others, and all that are left at the end.

use super::Launcher;
use crate::diagnosis::Evidence;
use crate::interruption::{self, STOP_LIMIT};
use crate::linux;
use std::time::{Duration, Instant};

/// Time for a killed process to exit (one in uninterruptible I/O may never).
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The same after a requested stop, on top of [`STOP_LIMIT`].
const EXIT_TIMEOUT_STOPPING: Duration = Duration::from_secs(4);

impl Launcher<'_> {
    /// The warning of a stop that exceeded [`STOP_LIMIT`].
    pub(super) fn unfinished_stop(&self) -> Option<String> {
        self.interrupted.filter(|(_, when)| when.elapsed() > STOP_LIMIT)?;
        let straggler = self.monitor.straggler(self.start.elapsed());
        let held_up = straggler
            .map(|straggler| (straggler.alone.then(|| self.diagnosis.name(straggler.rank)), straggler));
        Some(interruption::unfinished_stop(held_up, self.last_checkpoint))
    }

    /// Handles evidence of the monitor. A silent or stuck worker of an elastic job is killed, if others remain.
    pub(super) fn on_evidence(&mut self, now: Duration, evidence: Evidence) {
        let (Evidence::Silent { rank, .. } | Evidence::Stuck { rank, .. }) = &evidence else {
            return self.diagnosis.add(now, evidence);
        };
        let others = self.workers.iter().any(|worker| worker.is_in_group() && worker.rank != *rank);
        let is_here = self.workers.iter().any(|worker| worker.is_alive() && worker.rank == *rank);
        if self.plan.elastic && others && is_here {
            let culprit = self.diagnosis.explain(&evidence).culprit;
            self.kill(*rank, &culprit.map_or_else(String::new, |culprit| culprit.cause));
        } else {
            self.diagnosis.add(now, evidence);
        }
    }

    /// Kills the worker of this rank, if it is one of this launcher's.
    pub(super) fn kill(&mut self, rank: usize, cause: &str) {
        self.monitor.remove(rank);
        if let Some(worker) = self.workers.iter_mut().find(|worker| worker.is_alive() && worker.rank == rank)
        {
            worker.cause = Some(cause.into());
            linux::kill_group(worker.child.id());
        }
    }

    /// Kills all workers that are left and waits for their exit.
    pub(super) fn kill_all(&mut self) {
        for worker in self.workers.iter_mut().filter(|worker| worker.status.is_none()) {
            linux::kill_group(worker.child.id());
        }
        let end =
            Instant::now() + if self.interrupted.is_some() { EXIT_TIMEOUT_STOPPING } else { EXIT_TIMEOUT };
        for worker in &mut self.workers {
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
