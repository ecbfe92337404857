//! `report.json`: what the job was, how it went and how it ended.

use super::View;
use super::course::Pace;
use super::jsonl;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::durable::write_atomically;
use thalweg_core::event::{Event, Metrics, Outcome, Record};
use thalweg_core::report::{Audit, EpochReport, FORMAT, Failure, RankReport, Report, World};
use thalweg_core::{Culprit, Error, Job, Kind, Result};

/// Name of the file in the run folder.
pub const FILE: &str = "report.json";

/// Gathers the report from events.
pub struct ReportView {
    report: Report,
    /// That of the runs before, as its file has it.
    earlier: Option<Report>,
    workers: usize,
    /// Ranks that serve the workers.
    servers: usize,
    started: Option<f64>,
    pace: Pace,
    told: Option<Outcome>,
    /// Whether there are validation rows.
    validates: bool,
}

impl ReportView {
    /// Begins a report; a resumed run goes on with what its folder tells of the runs before it: their report, and their
    /// events, as a run that was killed has written no report. What cannot be read is said by the second value: it is no
    /// reason not to train.
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
            report.audit = earlier.audit;
            report.failures = earlier.failures;
            report.steps = earlier.steps;
        }
        let mut view = ReportView::of(report, job);
        if resume {
            match jsonl::history(folder, |record| view.record(record)) {
                Ok(0) => {}
                Ok(lines) => {
                    let file = folder.join(jsonl::FILE);
                    let words = format!("{}: {lines} lines cannot be read and are left out", file.display());
                    notice.get_or_insert(words);
                }
                Err(error) => drop(notice.get_or_insert(error.message)),
            }
            view = ReportView::of(view.report, job);
        }
        view.earlier = earlier;
        (view, notice)
    }

    /// A view that has heard nothing, of a report so far.
    fn of(report: Report, job: &Job) -> ReportView {
        let (workers, servers) = (job.spec.engine.workers, job.spec.servers());
        let report = Report { train_s: 0.0, samples_per_s: 0.0, ..report };
        ReportView {
            report,
            earlier: None,
            workers,
            servers,
            started: None,
            pace: Pace::default(),
            told: None,
            validates: true,
        }
    }

    /// How rank 0 says it ended: whether a target was reached is known only there.
    pub fn outcome(&self) -> Option<Outcome> {
        self.told
    }

    /// The report of a job that ended so. Where no step was left to train, that of the runs before stays: its times and
    /// accounts are those of the training.
    pub fn finish(mut self, outcome: Outcome, error: Option<&Error>, wall: Duration) -> Report {
        match self.earlier.take().filter(|earlier| self.told.is_some() && self.has_trained_before(earlier)) {
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
            self.report.samples_per_s = self.pace.samples_per_s();
        }
        if let Some(error) = error {
            self.report.failures.extend(failure(error));
            self.report.error = Some(error.clone());
        }
        self.report
    }

    /// Whether this run has made no step, and the earlier report is about all there are.
    fn has_trained_before(&self, earlier: &Report) -> bool {
        let Report { first_step, steps, .. } = self.report;
        steps > 0 && first_step == steps && earlier.steps == steps
    }

    /// From `first_step` on everything is done again: what an earlier run says about later steps no longer counts.
    fn start(&mut self, first_step: u64) {
        let report = &mut self.report;
        report.epochs.retain(|epoch| epoch.step <= first_step);
        let kept: Vec<u64> = report.epochs.iter().map(|epoch| epoch.epoch).collect();
        report.audit.retain(|audit| kept.contains(&audit.epoch));
        report.world.retain(|world| world.step < first_step);
        report.world.push(World { step: first_step, workers: self.workers });
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
        // An epoch begun by one run and ended by another: the later audit knows of both parts.
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
                self.pace.add((step + 1).saturating_sub(self.report.steps), *samples_per_s);
                self.report.steps = step + 1;
                self.report.train_s = self.started.map_or(0.0, |started| (record.time - started).max(0.0));
            }
            Event::Epoch { epoch, step, loss, validation, audit } => {
                let (epoch, step, loss) = (*epoch, *step, *loss);
                let (mut validation, mut training) = (validation.clone(), Metrics::new());
                if !self.validates {
                    std::mem::swap(&mut validation, &mut training);
                }
                self.end_epoch(EpochReport { epoch, step, loss, validation, training }, audit);
            }
            Event::Checkpoint { step, .. } => self.report.checkpoint_step = Some(*step),
            Event::Account { account } => {
                let key = |report: &RankReport| (report.rank, report.gone_at.is_some());
                self.report.ranks.retain(|known| key(known) != key(account));
                self.report.ranks.push(account.clone());
                self.report.ranks.sort_by_key(|known| known.rank);
            }
            Event::Regrouped { step, members, lost, recover_s, steps_redone, .. } => {
                let workers = members.len().saturating_sub(self.servers);
                self.report.world.push(World { step: *step, workers });
                for culprit in lost {
                    let failure = of_culprit(culprit);
                    let same = |known: &Failure| {
                        (known.rank, known.step, &known.cause) == (failure.rank, failure.step, &failure.cause)
                    };
                    // Whoever told it may have been lost right after: then another tells it again.
                    if !self.report.failures.iter().any(same) {
                        let (recover_s, steps_redone) = (Some(*recover_s), *steps_redone);
                        self.report.failures.push(Failure { recover_s, steps_redone, ..failure });
                    }
                }
            }
            // The first of the group speaks for all.
            Event::Done { outcome, last, steps, rows, train_s } => {
                self.told = Some(*outcome);
                self.report.last.clone_from(last);
                (self.report.steps, self.report.train_s) = (*steps, *train_s);
                self.report.samples_per_s = if *train_s > 0.0 { *rows as f64 / train_s } else { 0.0 };
            }
            _ => {}
        }
        Ok(())
    }
}

/// Writes the report into the run folder, whole or not at all.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    let mut text = serde_json::to_string_pretty(report)
        .map_err(|error| Error::internal(format!("the report cannot be written as JSON: {error}")))?;
    text.push('\n');
    write_atomically(&folder.join(FILE), text.as_bytes())
}

/// The report in a run folder; nothing if there is none.
pub fn read(folder: &Path) -> Result<Option<Report>> {
    let path = folder.join(FILE);
    let text = match thalweg_cluster::regular::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format_args!("cannot read {}", path.display()), &error)),
    };
    serde_json::from_str(&text).map(Some).map_err(|error| {
        Error::new(Kind::Io, format!("{} is not a report of format {FORMAT} ({error})", path.display()))
    })
}

/// A report in which nothing has happened yet.
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
        steps: 0,
        first_step: 0,
        checkpoint_step: None,
        wall_s: 0.0,
        train_s: 0.0,
        samples_per_s: 0.0,
        ranks: Vec::new(),
        audit: Vec::new(),
        failures: Vec::new(),
        stopped_by: Vec::new(),
        error: None,
    }
}

/// What an error says about a rank that failed.
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
mod tests {
    use super::super::Jsonl;
    use super::super::course::tests::{at, epoch, started, step};
    use super::*;

    fn run(folder: &Path, resume: bool, events: Vec<Event>) -> Report {
        let (mut view, notice) = ReportView::open(folder, "digits-1", &Job::default(), resume);
        assert_eq!(notice, None);
        for (second, event) in events.into_iter().enumerate() {
            view.record(&at(second as f64, event)).unwrap();
        }
        let report = view.finish(Outcome::Completed, None, Duration::from_secs(9));
        write(&report, folder).unwrap();
        report
    }

    fn partial_epoch(number: u64, last_step: u64, rows: u64) -> Event {
        let Event::Epoch { epoch, loss, validation, audit, .. } = epoch(number) else { unreachable!() };
        let audit = Audit { expected: rows, once: rows, ..audit };
        Event::Epoch { epoch, step: last_step, loss, validation, audit }
    }

    #[test]
    fn a_run_is_told_from_its_events() {
        let folder = tempfile::tempdir().unwrap();
        let account = |rank| Event::Account { account: RankReport { rank, ..RankReport::default() } };
        let last = Metrics::from([("accuracy".into(), 0.97)]);
        let done = Event::Done { outcome: Outcome::Completed, last, steps: 20, rows: 2874, train_s: 2.0 };
        let hosts = vec!["a".into(), "a".into()];
        let joined = Event::Joined { hosts, generation: 0 };
        let report = run(
            folder.path(),
            false,
            vec![joined, started(0), epoch(0), epoch(1), account(1), account(0), done],
        );
        assert_eq!(report.last["accuracy"], 0.97);
        assert_eq!((report.steps, report.samples_per_s, report.wall_s), (20, 1437.0, 9.0));
        assert_eq!(report.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(report.world, [World { step: 0, workers: 2 }]);
        assert_eq!((report.epochs.len(), report.audit.len()), (2, 2));
        assert_eq!(report.dials["strategy.exchange.kind"], "allreduce");
        assert_eq!(report.job["engine.workers"], 2);
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(text.contains("\"final\": {") && text.contains("\"outcome\": \"completed\""));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_resumed_run_keeps_what_still_holds_and_ends_a_divided_epoch() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), false, vec![started(0), epoch(0), partial_epoch(1, 15, 700)]);
        let report = run(folder.path(), true, vec![started(15), partial_epoch(1, 20, 1437), epoch(2)]);
        assert_eq!(report.epochs.iter().map(|epoch| epoch.step).collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(report.audit.iter().map(|audit| audit.once).collect::<Vec<_>>(), [1437, 1437, 1437]);
        assert_eq!(report.world.len(), 2);
        assert_eq!(report.first_step, 15);

        // From an older checkpoint: the later epochs are done again and counted once.
        let report = run(folder.path(), true, vec![started(10), epoch(1)]);
        assert_eq!(report.epochs.iter().map(|epoch| epoch.epoch).collect::<Vec<_>>(), [0, 1]);
        assert!(report.audit.iter().all(|audit| audit.once == 1437));
    }

    #[test]
    fn a_run_that_was_killed_is_told_from_its_events() {
        let folder = tempfile::tempdir().unwrap();
        // A first run that ended well, and a second one that told its events and was killed.
        let first = vec![started(0), epoch(0), partial_epoch(1, 15, 700)];
        let second = vec![started(15), partial_epoch(1, 20, 1437), epoch(2), epoch(3), step(44, 1.0)];
        run(folder.path(), false, first.clone());
        let mut events = Jsonl::open(folder.path()).unwrap();
        for event in [first, second].concat() {
            events.record(&at(0.0, event)).unwrap();
        }
        events.close().unwrap();
        // Its last checkpoint is of step 30: the fourth epoch is done again.
        let report = run(folder.path(), true, vec![started(30), epoch(3), epoch(4)]);
        assert_eq!(report.epochs.iter().map(|epoch| epoch.step).collect::<Vec<_>>(), [10, 20, 30, 40, 50]);
        assert_eq!(report.audit.iter().map(|audit| audit.once).collect::<Vec<_>>(), [1437; 5]);
        assert_eq!(report.world.iter().map(|world| world.step).collect::<Vec<_>>(), [0, 15, 30]);
        assert_eq!((report.first_step, report.checkpoint_step), (30, Some(30)));
    }

    #[test]
    fn a_run_with_nothing_left_to_train_keeps_the_report_of_its_training() {
        let folder = tempfile::tempdir().unwrap();
        let done = |rows, train_s| Event::Done {
            outcome: Outcome::Completed,
            last: Metrics::from([("accuracy".into(), 0.97)]),
            steps: 20,
            rows,
            train_s,
        };
        let account = Event::Account { account: RankReport { rows: 2874, ..RankReport::default() } };
        let first = run(folder.path(), false, vec![started(0), epoch(0), epoch(1), account, done(2874, 2.0)]);
        let json = |report: &Report| serde_json::to_string(report).unwrap();
        let idle = Event::Account { account: RankReport::default() };
        let again = run(folder.path(), true, vec![started(20), idle, done(0, 0.001)]);
        assert_eq!(json(&again), json(&first));
        // One that was stopped after its last step is completed by it.
        write(&Report { outcome: Outcome::Interrupted, ..first.clone() }, folder.path()).unwrap();
        let again = run(folder.path(), true, vec![started(20), done(0, 0.001)]);
        assert_eq!(json(&again), json(&first));
    }

    #[test]
    fn garbage_in_the_folder_is_told_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "{ half").unwrap();
        let (view, notice) = ReportView::open(folder.path(), "x", &Job::default(), true);
        assert!(notice.unwrap().contains("report.json is not a report of format 1"));
        write(&view.finish(Outcome::Failed, None, Duration::ZERO), folder.path()).unwrap();
        assert!(read(folder.path()).unwrap().is_some());
    }

    #[test]
    fn the_culprit_of_the_last_error_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let (mut view, _) = ReportView::open(folder.path(), "x", &Job::default(), false);
        view.record(&at(0.0, started(0))).unwrap();
        view.record(&at(2.0, step(3, 500.0))).unwrap();
        assert_eq!(view.outcome(), None);
        let culprit = Culprit {
            rank: 1,
            step: Some(4),
            operation: Some("all-reduce of gradients".into()),
            cause: "killed by SIGKILL".into(),
            detect_s: Some(0.1),
            ..Culprit::default()
        };
        let error = Error::new(Kind::RankFailed, "rank 1 died").blame(culprit);
        let report = view.finish(Outcome::Failed, Some(&error), Duration::from_secs(3));
        assert_eq!(report.failures[0].rank, Some(1));
        assert_eq!(report.failures[0].cause, "killed by SIGKILL");
        assert_eq!(report.failures[0].detect_s, Some(0.1));
        assert_eq!((report.steps, report.train_s, report.samples_per_s), (4, 2.0, 500.0));
        assert_eq!(report.error, Some(error));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (view, _) = ReportView::open(folder.path(), "x", &Job::default(), false);
        let report = view.finish(Outcome::Failed, None, Duration::ZERO);
        let error = write(&report, &folder.path().join("absent")).unwrap_err();
        assert!(error.message.contains("absent/report.json"), "{error}");
    }
}
