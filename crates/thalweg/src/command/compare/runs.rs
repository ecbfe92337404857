//! The runs of a comparison: each in a run folder of its own, started, resumed, or read if it is finished.

use super::candidate::{Candidate, Variant};
use super::figures::{Figures, values};
use crate::cli::TrainArgs;
use crate::scratch::Scratch;
use crate::trainer::{RunResult, Trainer};
use crate::view::report;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use thalweg_core::event::Outcome;
use thalweg_core::report::Report;
use thalweg_core::spec::JobLayers;
use thalweg_core::{Error, Job, Kind, Result};
use thalweg_train::kept;
use thalweg_train::registry;

/// Reports of the parts of an interrupted run begin with this; the step that the part began at follows.
const PART: &str = "report-of-step-";

/// How a run ended.
pub(super) enum Ended {
    Done(Box<Figures>),
    /// By a signal, with this exit code.
    Interrupted(u8),
}

/// Where the runs of a comparison are.
pub(super) struct Runs {
    folder: PathBuf,
    overwrite: bool,
    address_file: Option<PathBuf>,
    /// For the jobs that workers read.
    scratch: Scratch,
}

/// What a folder has of a run.
enum Found {
    /// Nothing that counts: the run begins.
    Nothing,
    Finished(Box<Report>),
    /// The run goes on from its checkpoint.
    Interrupted,
}

impl Runs {
    pub(super) fn new(folder: PathBuf, args: &TrainArgs) -> Result<Runs> {
        let (overwrite, address_file) = (args.overwrite, args.address_file.clone());
        Ok(Runs { folder, overwrite, address_file, scratch: Scratch::create("compare")? })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether a run is finished. A folder with a run of another job is refused.
    pub(super) fn is_finished(&self, candidate: &Candidate<'_>, variant: Variant) -> Result<bool> {
        let (job, _) = resolved(candidate, variant)?;
        let folder = self.folder.join(candidate.folder(variant));
        Ok(matches!(self.find(&folder, &job)?, Found::Finished(_)))
    }

    /// Runs one variant to its end, unless it is finished.
    pub(super) fn run(&self, candidate: &Candidate<'_>, variant: Variant) -> Result<Ended> {
        let (job, text) = resolved(candidate, variant)?;
        let folder = self.folder.join(candidate.folder(variant));
        let found = self.find(&folder, &job)?;
        if let Found::Finished(last) = found {
            return Ok(Ended::Done(Box::new(figures(&job, &folder, *last)?)));
        }
        let resume = matches!(found, Found::Interrupted);
        match resume {
            true => keep_part(&folder)?,
            false => remove_parts(&folder)?,
        }
        let trainer = self.trainer(&candidate.entry.folder(), &text)?.quiet(true);
        let ended = trainer.out(&folder).resume(resume).overwrite(!resume).finish();
        match ended {
            // From the file, as when it is read again: numbers may differ in their last digit.
            Ok(RunResult { code: 0, .. }) => match report::read(&folder)? {
                Some(last) => Ok(Ended::Done(Box::new(figures(&job, &folder, last)?))),
                None => Err(Error::internal("a run without a report")),
            },
            Ok(RunResult { code, .. }) => Ok(Ended::Interrupted(code)),
            // The strategy's own failure is a result; others are not.
            Err(error) if matches!(error.kind, Kind::NotFinite | Kind::RankFailed) => {
                let failure = Some(error.message);
                Ok(Ended::Done(Box::new(Figures { seed: variant.seed, failure, ..Figures::default() })))
            }
            Err(error) => Err(error),
        }
    }

    fn find(&self, folder: &Path, job: &Job) -> Result<Found> {
        // Of a killed run nobody knows what its first part did.
        let found = if self.overwrite { None } else { report::read(folder)? };
        let Some(found) = found else { return Ok(Found::Nothing) };
        if let Some(difference) = difference(&found, job) {
            return Err(Error::job(format!("{} holds a run of another job: {difference}", folder.display()))
                .hint("choose another --out, or replace its runs with --overwrite"));
        }
        Ok(match found.outcome {
            Outcome::Completed | Outcome::TargetReached | Outcome::TargetMissed => {
                Found::Finished(Box::new(found))
            }
            Outcome::Interrupted if found.checkpoint_step.is_some() => Found::Interrupted,
            Outcome::Interrupted | Outcome::Failed => Found::Nothing,
        })
    }

    /// A trainer whose workers read the same job from a file.
    fn trainer(&self, name: &str, text: &str) -> Result<Trainer> {
        let file = self.scratch.0.join("job.toml");
        let unwritable = |error| Error::io(format_args!("cannot write {}", file.display()), &error);
        fs::write(&file, text).map_err(unwritable)?;
        let program = std::env::current_exe();
        let program = program.map_err(|error| Error::io("cannot find this program", &error))?;
        let command: Vec<OsString> = vec![program.into(), "train".into(), file.clone().into()];
        let trainer = Trainer::from_layers(name, layers(text)?).worker_command(command);
        Ok(trainer.address_file(self.address_file.clone()))
    }
}

/// The job of a variant, and as the file that its workers read.
fn resolved(candidate: &Candidate<'_>, variant: Variant) -> Result<(Job, String)> {
    let text = kept(&registry::resolve(candidate.layers_of(variant))?.spec).to_toml();
    Ok((registry::resolve(layers(&text)?)?, text))
}

fn layers(text: &str) -> Result<JobLayers> {
    let mut layers = JobLayers::default();
    layers.add_file("the job of the comparison", text).map_err(Error::internal)?;
    Ok(layers)
}

/// The first key in which the job of a report is another.
fn difference(report: &Report, job: &Job) -> Option<String> {
    let now = values(&job.spec);
    let keys = report.job.keys().chain(now.keys());
    let shown = |value: Option<&serde_json::Value>| value.map_or("not set".into(), ToString::to_string);
    let differs = |key: &&String| report.job.get(*key) != now.get(*key);
    let key = keys.into_iter().find(differs)?;
    Some(format!("{key} is {} there and {} here", shown(report.job.get(key)), shown(now.get(key))))
}

/// The figures of a run with that last report.
fn figures(job: &Job, folder: &Path, last: Report) -> Result<Figures> {
    let mut parts = Vec::new();
    for path in parts_of(folder) {
        let text = fs::read_to_string(&path);
        let text = text.map_err(|error| Error::io(format_args!("cannot read {}", path.display()), &error))?;
        let part = serde_json::from_str::<Report>(&text)
            .map_err(|error| Error::new(Kind::Io, format!("{} is not a report ({error})", path.display())))?;
        parts.push(part);
    }
    // A run without a step left has the report of the part before.
    parts.retain(|part| part.first_step < last.first_step);
    parts.push(last);
    parts.sort_by_key(|part| part.first_step);
    Ok(Figures::of(&job.spec, &parts))
}

/// Keeps the report of the part before. If the next one is killed there is no other, and the run begins again.
fn keep_part(folder: &Path) -> Result<()> {
    let Some(part) = report::read(folder)? else { return Ok(()) };
    let kept = folder.join(format!("{PART}{:09}.json", part.first_step));
    fs::rename(folder.join(report::FILE), &kept)
        .map_err(|error| Error::io(format_args!("cannot write {}", kept.display()), &error))
}

fn remove_parts(folder: &Path) -> Result<()> {
    parts_of(folder).iter().try_for_each(|path| {
        fs::remove_file(path)
            .map_err(|error| Error::io(format_args!("cannot remove {}", path.display()), &error))
    })
}

fn parts_of(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_part = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PART))
    };
    entries.map(|entry| entry.path()).filter(is_part).collect()
}
