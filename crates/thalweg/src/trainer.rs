//! `thalweg train`, as a value: a job, where its data and model come from, and where its results go.

use crate::folder::Choice;
use crate::foreign;
use crate::launch;
use crate::preflight;
use crate::recipe::{JobRecipe, OwnRecipe};
use crate::simulation;
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use thalweg_cluster::engine::environment::{self, Place};
use thalweg_cluster::engine::local::Director;
use thalweg_core::report::Report;
use thalweg_core::spec::engine::EngineKind;
use thalweg_core::spec::{Job, Layers, Origin};
use thalweg_core::{Error, JobSpec, Kind, Model, Result, Schema};
use thalweg_data::Data;

/// This host's part of a job on several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// How many hosts there are.
    pub count: usize,
    /// Which one this is, counted from 0.
    pub index: usize,
    /// Name or address of the first.
    pub host: String,
    /// The port rank 0 listens on.
    pub port: u16,
}

/// A job ready to run.
///
/// In the process that calls [`Trainer::run`], it starts the workers: the same program with the same arguments. In
/// each of them the program runs again up to the same call, which then does the worker's part and ends the process.
/// So what stands before that call must be the same in all of them, and should be quick.
#[derive(Default)]
pub struct Trainer {
    pub(crate) name: String,
    pub(crate) layers: Layers,
    pub(crate) recipe: OwnRecipe,
    pub(crate) folder: Choice,
    pub(crate) nodes: Option<Nodes>,
    pub(crate) quiet: bool,
    pub(crate) summary: bool,
    pub(crate) again: Option<String>,
    pub(crate) command: Option<Vec<OsString>>,
    pub(crate) time_limit: Option<(u64, Duration)>,
    pub(crate) address_file: Option<PathBuf>,
    pub(crate) director: Option<Rc<RefCell<dyn Director>>>,
    complaints: Vec<String>,
}

/// How a job ended.
pub struct Finish {
    /// What is written in `report.json`; nothing on a rank that does not write it.
    pub report: Option<Report>,
    /// The exit code of the process.
    pub code: u8,
}

impl Trainer {
    /// A job with all defaults; the name becomes the run folder's.
    pub fn new(name: &str) -> Trainer {
        Trainer { name: name.into(), ..Trainer::default() }
    }

    /// A job from layers that were read already.
    pub fn from_layers(name: &str, layers: Layers) -> Trainer {
        Trainer { layers, ..Trainer::new(name) }
    }

    /// Sets a value of the job, as `--set` does: `train.epochs=30`.
    pub fn set(mut self, assignment: &str) -> Trainer {
        if let Err(complaint) = self.layers.add_assignment(assignment) {
            self.complaints.push(complaint);
        }
        self
    }

    /// Brings data of one's own.
    pub fn data(mut self, open: impl Fn(&JobSpec) -> Result<Data> + 'static) -> Trainer {
        self.recipe.data = Some(Box::new(open));
        self
    }

    /// Brings a model of one's own.
    pub fn model<M: Model + 'static>(mut self, build: impl Fn(&Schema) -> Result<M> + 'static) -> Trainer {
        self.recipe.model = Some(Box::new(move |schema| Ok(Box::new(build(schema)?))));
        self
    }

    /// Where the results go.
    pub fn out(mut self, folder: impl Into<PathBuf>) -> Trainer {
        self.folder.out = Some(folder.into());
        self
    }

    /// Goes on from the newest checkpoint, or starts fresh if there is none.
    pub fn resume(mut self, resume: bool) -> Trainer {
        self.folder.resume = resume;
        self
    }

    /// Throws away what the folder holds of an earlier run.
    pub fn overwrite(mut self, overwrite: bool) -> Trainer {
        self.folder.overwrite = overwrite;
        self
    }

    /// Prints nothing but warnings and errors.
    pub fn quiet(mut self, quiet: bool) -> Trainer {
        self.quiet = quiet;
        self
    }

    /// Prints a summary at the end.
    pub fn with_summary(mut self) -> Trainer {
        self.summary = true;
        self
    }

    /// What stands behind `thalweg train` to run this job again, for the summary.
    pub(crate) fn again(mut self, again: Option<String>) -> Trainer {
        self.again = again;
        self
    }

    /// One host of several.
    pub fn nodes(mut self, nodes: Option<Nodes>) -> Trainer {
        self.nodes = nodes;
        self
    }

    /// Where rank 0 writes the address it listens on, for as long as the job runs.
    pub fn address_file(mut self, path: Option<PathBuf>) -> Trainer {
        self.address_file = path;
        self
    }

    /// Asks the workers to stop, as Ctrl-C would, so much time after they have made some steps.
    pub fn stop_after(mut self, steps: u64, time: Duration) -> Trainer {
        self.time_limit = Some((steps, time));
        self
    }

    /// Lets somebody follow the job and interfere with it.
    pub fn director(mut self, director: Rc<RefCell<dyn Director>>) -> Trainer {
        self.director = Some(director);
        self
    }

    /// What the workers run, if not this very command.
    pub fn worker_command(mut self, command: Vec<OsString>) -> Trainer {
        self.command = Some(command);
        self
    }

    /// Trains and returns the report. In a worker this never returns.
    pub fn run(self) -> Result<Report> {
        let finish = self.finish()?;
        match finish.report {
            Some(report) if finish.code == 0 => Ok(report),
            Some(report) => {
                let saved = report.checkpoint_step.map_or("no checkpoint is written".into(), |step| {
                    format!("the checkpoint of step {step} is written")
                });
                Err(Error::new(Kind::Interrupted, format!("interrupted; {saved}")))
            }
            // A rank of another launcher that is not rank 0 has nothing to report.
            None => std::process::exit(i32::from(finish.code)),
        }
    }

    /// Trains. In a worker this never returns.
    pub fn finish(mut self) -> Result<Finish> {
        if !self.complaints.is_empty() {
            return Err(Error::job(self.complaints.join("\n  ")));
        }
        crate::token::of_user()?;
        let place = match self.nodes {
            Some(_) if std::env::var_os(thalweg_cluster::uplink::VARIABLE).is_none() => None,
            _ => environment::detect(&|name| std::env::var(name).ok())?,
        };
        if let Some(place) = &place {
            self.adopt_world(place);
        }
        let job = Job::resolve(std::mem::take(&mut self.layers))?;
        preflight::check_carrier(&job.spec, place.as_ref())?;
        let from_job = JobRecipe::new(&job.spec);
        let has_own_rows = self.recipe.data.is_some();
        self.recipe.from_job = Some(if has_own_rows { from_job.with_own_rows() } else { from_job });
        if job.spec.engine.kind == EngineKind::Sim {
            return simulation::run(&self, &job, place.as_ref());
        }
        match place {
            None => launch::as_launcher(&self, &job),
            Some(place) if place.launcher == "thalweg" => launch::as_worker(&self, &job, &place),
            Some(place) => foreign::as_rank(&self, &job, &place),
        }
    }

    /// Ranks that run on this machine at least: all, unless there are other hosts or another launcher.
    pub(crate) fn local_ranks(&self, job: &JobSpec) -> usize {
        let place = environment::detect(&|name| std::env::var(name).ok());
        if self.nodes.is_none() && matches!(place, Ok(None)) { job.ranks() } else { 1 }
    }

    /// Another launcher decides how many ranks there are; those that serve are no workers.
    fn adopt_world(&mut self, place: &Place) {
        let workers = place.world.saturating_sub(Job::servers(self.layers.clone()));
        let workers = i64::try_from(workers).unwrap_or(i64::MAX);
        let same =
            self.layers.get("engine.workers").is_some_and(|(value, _)| value.as_integer() == Some(workers));
        if !same {
            let origin = Origin::Flag(format!("{} (world of {})", place.launcher, place.world));
            self.layers.set("engine.workers", workers.into(), origin);
        }
    }
}
