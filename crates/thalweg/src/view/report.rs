//! `report.json`: the job, its course and its outcome.

use super::View;
use super::jsonl;
use super::progress_state::MeanRate;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::durable::write_atomically;
use thalweg_core::event::{Event, Metrics, Outcome, Record};
use thalweg_core::report::{
    Audit, EpochReport, Evaluation, FORMAT, Failure, LocalReport, MessageReport, RankReport, Report,
    Staleness, WorldSize,
};
use thalweg_core::{Culprit, Error, Job, Kind, Result};
use thalweg_train::registry;

/// Name of the file in the run folder.
pub const FILE: &str = "report.json";

/// Builds the report from events.
pub struct ReportView {
    report: Report,
    /// The report in the folder at the start of a resumed run.
    earlier: Option<Report>,
    workers: usize,
    /// Number of parameter servers.
    servers: usize,
    started: Option<f64>,
    mean_rate: MeanRate,
    outcome: Option<Outcome>,
    /// Whether there are validation rows.
    validates: bool,
    /// Rows of a local step, if workers have models of their own.
    local_rows: Option<f64>,
}

impl ReportView {
    /// Begins a report. A resumed run continues that of the runs before it, with their events: a killed run has written
    /// no report. The second value is a warning about files that cannot be read, which does not prevent training.
    pub fn open(folder: &Path, name: &str, job: &Job, resume: bool) -> (ReportView, Option<String>) {
        let (earlier, mut notice) = match resume.then(|| read(folder)) {
            Some(Ok(earlier)) => (earlier, None),
            Some(Err(error)) => (None, Some(format!("{}; its failures are left out", error.message))),
            None => (None, None),
        };
        let mut report = blank(name, job);
        if let Some(earlier) = earlier.clone() {
            report.algorithm = earlier.algorithm;
            report.buckets = earlier.buckets;
            report.world = earlier.world;
            report.last = earlier.last;
            report.epochs = earlier.epochs;
            report.evaluations = earlier.evaluations;
            report.audit = earlier.audit;
            report.failures = earlier.failures;
            report.steps = earlier.steps;
        }
        let mut view = ReportView::continuing(report, job);
        if resume {
            match jsonl::history(folder, |record| view.record(record)) {
                Ok(0) => {}
                Ok(lines) => {
                    let file = folder.join(jsonl::FILE);
                    let message =
                        format!("{}: {lines} lines cannot be read and are left out", file.display());
                    notice.get_or_insert(message);
                }
                Err(error) => drop(notice.get_or_insert(error.message)),
            }
            view = ReportView::continuing(view.report, job);
        }
        view.earlier = earlier;
        (view, notice)
    }

    /// A view with no events yet, that continues `report`.
    fn continuing(report: Report, job: &Job) -> ReportView {
        let (workers, servers) = (job.spec.engine.workers, registry::servers(&job.spec));
        let report = Report { train_s: 0.0, samples_per_s: 0.0, ..report };
        let has_own = registry::find(&job.spec).is_some_and(|strategy| strategy.claims.local_updates);
        ReportView {
            report,
            earlier: None,
            workers,
            servers,
            started: None,
            mean_rate: MeanRate::default(),
            outcome: None,
            validates: true,
            local_rows: has_own.then(|| job.spec.train.global_batch as f64 / workers.max(1) as f64),
        }
    }

    /// The outcome that rank 0 has sent: only it knows whether a target was reached.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// The final report. If no step was left to train, that of the earlier runs is kept: its times and rank reports are
    /// those of the training.
    pub fn finish(mut self, outcome: Outcome, error: Option<&Error>, wall: Duration) -> Report {
        match self.earlier.take().filter(|earlier| self.outcome.is_some() && self.is_covered_by(earlier)) {
            Some(earlier) if earlier.outcome == outcome => return earlier,
            Some(earlier) => {
                let (last, stopped_by) = (self.report.last, Vec::new());
                return Report { outcome, last, stopped_by, error: None, ..earlier };
            }
            None => {}
        }
        self.report.outcome = outcome;
        self.report.wall_s = wall.as_secs_f64();
        if self.report.samples_per_s == 0.0 {
            self.report.samples_per_s = self.mean_rate.samples_per_s();
        }
        if let Some(error) = error {
            self.report.failures.extend(failure(error));
            self.report.error = Some(error.clone());
        }
        self.report
    }

    /// Whether this run has made no step, and the earlier report covers all steps.
    fn is_covered_by(&self, earlier: &Report) -> bool {
        let Report { first_step, steps, .. } = self.report;
        steps > 0 && first_step == steps && earlier.steps == steps
    }

    /// Training repeats everything from `first_step` on: entries of an earlier run about later steps are dropped.
    fn start(&mut self, first_step: u64) {
        let report = &mut self.report;
        report.epochs.retain(|epoch| epoch.step <= first_step);
        report.evaluations.retain(|evaluation| evaluation.step <= first_step);
        let kept: Vec<u64> = report.epochs.iter().map(|epoch| epoch.epoch).collect();
        report.audit.retain(|audit| kept.contains(&audit.epoch));
        report.world.retain(|world| world.step < first_step);
        report.world.push(WorldSize { step: first_step, workers: self.workers });
        (report.first_step, report.steps) = (first_step, first_step);
        report.checkpoint_step = (first_step > 0).then_some(first_step);
    }

    fn end_epoch(&mut self, entry: EpochReport, audit: &Audit) {
        self.report.steps = entry.step;
        self.report.last = entry.metrics().clone();
        match self.report.epochs.iter_mut().find(|known| known.epoch == entry.epoch) {
            Some(known) => *known = entry,
            None => self.report.epochs.push(entry),
        }
        // An epoch that began in an earlier run: the later audit covers both parts.
        match self.report.audit.iter_mut().find(|known| known.epoch == audit.epoch) {
            Some(known) => known.clone_from(audit),
            None => self.report.audit.push(audit.clone()),
        }
    }
}

impl View for ReportView {
    fn record(&mut self, record: &Record) -> Result<()> {
        match &record.event {
            Event::Joined { hosts, .. } => self.workers = hosts.len().saturating_sub(self.servers),
            Event::Started { first_step, algorithm, buckets, validation_rows, .. } => {
                self.validates = *validation_rows > 0;
                self.started = Some(record.time);
                self.report.algorithm.clone_from(algorithm);
                self.report.buckets.clone_from(buckets);
                self.start(*first_step);
            }
            Event::Stopping { ranks, .. } if !ranks.is_empty() => self.report.stopped_by.clone_from(ranks),
            Event::Step { step, samples_per_s, .. } => {
                self.mean_rate.add((step + 1).saturating_sub(self.report.steps), *samples_per_s);
                self.report.steps = step + 1;
                self.report.train_s = self.started.map_or(0.0, |started| (record.time - started).max(0.0));
            }
            Event::Epoch { epoch, step, loss, validation, audit, consensus, members, merge_every } => {
                let (epoch, step, loss, consensus) = (*epoch, *step, *loss, *consensus);
                let (mut validation, mut training) = (validation.clone(), Metrics::new());
                if !self.validates {
                    std::mem::swap(&mut validation, &mut training);
                }
                let (members, merge_every) = (members.clone(), *merge_every);
                let entry =
                    EpochReport { epoch, step, loss, validation, training, consensus, members, merge_every };
                self.end_epoch(entry, audit);
            }
            Event::Evaluated { step, rows, train_s, metrics } => {
                let (step, rows, train_s, metrics) = (*step, *rows, *train_s, metrics.clone());
                self.report.evaluations.retain(|known| known.step < step);
                self.report.evaluations.push(Evaluation { step, rows, train_s, metrics });
            }
            Event::Checkpoint { step, .. } => self.report.checkpoint_step = Some(*step),
            Event::Account { account } => {
                let key = |report: &RankReport| (report.rank, report.gone_at.is_some());
                self.report.ranks.retain(|known| key(known) != key(account));
                self.report.ranks.push(account.clone());
                self.report.ranks.sort_by_key(|known| known.rank);
                self.report.messages = MessageReport::total(&self.report.ranks);
                self.report.local =
                    self.local_rows.and_then(|rows| LocalReport::of(&self.report.ranks, rows));
                let mut staleness: Option<Staleness> = None;
                for known in self.report.ranks.iter().filter_map(|rank| rank.staleness.as_ref()) {
                    staleness.get_or_insert_default().merge(known);
                }
                self.report.staleness = staleness;
            }
            Event::Regrouped { step, members, lost, recover_s, steps_redone, .. } => {
                let workers = members.len().saturating_sub(self.servers);
                self.report.world.push(WorldSize { step: *step, workers });
                for culprit in lost {
                    let failure = of_culprit(culprit);
                    let same = |known: &Failure| {
                        (known.rank, known.step, &known.cause) == (failure.rank, failure.step, &failure.cause)
                    };
                    // The rank that reported it may have been lost right after, and another reports it again.
                    if !self.report.failures.iter().any(same) {
                        let (recover_s, steps_redone) = (Some(*recover_s), *steps_redone);
                        self.report.failures.push(Failure { recover_s, steps_redone, ..failure });
                    }
                }
            }
            // Sent by rank 0 only.
            Event::Done { outcome, last, steps, units, rows, train_s } => {
                self.outcome = Some(*outcome);
                self.report.last.clone_from(last);
                (self.report.steps, self.report.units, self.report.train_s) = (*steps, *units, *train_s);
                self.report.samples_per_s = if *train_s > 0.0 { *rows as f64 / train_s } else { 0.0 };
            }
            _ => {}
        }
        Ok(())
    }
}

/// Writes the report into the run folder, atomically.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    let mut text = serde_json::to_string_pretty(report)
        .map_err(|error| Error::internal(format!("the report cannot be written as JSON: {error}")))?;
    text.push('\n');
    write_atomically(&folder.join(FILE), text.as_bytes())
}

/// Reads the report of a run folder; `None` if there is none.
pub fn read(folder: &Path) -> Result<Option<Report>> {
    let path = folder.join(FILE);
    let text = match thalweg_cluster::regular_file::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format_args!("cannot read {}", path.display()), &error)),
    };
    serde_json::from_str(&text).map(Some).map_err(|error| {
        Error::new(Kind::Io, format!("{} is not a report of format {FORMAT} ({error})", path.display()))
    })
}

/// The report of a job before its first event.
fn blank(name: &str, job: &Job) -> Report {
    let values: BTreeMap<String, serde_json::Value> = job
        .spec
        .values()
        .into_iter()
        .map(|(key, value)| (key, serde_json::to_value(value).unwrap_or_default()))
        .collect();
    let dials = values.iter().filter(|(key, _)| key.starts_with("strategy."));
    Report {
        format: FORMAT,
        name: name.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        outcome: Outcome::Failed,
        dials: dials.map(|(key, value)| (key.clone(), value.clone())).collect(),
        job: values,
        algorithm: String::new(),
        buckets: Vec::new(),
        world: Vec::new(),
        last: BTreeMap::new(),
        epochs: Vec::new(),
        evaluations: Vec::new(),
        steps: 0,
        units: 0,
        first_step: 0,
        checkpoint_step: None,
        wall_s: 0.0,
        train_s: 0.0,
        samples_per_s: 0.0,
        ranks: Vec::new(),
        messages: None,
        local: None,
        staleness: None,
        audit: Vec::new(),
        failures: Vec::new(),
        stopped_by: Vec::new(),
        error: None,
    }
}

/// The rank failure that an error names.
fn failure(error: &Error) -> Option<Failure> {
    error.culprit.as_deref().map(of_culprit)
}

fn of_culprit(culprit: &Culprit) -> Failure {
    Failure {
        step: culprit.step,
        rank: Some(culprit.rank),
        operation: culprit.operation.clone(),
        cause: culprit.cause.clone(),
        detect_s: culprit.detect_s,
        ..Failure::default()
    }
}

#[cfg(test)]
mod tests;
