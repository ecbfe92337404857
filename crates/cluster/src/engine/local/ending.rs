//! How workers of this launcher are ended: one that holds up the others, and all of them at the end.

use super::Crew;
use crate::inquest::Evidence;
use crate::interruption::{self, STOP_LIMIT};
use crate::linux;
use std::time::{Duration, Instant};

/// How long the kernel may take to end a process that was killed (one that waits for a dead disk may take for ever).
const CONFIRM: Duration = Duration::from_secs(10);

/// The same when the job was asked to stop: it has [`STOP_LIMIT`] and this.
const CONFIRM_A_STOP: Duration = Duration::from_secs(4);

impl Crew<'_> {
    /// What is said of a stop that the workers did not get done with in time.
    pub(super) fn unfinished_stop(&self) -> Option<String> {
        self.interrupted.filter(|(_, when)| when.elapsed() > STOP_LIMIT)?;
        let laggard = self.watch.laggard(self.start.elapsed());
        let held_up = laggard.map(|laggard| (laggard.alone.then(|| self.inquest.who(laggard.rank)), laggard));
        Some(interruption::unfinished(held_up, self.saved))
    }

    /// A worker is silent, or holds up the others. Where those go on it is ended, so that it disturbs nobody any more.
    pub(super) fn judge(&mut self, now: Duration, evidence: Evidence) {
        let (Evidence::Silent { rank, .. } | Evidence::Stuck { rank, .. }) = &evidence else {
            return self.inquest.hear(now, evidence);
        };
        let others = self.workers.iter().any(|worker| worker.is_at_work() && worker.rank != *rank);
        let is_here = self.workers.iter().any(|worker| worker.is_alive() && worker.rank == *rank);
        if self.plan.elastic && others && is_here {
            let culprit = self.inquest.explain(&evidence).culprit;
            self.end(*rank, &culprit.map_or_else(String::new, |culprit| culprit.cause));
        } else {
            self.inquest.hear(now, evidence);
        }
    }

    /// The others go on without this worker, if it is one of these: it is killed, whatever it does.
    pub(super) fn end(&mut self, rank: usize, cause: &str) {
        self.watch.dismiss(rank);
        if let Some(worker) = self.workers.iter_mut().find(|worker| worker.is_alive() && worker.rank == rank)
        {
            worker.cause = Some(cause.into());
            linux::kill_group(worker.child.id());
        }
    }

    /// Ends whoever is left and waits until the kernel confirms it.
    pub(super) fn end_all(&mut self) {
        for worker in self.workers.iter_mut().filter(|worker| worker.status.is_none()) {
            linux::kill_group(worker.child.id());
        }
        let end = Instant::now() + if self.interrupted.is_some() { CONFIRM_A_STOP } else { CONFIRM };
        for worker in &mut self.workers {
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
