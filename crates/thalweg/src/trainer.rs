//! [`Trainer`]: the library form of `thalweg train`.

use crate::components::{CustomComponents, SpecComponents};
use crate::external_launcher;
use crate::folder::FolderOptions;
use crate::launch;
use crate::preflight;
use crate::simulation;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thalweg_cluster::engine::environment::{self, RankEnvironment};
use thalweg_cluster::engine::local::LaunchControl;
use thalweg_core::report::Report;
use thalweg_core::spec::engine::EngineKind;
use thalweg_core::spec::{JobLayers, Origin};
use thalweg_core::{Error, JobSpec, Kind, Model, Result, Schema};
use thalweg_data::Data;
use thalweg_train::registry;

/// Position of this host in a job on several hosts (`--nnodes`, `--node-rank`, `--master`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Number of hosts.
    pub count: usize,
    /// Index of this host, from 0.
    pub index: usize,
    /// Name or address of host 0.
    pub host: String,
    /// Port that rank 0 listens on.
    pub port: u16,
}

/// A job, its data and model, and the run folder.
///
/// [`Trainer::run`] starts the workers: the same program with the same arguments. Each worker executes the program up
/// to the same call, which trains as one rank and then ends the process. Code before that call therefore runs in every
/// process: it must behave the same in all of them, and should be quick.
#[derive(Default)]
pub struct Trainer {
    pub(crate) name: String,
    pub(crate) layers: JobLayers,
    pub(crate) components: CustomComponents,
    pub(crate) folder: FolderOptions,
    pub(crate) nodes: Option<Nodes>,
    pub(crate) quiet: bool,
    pub(crate) summary: bool,
    pub(crate) rerun_args: Option<String>,
    pub(crate) command: Option<Vec<OsString>>,
    pub(crate) time_limit: Option<(u64, Duration)>,
    pub(crate) address_file: Option<PathBuf>,
    pub(crate) director: Option<Arc<Mutex<dyn LaunchControl>>>,
    invalid_settings: Vec<String>,
}

/// The end of a run.
pub struct RunResult {
    /// The content of `report.json`; `None` on a rank that does not write it.
    pub report: Option<Report>,
    /// Exit code of the process.
    pub code: u8,
}

impl Trainer {
    /// A job with all defaults. The name is that of the run folder, `runs/NAME-N`.
    pub fn new(name: &str) -> Trainer {
        Trainer { name: name.into(), ..Trainer::default() }
    }

    /// A job from the settings of a job file and the command line.
    pub(crate) fn from_layers(name: &str, layers: JobLayers) -> Trainer {
        Trainer { layers, ..Trainer::new(name) }
    }

    /// Sets a value of the job, as `--set` does: `train.epochs=30`. An invalid setting is reported by [`Trainer::run`].
    pub fn set(mut self, assignment: &str) -> Trainer {
        if let Err(message) = self.layers.add_assignment(assignment) {
            self.invalid_settings.push(message);
        }
        self
    }

    /// Opens the data with a closure instead of from `data.source`; its rows are not scaled. Simulated ranks
    /// (`engine.kind = "sim"`) are threads of one process and share what it returns.
    pub fn data(mut self, open: impl Fn(&JobSpec) -> Result<Data> + Send + Sync + 'static) -> Trainer {
        self.components.data = Some(Box::new(open));
        self
    }

    /// Builds the model with a closure instead of from the `[model]` section, once for each rank.
    pub fn model<M: Model + 'static>(
        mut self,
        build: impl Fn(&Schema) -> Result<M> + Send + Sync + 'static,
    ) -> Trainer {
        self.components.model = Some(Box::new(move |schema| Ok(Box::new(build(schema)?))));
        self
    }

    /// The run folder; without it, `runs/NAME-N`.
    pub fn out(mut self, folder: impl Into<PathBuf>) -> Trainer {
        self.folder.out = Some(folder.into());
        self
    }

    /// Resumes from the newest checkpoint of the run folder, or starts from the beginning if there is none.
    pub fn resume(mut self, resume: bool) -> Trainer {
        self.folder.resume = resume;
        self
    }

    /// Deletes the files of an earlier run in the run folder.
    pub fn overwrite(mut self, overwrite: bool) -> Trainer {
        self.folder.overwrite = overwrite;
        self
    }

    /// Prints warnings and errors only.
    pub fn quiet(mut self, quiet: bool) -> Trainer {
        self.quiet = quiet;
        self
    }

    /// Prints a summary at the end.
    pub(crate) fn with_summary(mut self) -> Trainer {
        self.summary = true;
        self
    }

    /// Arguments of `thalweg train` that repeat this job, for the summary.
    pub(crate) fn rerun_args(mut self, args: Option<String>) -> Trainer {
        self.rerun_args = args;
        self
    }

    /// Runs the job on several hosts, of which this is one; every host makes the same call.
    pub fn nodes(mut self, nodes: Option<Nodes>) -> Trainer {
        self.nodes = nodes;
        self
    }

    /// A file that holds the address of rank 0, `HOST:PORT`, while the job runs.
    pub fn address_file(mut self, path: Option<PathBuf>) -> Trainer {
        self.address_file = path;
        self
    }

    /// Stops the job, as Ctrl-C does, `time` after step `steps`.
    pub(crate) fn stop_after(mut self, steps: u64, time: Duration) -> Trainer {
        self.time_limit = Some((steps, time));
        self
    }

    /// Passes every event to `director`, which may inject faults and start workers.
    pub(crate) fn director(mut self, director: Arc<Mutex<dyn LaunchControl>>) -> Trainer {
        self.director = Some(director);
        self
    }

    /// The command of the workers; without it, that of this process.
    pub(crate) fn worker_command(mut self, command: Vec<OsString>) -> Trainer {
        self.command = Some(command);
        self
    }

    /// Trains and returns the report. In a worker this never returns.
    pub fn run(self) -> Result<Report> {
        let result = self.finish()?;
        match result.report {
            Some(report) if result.code == 0 => Ok(report),
            Some(report) => {
                let saved = report.checkpoint_step.map_or("no checkpoint is written".into(), |step| {
                    format!("the checkpoint of step {step} is written")
                });
                Err(Error::new(Kind::Interrupted, format!("interrupted; {saved}")))
            }
            // Under another launcher only rank 0 has a report.
            None => std::process::exit(i32::from(result.code)),
        }
    }

    /// Trains, and returns the exit code beside the report: an interrupted run is not an error here. In a worker this
    /// never returns.
    pub fn finish(mut self) -> Result<RunResult> {
        if !self.invalid_settings.is_empty() {
            return Err(Error::job(self.invalid_settings.join("\n  ")));
        }
        crate::token::of_user()?;
        let rank_env = match self.nodes {
            Some(_) if std::env::var_os(thalweg_cluster::launcher_connection::VARIABLE).is_none() => None,
            _ => environment::detect(&|name| std::env::var(name).ok())?,
        };
        if let Some(rank_env) = &rank_env {
            self.adopt_world(rank_env);
        }
        let job = registry::resolve(std::mem::take(&mut self.layers))?;
        preflight::check_transport(&job.spec, rank_env.as_ref())?;
        let from_job = SpecComponents::new(&job.spec);
        let has_custom_rows = self.components.data.is_some();
        self.components.from_job = Some(if has_custom_rows { from_job.with_custom_rows() } else { from_job });
        if job.spec.engine.kind == EngineKind::Sim {
            return simulation::run(&self, &job, rank_env.as_ref());
        }
        match rank_env {
            None => launch::run_launcher(&self, &job),
            Some(rank_env) if rank_env.launcher == "thalweg" => launch::run_worker(&self, &job, &rank_env),
            Some(rank_env) => external_launcher::run_rank(&self, &job, &rank_env),
        }
    }

    /// Lower bound of the ranks on this machine: all of them, or 1 with several hosts or another launcher.
    pub(crate) fn local_ranks(&self, job: &JobSpec) -> usize {
        let rank_env = environment::detect(&|name| std::env::var(name).ok());
        if self.nodes.is_none() && matches!(rank_env, Ok(None)) { registry::ranks(job) } else { 1 }
    }

    /// Sets `engine.workers` to the world size of the launcher, minus the parameter servers.
    fn adopt_world(&mut self, rank_env: &RankEnvironment) {
        let workers = rank_env.world.saturating_sub(registry::servers_of_layers(self.layers.clone()));
        let workers = i64::try_from(workers).unwrap_or(i64::MAX);
        let same =
            self.layers.get("engine.workers").is_some_and(|(value, _)| value.as_integer() == Some(workers));
        if !same {
            let origin = Origin::Flag(format!("{} (world of {})", rank_env.launcher, rank_env.world));
            self.layers.set("engine.workers", workers.into(), origin);
        }
    }
}
