//! The three parts a process can play: launcher of local workers, one of those workers, or a rank of another launcher.

use crate::folder::RunFolder;
use crate::preflight;
use crate::trainer::{Finish, Trainer};
use crate::view::{Jsonl, Plain, ReportView, TensorBoard, View, Views, report, summary};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thalweg_cluster::checkpoint;
use thalweg_cluster::engine::environment::{PORT, Place};
use thalweg_cluster::engine::local::{self, Ended, Plan};
use thalweg_cluster::linux;
use thalweg_cluster::session::{self, Terms, unix_time};
use thalweg_core::event::{Event, Level, Outcome, Record};
use thalweg_core::spec::Job;
use thalweg_core::{Error, Kind, Result};
use thalweg_data::share;
use thalweg_train::Assignment;

/// The variable by which the launcher tells its workers the run folder.
const FOLDER: &str = "THALWEG_RUN_FOLDER";
/// The variable by which it tells them whether to go on from a checkpoint.
const RESUMES: &str = "THALWEG_RUN_RESUMES";

/// Starts the workers of this host and stays until the end.
pub fn as_launcher(trainer: &Trainer, job: &Job) -> Result<Finish> {
    let first_host = trainer.nodes.as_ref().is_none_or(|nodes| nodes.index == 0);
    let started = Instant::now();
    let signals = signals()?;
    if !first_host {
        preflight::check(&job.spec, &trainer.recipe, None)?;
        let mut console = Plain::stderr(true, None);
        let plan = plan(trainer, job, Path::new("."), false)?;
        let ended = local::launch(&plan, &signals, &mut |record| quietly(&mut console, record))
            .map_err(after_start)?;
        return Ok(Finish { report: None, code: code_of(ended) });
    }
    let (folder, mut views) = open_folder(trainer, job)?;
    let plan = plan(trainer, job, &folder.path, folder.resumes)?;
    let launched = Event::Launched {
        name: trainer.name.clone(),
        workers: job.spec.engine.workers,
        strategy: job.spec.strategy.preset.clone(),
    };
    let ended = views
        .record(&Record { time: unix_time(), rank: None, event: launched })
        .and_then(|()| local::launch(&plan, &signals, &mut |record| views.record(record)))
        .map_err(after_start);
    close(trainer, &folder.path, views, ended.map(code_of), started)
}

/// Views of other hosts than the first: what their own workers complain about.
fn quietly(console: &mut impl View, record: &Record) -> Result<()> {
    match record.event {
        Event::Notice { .. } => console.record(record),
        _ => Ok(()),
    }
}

/// One of the launcher's workers: does its part and ends the process.
pub fn as_worker(trainer: &Trainer, job: &Job, place: &Place) -> Result<Finish> {
    let folder = std::env::var_os(FOLDER).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let resume = std::env::var_os(RESUMES).is_some();
    let assignment = Assignment { job: &job.spec, recipe: &trainer.recipe, folder: &folder, resume };
    // The launcher hears everything on its line; there is nobody else to tell.
    let nobody: session::OnRecord = Arc::new(|_| Ok(()));
    let result = session::run(place, &terms(job, place.local)?, None, &nobody, |rank| {
        thalweg_train::run(rank, &assignment)
    });
    std::process::exit(result.map_or_else(|error| i32::from(after_start(error).exit_code()), |_| 0))
}

/// A rank that another launcher started. Rank 0 has the views and writes the results.
pub fn as_rank(trainer: &Trainer, job: &Job, place: &Place) -> Result<Finish> {
    let started = Instant::now();
    let signals = signals()?;
    let terms = terms(job, place.local)?;
    if place.rank != 0 {
        let console = Mutex::new(Plain::stderr(true, None));
        let on_record: session::OnRecord = Arc::new(move |record| {
            quietly(&mut *console.lock().unwrap_or_else(PoisonError::into_inner), record)
        });
        let folder = PathBuf::from(".");
        let assignment =
            Assignment { job: &job.spec, recipe: &trainer.recipe, folder: &folder, resume: false };
        let outcome = session::run(place, &terms, Some(signals), &on_record, |rank| {
            thalweg_train::run(rank, &assignment)
        });
        let outcome = outcome.map_err(after_start)?;
        return Ok(Finish { report: None, code: code_of_outcome(outcome) });
    }
    let (folder, views) = open_folder(trainer, job)?;
    let views = Arc::new(Mutex::new(Some(views)));
    let shared = Arc::clone(&views);
    let on_record: session::OnRecord = Arc::new(move |record| {
        let mut views = shared.lock().unwrap_or_else(PoisonError::into_inner);
        views.as_mut().map_or(Ok(()), |views| views.record(record))
    });
    let assignment =
        Assignment { job: &job.spec, recipe: &trainer.recipe, folder: &folder.path, resume: folder.resumes };
    let outcome =
        session::run(place, &terms, Some(signals), &on_record, |rank| thalweg_train::run(rank, &assignment));
    let ended = outcome.map(code_of_outcome).map_err(after_start);
    let views = views.lock().unwrap_or_else(PoisonError::into_inner).take();
    let views = views.ok_or_else(|| Error::internal("the views are gone"))?;
    close(trainer, &folder.path, views, ended, started)
}

/// Checks all that can be checked, claims the folder and opens the views on it.
fn open_folder(trainer: &Trainer, job: &Job) -> Result<(RunFolder, Views)> {
    let folder = RunFolder::claim(&trainer.name, &trainer.folder)?;
    let opened = preflight::check(&job.spec, &trainer.recipe, folder.resumes.then_some(&folder.path))
        .and_then(|()| folder.clear())
        .and_then(|()| folder.keep_job(&job.spec.to_toml()))
        .and_then(|()| open_views(trainer, job, &folder));
    if opened.is_err() {
        folder.abandon();
    }
    Ok((folder, opened?))
}

fn open_views(trainer: &Trainer, job: &Job, folder: &RunFolder) -> Result<Views> {
    let (report, notice) = ReportView::open(&folder.path, &trainer.name, job, folder.resumes);
    let mut views = Views::new(report);
    views.add(Jsonl::open(&folder.path)?);
    views.add(TensorBoard::create(&folder.path, unix_time(), &linux::host_name())?);
    views.add_console(trainer.quiet, job.spec.train.max_steps);
    if let Some(message) = notice {
        views.record(&Record {
            time: unix_time(),
            rank: None,
            event: Event::Notice { level: Level::Warning, message },
        })?;
    }
    Ok(views)
}

/// Writes the report, whatever happened, and says how it ended.
fn close(
    trainer: &Trainer,
    folder: &Path,
    views: Views,
    ended: Result<u8>,
    started: Instant,
) -> Result<Finish> {
    let (view, closed) = views.close();
    let ended = ended.and_then(|code| closed.map(|()| code)).map_err(|error| with_resume_hint(error, folder));
    let outcome = match &ended {
        Ok(0) => view.outcome().unwrap_or(Outcome::Completed),
        Ok(_) => Outcome::Interrupted,
        Err(_) => Outcome::Failed,
    };
    let report = view.finish(outcome, ended.as_ref().err(), started.elapsed());
    let written = report::write(&report, folder);
    let code = ended?;
    written?;
    if trainer.summary && !trainer.quiet {
        eprint!("{}", summary(&report, folder, &[]));
    }
    Ok(Finish { report: Some(report), code })
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

/// What a rank met in the data is its failure once the ranks have started; exit code 2 means that nothing started.
fn after_start(mut error: Error) -> Error {
    if error.kind == Kind::Data {
        error.kind = Kind::RankFailed;
    }
    error
}

fn plan(trainer: &Trainer, job: &Job, folder: &Path, resumes: bool) -> Result<Plan> {
    let world = job.spec.engine.workers;
    let (ranks, master) = match &trainer.nodes {
        Some(nodes) => (share(world, nodes.index, nodes.count), Some((nodes.host.clone(), nodes.port))),
        None => (0..world, None),
    };
    if ranks.is_empty() {
        return Err(Error::job(format!("no worker is left for this host: {world} workers in all"))
            .hint("raise --workers: it counts all hosts"));
    }
    let mut variables = vec![(FOLDER.to_string(), folder.as_os_str().to_owned())];
    if resumes {
        variables.push((RESUMES.into(), "1".into()));
    }
    if trainer.nodes.is_none() && std::env::var_os("THALWEG_TOKEN").is_none_or(|token| token.is_empty()) {
        variables.push(("THALWEG_TOKEN".into(), fresh_token()?.into()));
    }
    let command = match &trainer.command {
        Some(command) => command.clone(),
        None => {
            let program =
                std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
            std::iter::once(program.into_os_string()).chain(std::env::args_os().skip(1)).collect()
        }
    };
    let Terms { step_deadline, join_deadline, .. } = terms(job, trainer.nodes.is_none())?;
    Ok(Plan { command, variables, ranks, world, master, step_deadline, join_deadline })
}

fn fresh_token() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| Error::internal(format!("no randomness: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn terms(job: &Job, local: bool) -> Result<Terms> {
    let deadline = if local { Duration::from_secs(30) } else { Duration::from_secs(600) };
    Ok(Terms {
        job: job.spec.hash(),
        seed: job.spec.train.seed,
        token: std::env::var("THALWEG_TOKEN").unwrap_or_default().into_bytes(),
        step_deadline: job.spec.fault.step_deadline,
        join_deadline: job.spec.fault.join_deadline.or(deadline),
        port: u16::try_from(job.spec.engine.port).unwrap_or(PORT),
    })
}

fn code_of(ended: Ended) -> u8 {
    match ended {
        Ended::Done => 0,
        Ended::Interrupted(signal) => 128 + signal as u8,
    }
}

/// A rank that stops because another one was asked to ends as if by Ctrl-C.
fn code_of_outcome(outcome: Outcome) -> u8 {
    match (outcome, LAST_SIGNAL.load(Ordering::Relaxed)) {
        (Outcome::Interrupted, 0) => 130,
        (Outcome::Interrupted, signal) => 128 + signal as u8,
        _ => 0,
    }
}

/// The last signal that asked this process to stop; 0: none did.
static LAST_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// The signals that ask this process to stop, as they come.
fn signals() -> Result<Receiver<i32>> {
    let failed = |error: std::io::Error| Error::io("cannot watch for signals", &error);
    let mut incoming = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for signal in incoming.forever() {
            LAST_SIGNAL.store(signal, Ordering::Relaxed);
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}
