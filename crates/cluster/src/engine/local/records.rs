//! Reactions of the launcher to the records of its workers.

use super::{LaunchAction, Launcher};
use crate::diagnosis::{EVIDENCE_TIMEOUT, Evidence};
use crate::engine::process::{WorkerProcess, describe, is_fine};
use crate::launcher_connection::LauncherCommand;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Level, Phase, Record};
use thalweg_core::{Culprit, Error, Kind, Result};

/// How causes begin that say more than an exit status: the coordinator or the rank itself knows why it was given up.
const KNOWN_CAUSES: [&str; 5] =
    ["has been ", "failed: ", "broke the protocol", "cannot be connected", "did not connect again"];

impl Launcher<'_> {
    pub(super) fn on_worker_record(
        &mut self,
        index: usize,
        record: &Record,
        on_record: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<()> {
        let (now, rank) = (self.start.elapsed(), self.workers[index].rank);
        match &record.event {
            Event::Started { .. } => self.started = true,
            Event::Heartbeat(heartbeat) => {
                self.started |= matches!(heartbeat.phase, Phase::Computing | Phase::Exchanging);
                self.workers[index].last = heartbeat.clone();
                self.diagnosis.on_heartbeat(rank, heartbeat.clone());
                if self.workers[index].is_alive() {
                    self.monitor.on_heartbeat(rank, now, heartbeat.clone());
                }
            }
            Event::Listening { address } => {
                self.coordinator_address = Some(address.clone());
                self.broadcast(&LauncherCommand::Coordinator(address.clone()));
            }
            Event::Resigned { left } if self.coordinator == Some(index) => {
                self.left_ranks.extend(left);
                self.choose_coordinator();
            }
            // A worker that has not joined yet is the replacement of the rank that is meant.
            Event::GaveUp { culprit, cause } if self.coordinator == Some(index) => {
                let is_meant = |worker: &WorkerProcess| worker.rank == *culprit && !worker.has_not_joined();
                if self.workers.iter().any(|worker| worker.is_alive() && is_meant(worker)) {
                    self.kill(*culprit, cause);
                }
            }
            Event::Checkpoint { step, .. } => self.last_checkpoint = Some(*step),
            // In an elastic job the coordinator weighs what a rank witnessed.
            Event::Lost { .. } if self.plan.elastic => {}
            Event::Lost { error, heartbeat } => {
                self.diagnosis
                    .add(now, Evidence::Lost { rank, error: error.clone(), heartbeat: heartbeat.clone() });
            }
            // The group continues without it already. Its own record may arrive before the coordinator's.
            Event::Failed { error, .. }
                if self.plan.elastic
                    && (self.workers[index].cause.is_some() || self.was_removed(index, error)) =>
            {
                let worker = &mut self.workers[index];
                (worker.explained, worker.lost) = (true, true);
                let removal = error.culprit.as_ref().map(|culprit| culprit.cause.clone());
                worker.cause = worker.cause.take().or(removal);
                self.monitor.remove(rank);
            }
            // It joined a running job, which continues without it.
            Event::Failed { error, .. } if self.can_spare(index) => {
                let what = match self.workers[index].has_not_joined() {
                    true => "could not join",
                    false => "failed, and the others go on without it",
                };
                let worker = &mut self.workers[index];
                (worker.explained, worker.lost) = (true, true);
                self.monitor.remove(rank);
                let message = format!("rank {rank} {what}: {error}");
                let notice = Event::Notice { level: Level::Warning, message };
                on_record(&Record { time: record.time, rank: Some(rank), event: notice })?;
            }
            Event::Failed { error, heartbeat } => {
                let worker = &mut self.workers[index];
                worker.last = heartbeat.clone();
                worker.explained = true;
                self.monitor.remove(rank);
                self.diagnosis
                    .add(now, Evidence::Failed { rank, error: error.clone(), heartbeat: heartbeat.clone() });
            }
            Event::Regrouped { members, .. } => {
                // A newcomer counts as joined from here on, though its first heartbeat may not have arrived.
                let newcomer =
                    |worker: &&mut WorkerProcess| members.contains(&worker.rank) && worker.has_not_joined();
                self.workers.iter_mut().filter(newcomer).for_each(WorkerProcess::mark_joined);
                let explained = self.with_causes(record.clone());
                self.apply_control(&explained)?;
                return on_record(&explained);
            }
            _ => {}
        }
        self.apply_control(record)?;
        on_record(record)
    }

    /// Whether the job continues if this worker fails: it joined while the job ran.
    fn can_spare(&self, index: usize) -> bool {
        let worker = &self.workers[index];
        self.plan.elastic && (worker.has_not_joined() || worker.joins && self.has_other_members(index))
    }

    /// Whether another worker of this launcher is a member and has not reported its end.
    fn has_other_members(&self, index: usize) -> bool {
        let in_group = |(other, worker): (usize, &WorkerProcess)| {
            other != index && worker.is_in_group() && !worker.lost && !worker.explained
        };
        self.workers.iter().enumerate().any(in_group)
    }

    /// Whether the coordinator removed this worker, and others of this launcher continue: only the coordinator reports
    /// `RankFailed` to a rank about itself.
    fn was_removed(&self, index: usize, error: &Error) -> bool {
        let rank = self.workers[index].rank;
        let removed = error.kind == Kind::RankFailed
            && error.culprit.as_ref().is_some_and(|culprit| culprit.rank == rank);
        removed && self.has_other_members(index)
    }

    pub(super) fn apply_control(&mut self, record: &Record) -> Result<()> {
        let actions = self.control.as_mut().map_or_else(Vec::new, |control| control.on_record(record));
        for action in actions {
            match action {
                LaunchAction::Inject(fault) => {
                    let target = |worker: &&mut WorkerProcess| worker.is_alive() && worker.rank == fault.rank;
                    if let Some(worker) = self.workers.iter_mut().find(target) {
                        worker.send(&LauncherCommand::Inject(fault.clone()));
                    }
                }
                LaunchAction::StartWorker(fault) => {
                    let taken: BTreeSet<usize> = self
                        .workers
                        .iter()
                        .filter(|worker| worker.is_alive())
                        .map(|worker| worker.rank)
                        .collect();
                    let free = (0..).find(|rank| !taken.contains(rank)).unwrap_or(self.plan.world);
                    self.start_replacement(free, fault);
                }
                LaunchAction::Finish => self.broadcast(&LauncherCommand::Finish),
            }
        }
        Ok(())
    }

    /// Replaces the causes of lost ranks by their exit status, which is better evidence than what peers witnessed.
    fn with_causes(&mut self, mut record: Record) -> Record {
        let end = Instant::now() + EVIDENCE_TIMEOUT;
        let Event::Regrouped { lost, members, .. } = &mut record.event else { return record };
        // Of a rank that is still a member only connections broke.
        let exited = |culprit: &&mut Culprit| {
            !members.contains(&culprit.rank)
                && !KNOWN_CAUSES.iter().any(|known| culprit.cause.starts_with(known))
        };
        for culprit in lost.iter_mut().filter(exited) {
            if let Some(cause) = self.exit_cause(culprit.rank, end) {
                culprit.cause = cause;
            }
        }
        record
    }
    /// How the process of a lost rank ended, once the kernel reports it; None if it still runs at `end`. Peers may notice
    /// the end first, and the records of the process may not be drained yet.
    fn exit_cause(&mut self, rank: usize, end: Instant) -> Option<String> {
        let of_rank = |worker: &WorkerProcess| worker.rank == rank;
        let lost = self.workers.iter().rposition(|worker| of_rank(worker) && worker.lost);
        let index = lost.or_else(|| {
            self.workers.iter().rposition(|worker| of_rank(worker) && !worker.has_not_joined())
        })?;
        let worker = &mut self.workers[index];
        loop {
            if worker.cause.is_some() || worker.lost {
                return worker.cause.clone();
            }
            match worker.child.try_wait() {
                Ok(Some(status)) => return (!is_fine(status)).then(|| describe(status)),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                _ => return None,
            }
        }
    }
}
