//! Output of a run: its folder, the views of its events and, also after a failure, its report.

use crate::folder::{MODEL, RunFolder};
use crate::preflight::{self, Checked};
use crate::signals::Signals;
use crate::trainer::{RunResult, Trainer};
use crate::view::formatting::{count, counted};
use crate::view::{Jsonl, ReportView, RunFiles, TensorBoard, Views, report, summary};
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use thalweg_cluster::checkpoint;
use thalweg_cluster::linux;
use thalweg_cluster::session::unix_time;
use thalweg_core::event::{Event, Level, Outcome, Record};
use thalweg_core::spec::{Job, JobSpec};
use thalweg_core::{Error, Kind, Result};
use thalweg_train::registry;

/// The run folder and the views of the run's events.
pub struct Results {
    /// The claimed run folder.
    pub folder: RunFolder,
    views: Views,
    summary: bool,
    rerun_args: Option<String>,
    /// Whether the strategy takes the same steps with any number of workers.
    same_steps: bool,
    started: Instant,
    /// Whether rank 0 has listened for the others.
    listened: bool,
    /// The job of a resumed run, written with its first step: a resume without steps left changes nothing.
    resumed_job: Option<(String, JobSpec)>,
}

impl Results {
    /// Claims the folder, runs the preflight check and opens the views. Returns what the check has opened too.
    pub fn open(trainer: &Trainer, job: &Job, signals: &Signals) -> Result<(Results, Checked)> {
        let started = Instant::now();
        let folder = RunFolder::claim(&trainer.name, &trainer.folder)?;
        let created = folder.created();
        signals.set_cleanup(move || created.remove());
        let resumed = folder.resumes.then_some(&*folder.path);
        let checked =
            preflight::check(&job.spec, &trainer.components, resumed, trainer.local_ranks(&job.spec));
        let opened = checked.and_then(|checked| {
            folder.clear()?;
            if checked.step.is_none() {
                folder.write_job(&trainer.name, &job.spec)?;
            }
            Ok((open_views(trainer, job, &folder, checked.step)?, checked))
        });
        if opened.is_err() {
            folder.created().remove();
        }
        let (mut views, checked) = opened?;
        let large = large_batch(job.spec.train.global_batch as u64, checked.data.training.len());
        for message in checked.data.notices().into_iter().chain(large) {
            let event = Event::Notice { level: Level::Warning, message };
            views.record(&Record { time: unix_time(), rank: None, event })?;
        }
        let summary = trainer.summary && !trainer.quiet;
        let rerun_args = trainer.rerun_args.clone();
        let resumed_job = checked.step.map(|_| (trainer.name.clone(), job.spec.clone()));
        let same_steps = !registry::of(&job.spec).claims.local_updates;
        let listened = false;
        let results =
            Results { folder, views, summary, rerun_args, same_steps, started, listened, resumed_job };
        Ok((results, checked))
    }

    /// Passes an event to the views.
    pub fn record(&mut self, record: &Record) -> Result<()> {
        let steps = matches!(record.event, Event::Step { .. });
        self.listened |= matches!(record.event, Event::Listening { .. });
        if let Some((name, job)) = self.resumed_job.take_if(|_| steps) {
            self.folder.write_job(&name, &job)?;
        }
        self.views.record(record)
    }

    /// Closes the views and writes the report, also if the run failed. `ended` is the exit code or the failure. Nothing is
    /// left of a job refused for its token or port.
    pub fn close(self, ended: Result<u8>) -> Result<RunResult> {
        let folder = &self.folder.path;
        let (view, closed) = self.views.close();
        if let Err(error) = &ended
            && error.kind == Kind::Rendezvous
            && !self.listened
        {
            self.folder.discard();
            return Err(error.clone());
        }
        let ended =
            ended.and_then(|code| closed.map(|()| code)).and_then(|code| match (code, view.outcome()) {
                (0, None) => {
                    Err(Error::internal("the workers exited with code 0, but rank 0 sent no outcome"))
                }
                _ => Ok(code),
            });
        let ended = ended.map_err(|error| with_resume_hint(error, folder));
        let outcome = match &ended {
            Ok(0) => view.outcome().unwrap_or(Outcome::Failed),
            Ok(_) => Outcome::Interrupted,
            Err(_) => Outcome::Failed,
        };
        let report = view.finish(outcome, ended.as_ref().err(), self.started.elapsed());
        let written = report::write(&report, folder);
        let code = ended?;
        written?;
        if self.summary {
            let checkpoint = !checkpoint::list(&folder.join("checkpoints")).is_empty();
            let (rerun_args, same_steps) = (self.rerun_args.as_deref(), self.same_steps);
            let files = RunFiles { folder, checkpoint, rerun_args, same_steps };
            // stderr may be closed; that does not change the exit code of the run.
            let _ = write!(std::io::stderr(), "{}", summary(&report, files));
        }
        Ok(RunResult { report: Some(report), code })
    }
}

fn open_views(trainer: &Trainer, job: &Job, folder: &RunFolder, step: Option<u64>) -> Result<Views> {
    let (report, notice) = ReportView::open(&folder.path, &trainer.name, job, folder.resumes);
    let mut views = Views::new(report);
    views.add(Jsonl::open(&folder.path)?);
    views.add(TensorBoard::create(&folder.path, unix_time(), &linux::host_name())?);
    views.add_console(trainer.quiet, job.spec.train.max_steps);
    let mut notices: Vec<_> = notice.map(|message| (Level::Warning, message)).into_iter().collect();
    notices.extend(trainer.folder.resume.then(|| resume_notice(folder, step)));
    for (level, message) in notices {
        let event = Event::Notice { level, message };
        views.record(&Record { time: unix_time(), rank: None, event })?;
    }
    Ok(views)
}

/// Warning about a batch larger than the data set.
fn large_batch(batch: u64, rows: u64) -> Option<String> {
    (batch > rows).then(|| {
        let (batch, rows) = (count(batch), counted(rows, "training row"));
        format!("a batch of {batch} holds all {rows}: one step per epoch (train.global_batch)")
    })
}

/// Notice of a run with `--resume`: from which step it continues, or that it starts from the beginning.
fn resume_notice(folder: &RunFolder, step: Option<u64>) -> (Level, String) {
    let shown = folder.path.display();
    let fresh = format!("{shown} holds no checkpoint: training starts from the beginning");
    match step {
        Some(step) => (Level::Info, format!("going on with {shown} after step {step}")),
        None if folder.has_model() => (Level::Warning, format!("{fresh} and replaces {MODEL}")),
        None => (Level::Info, fresh),
    }
}

/// Names the checkpoint that a failed job can resume from.
fn with_resume_hint(mut error: Error, folder: &Path) -> Error {
    let newest =
        checkpoint::list(&folder.join("checkpoints")).first().and_then(|path| checkpoint::step_of(path));
    if let (Kind::RankFailed, None, Some(step)) = (error.kind, &error.hint, newest) {
        error.hint =
            Some(format!("`thalweg resume {}` goes on from the checkpoint of step {step}", folder.display()));
    }
    error
}
