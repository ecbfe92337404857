//! What a run leaves behind and shows on the way: its folder, its views and, whatever happens, its report.

use crate::folder::{MODEL, RunFolder};
use crate::preflight::{self, Checked};
use crate::signals::Signals;
use crate::trainer::{Finish, Trainer};
use crate::view::wording::{count, counted};
use crate::view::{Jsonl, Left, ReportView, TensorBoard, Views, report, summary};
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use thalweg_cluster::checkpoint;
use thalweg_cluster::linux;
use thalweg_cluster::session::unix_time;
use thalweg_core::event::{Event, Level, Outcome, Record};
use thalweg_core::spec::Job;
use thalweg_core::{Error, Kind, Result};

/// The folder of a run and the views on its events.
pub struct Results {
    /// Where everything goes.
    pub folder: RunFolder,
    views: Views,
    summary: bool,
    again: Option<String>,
    started: Instant,
}

impl Results {
    /// Checks all that can be checked, claims the folder and opens the views on it. What was found comes along, for those who
    /// need it.
    pub fn open(trainer: &Trainer, job: &Job, signals: &Signals) -> Result<(Results, Checked)> {
        let started = Instant::now();
        let folder = RunFolder::claim(&trainer.name, &trainer.folder)?;
        let unused = folder.traces();
        signals.before_leaving(move || unused.remove());
        let resumed = folder.resumes.then_some(&*folder.path);
        let checked = preflight::check(&job.spec, &trainer.recipe, resumed, trainer.local_ranks(&job.spec));
        let opened = checked.and_then(|checked| {
            folder.clear()?;
            folder.keep_job(&trainer.name, &job.spec)?;
            Ok((open_views(trainer, job, &folder, checked.step)?, checked))
        });
        if opened.is_err() {
            folder.traces().remove();
        }
        let (mut views, checked) = opened?;
        let large = large_batch(job.spec.train.global_batch as u64, checked.data.training.len());
        for message in checked.data.notices().into_iter().chain(large) {
            let event = Event::Notice { level: Level::Warning, message };
            views.record(&Record { time: unix_time(), rank: None, event })?;
        }
        let summary = trainer.summary && !trainer.quiet;
        let again = trainer.again.clone();
        Ok((Results { folder, views, summary, again, started }, checked))
    }

    /// Something happened.
    pub fn record(&mut self, record: &Record) -> Result<()> {
        self.views.record(record)
    }

    /// Writes the report, whatever happened, and says how it ended.
    pub fn close(self, ended: Result<u8>) -> Result<Finish> {
        let folder = &self.folder.path;
        let (view, closed) = self.views.close();
        let ended =
            ended.and_then(|code| closed.map(|()| code)).and_then(|code| match (code, view.outcome()) {
                (0, None) => Err(Error::internal("the workers ended well, but rank 0 did not say how")),
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
            let left = Left { folder, checkpoint, again: self.again.as_deref() };
            // The terminal may have been closed: no reason to end otherwise than the job did.
            let _ = write!(std::io::stderr(), "{}", summary(&report, left));
        }
        Ok(Finish { report: Some(report), code })
    }
}

fn open_views(trainer: &Trainer, job: &Job, folder: &RunFolder, step: Option<u64>) -> Result<Views> {
    let (report, notice) = ReportView::open(&folder.path, &trainer.name, job, folder.resumes);
    let mut views = Views::new(report);
    views.add(Jsonl::open(&folder.path)?);
    views.add(TensorBoard::create(&folder.path, unix_time(), &linux::host_name())?);
    views.add_console(trainer.quiet, job.spec.train.max_steps);
    let mut notices: Vec<_> = notice.map(|message| (Level::Warning, message)).into_iter().collect();
    notices.extend(trainer.folder.resume.then(|| beginning(folder, step)));
    for (level, message) in notices {
        let event = Event::Notice { level, message };
        views.record(&Record { time: unix_time(), rank: None, event })?;
    }
    Ok(views)
}

/// A batch that no epoch fills.
fn large_batch(batch: u64, rows: u64) -> Option<String> {
    (batch > rows).then(|| {
        let (batch, rows) = (count(batch), counted(rows, "training row"));
        format!("a batch of {batch} holds all {rows}: one step per epoch (train.global_batch)")
    })
}

/// Which run goes on and from where, or that it starts from the beginning.
fn beginning(folder: &RunFolder, step: Option<u64>) -> (Level, String) {
    let shown = folder.path.display();
    let fresh = format!("{shown} holds no checkpoint: training starts from the beginning");
    match step {
        Some(step) => (Level::Info, format!("going on with {shown} after step {}", count(step))),
        None if folder.has_model() => (Level::Warning, format!("{fresh} and replaces {MODEL}")),
        None => (Level::Info, fresh),
    }
}

/// What a failed job can go on from.
fn with_resume_hint(mut error: Error, folder: &Path) -> Error {
    let newest =
        checkpoint::list(&folder.join("checkpoints")).first().and_then(|path| checkpoint::step_of(path));
    if let (Kind::RankFailed, None, Some(step)) = (error.kind, &error.hint, newest) {
        error.hint =
            Some(format!("`thalweg resume {}` goes on from the checkpoint of step {step}", folder.display()));
    }
    error
}
