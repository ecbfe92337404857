//! The command line: sub-commands, flags, and the job that they describe.

use crate::artifact::Artifact;
use crate::command;
use crate::folder;
use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use thalweg_cluster::regular_file;
use thalweg_core::spec::nearest::nearest;
use thalweg_core::spec::{JobLayers, NAME, Origin, optimizer};
use thalweg_core::{Error, Result};
use thalweg_train::registry;

/// Distributed machine-learning training: one job file, one binary, every strategy a choice of a few dials.
///
/// Without a job, trains on the built-in digits with 2 workers.
#[derive(Parser, Debug)]
#[command(name = "thalweg", version, args_conflicts_with_subcommands = true, max_term_width = 100)]
#[command(after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    train: TrainArgs,
}

/// Exit codes and signals, for `--help`.
const EXIT_CODES: &str = "\
Exit codes:
  0              done
  1              a file could not be read or written after the start, or a bug
  2              the job, an argument or the data is wrong; nothing was started
  3              a rank failed, or a loss or gradient is not finite
  4              the ranks did not find each other
  129, 130, 143  stopped by SIGHUP, SIGINT (Ctrl-C) or SIGTERM; the summary names the saved checkpoint

Signals:
  The first SIGHUP, SIGINT or SIGTERM stops the job after its step, with a checkpoint if training has
  begun; another SIGINT or SIGTERM a second or more later ends it at once, without one. SIGUSR1
  writes a checkpoint, and training continues.";

/// The sub-commands.
#[derive(Subcommand, Debug)]
enum Command {
    /// Train a job (what `thalweg` alone does)
    #[command(after_help = EXIT_CODES)]
    Train(TrainArgs),
    /// Add a worker to a running job
    Join(command::join::JoinArgs),
    /// Status of a job: ranks joined, step, last progress; for people and probes
    #[command(after_help = command::status::EXIT_CODES)]
    Status(command::status::StatusArgs),
    /// Train a job under random faults, and report how it recovered
    Chaos(command::chaos::ChaosArgs),
    /// Train the same job under many strategies, and compare the time and rows to a quality
    #[command(after_help = EXIT_CODES)]
    Compare(command::compare::CompareArgs),
    /// Resume a run from its newest checkpoint
    #[command(after_help = EXIT_CODES)]
    Resume(command::resume::ResumeArgs),
    /// Loss and metrics of a trained model on validation rows or another source
    Evaluate(command::evaluate::EvaluateArgs),
    /// Predictions of a trained model for rows of a file or of standard input
    Predict(command::predict::PredictArgs),
    /// Write a commented job file for your own data
    Init(command::init::InitArgs),
    /// Write a trained model as an ONNX file, for other runtimes
    Export(command::export::ExportArgs),
    /// Structure of a model: layers, operators, shapes, parameters, cost and memory
    Inspect(command::inspect::InspectArgs),
    /// Print the resolved job and where each value came from
    Config(ConfigArgs),
    /// Check this machine, its network and the launcher's variables before a job runs
    Doctor(DoctorArgs),
    /// Measure this machine with the code that training uses
    Bench(command::bench::BenchArgs),
    /// List the presets: systems of the literature as settings of the dials
    Strategies {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// A job file and the flags that change it.
#[derive(Args, Debug, Clone, Default)]
pub struct JobArgs {
    /// The job file (TOML); without it, every value is a default: the built-in digits on 2 workers
    pub job: Option<PathBuf>,
    /// Values from the command line.
    #[command(flatten)]
    pub flags: JobFlags,
}

/// Values of a job that the command line sets.
#[derive(Args, Debug, Clone, Default)]
pub struct JobFlags {
    /// The preset: see `thalweg strategies`
    #[arg(long, short = 's', value_name = "PRESET")]
    pub strategy: Option<String>,
    /// Number of workers, over all hosts
    #[arg(long, short = 'w', value_name = "N")]
    pub workers: Option<u64>,
    /// Epochs; short for --set train.epochs=N, as the next four are for keys of the train section
    #[arg(long, value_name = "N")]
    pub epochs: Option<u64>,
    /// Rows of a step, over all workers (train.global_batch)
    #[arg(long, value_name = "ROWS")]
    pub batch: Option<u64>,
    /// The learning rate (train.optimizer.lr)
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, value_parser = rate)]
    pub lr: Option<f64>,
    /// Seed of the random numbers (train.seed)
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// The optimizer (train.optimizer.kind): sgd, momentum, adam, ...
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Set any value of the job: --set train.schedule.kind=cosine; lists take commas (--set data.ignore=id,date) or
    /// TOML; with nothing after the = the key is unset (--set train.target=)
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// Arguments of `train`.
#[derive(Args, Debug, Clone, Default)]
pub struct TrainArgs {
    /// The job.
    #[command(flatten)]
    pub job: JobArgs,
    /// Run folder, for the results (default: runs/NAME-N)
    #[arg(long, short = 'o', value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Resume from the newest checkpoint in that folder, or start from the beginning if there is none; without --out,
    /// the folder is that of the newest run of this name: the runs/NAME-N with the highest N
    #[arg(long)]
    pub resume: bool,
    /// Delete an earlier run in that folder
    #[arg(long, conflicts_with = "resume")]
    pub overwrite: bool,
    /// Print warnings and errors only
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// Print the report as JSON on standard output at the end
    #[arg(long)]
    pub json: bool,
    /// Number of hosts that share the job (start the same command on each)
    #[arg(long, value_name = "N", requires_all = ["node_rank", "master"])]
    pub nnodes: Option<usize>,
    /// Which of the hosts this is, counted from 0
    #[arg(long, value_name = "R", requires = "nnodes")]
    pub node_rank: Option<usize>,
    /// The first host, and the port rank 0 listens on (default 29500)
    #[arg(long, value_name = "HOST[:PORT]", requires = "nnodes")]
    pub master: Option<String>,
    /// Write HOST:PORT of rank 0 to this file while the job runs; under another launcher with MASTER_PORT=0, where rank
    /// 0 takes any port, the other ranks read it from there
    #[arg(long, value_name = "FILE")]
    pub address_file: Option<PathBuf>,
}

/// Arguments of `config`.
#[derive(Args, Debug)]
struct ConfigArgs {
    #[command(flatten)]
    job: JobArgs,
    /// List every key a job can have, with its default and meaning
    #[arg(long)]
    keys: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
struct DoctorArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Answer another host's `--peer` for ten minutes
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "peer")]
    listen: Option<String>,
    /// Measure round trip and clock skew against a host that runs `--listen`
    #[arg(long, value_name = "HOST:PORT")]
    peer: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl DoctorArgs {
    fn run(&self) -> Result<u8> {
        let healthy = match (&self.listen, &self.peer) {
            (Some(address), _) => command::doctor::listen(address).map(|()| true),
            (None, Some(address)) => command::doctor::peer(address, self.json),
            (None, None) => command::doctor::run(&self.job.resolve()?, self.json),
        }?;
        Ok(u8::from(!healthy))
    }
}

impl Cli {
    /// Parses the command line. Help and parse errors end the process.
    pub fn from_command_line() -> Result<Cli> {
        Cli::try_parse().or_else(|parse_error| {
            let first = std::env::args_os().nth(1).unwrap_or_default().to_string_lossy().into_owned();
            // clap takes an unknown word for a job file and then refuses the next one: suggest the command instead.
            let misplaced = !first.starts_with('-') && !Path::new(&first).exists();
            match similar_command(&first).filter(|_| misplaced && parse_error.use_stderr()) {
                Some(name) => Err(Error::job(format!("there is no command `{first}`"))
                    .hint(format!("did you mean `thalweg {name}`?"))),
                None => parse_error.exit(),
            }
        })
    }

    /// Runs the command; returns the exit code.
    pub fn run(self) -> Result<u8> {
        thalweg_graph::instruction_set::check()?;
        match self.command {
            None => command::train::run(&self.train),
            Some(Command::Train(args)) => command::train::run(&args),
            Some(Command::Join(args)) => command::join::run(&args),
            Some(Command::Status(args)) => command::status::run(&args),
            Some(Command::Chaos(args)) => command::chaos::run(&args),
            Some(Command::Compare(args)) => command::compare::run(&args),
            Some(Command::Resume(args)) => command::resume::run(&args),
            Some(Command::Evaluate(args)) => command::evaluate::run(&args).map(|()| 0),
            Some(Command::Predict(args)) => command::predict::run(&args).map(|()| 0),
            Some(Command::Export(args)) => command::export::run(&args).map(|()| 0),
            Some(Command::Inspect(args)) => command::inspect::run(&args).map(|()| 0),
            Some(Command::Init(args)) => command::init::run(&args).map(|()| 0),
            Some(Command::Config(args)) if args.keys => command::config::run_keys(args.json).map(|()| 0),
            Some(Command::Config(args)) => command::config::run(&args.job.resolve()?, args.json).map(|()| 0),
            Some(Command::Doctor(args)) => args.run(),
            Some(Command::Bench(args)) => command::bench::run(&args),
            Some(Command::Strategies { json }) => command::strategies::run(json).map(|()| 0),
        }
    }

    /// Names of the sub-commands, for suggestions after a typing error.
    fn names() -> Vec<String> {
        use clap::CommandFactory;
        Cli::command().get_subcommands().map(|command| command.get_name().to_string()).collect()
    }
}

impl JobFlags {
    /// Adds the flags to the job's layers. An optimizer named by a flag has its own defaults: the file's values for
    /// another kind are dropped.
    fn add_to(&self, layers: &mut JobLayers) -> Result<()> {
        for assignment in &self.set {
            layers.add_assignment(assignment).map_err(Error::job)?;
        }
        for (key, flag, value) in self.shorthands() {
            layers.set(key, value, Origin::Flag(flag));
        }
        if self.optimizer.is_some() {
            optimizer::drop_keys_of_other_kinds(layers);
        }
        Ok(())
    }

    /// Flags that stand for one key of the job: the key, the flag as typed, the value.
    fn shorthands(&self) -> impl Iterator<Item = (&'static str, String, toml::Value)> {
        // A number out of TOML's range becomes a string, which the job's validation refuses.
        let number = |value: u64| {
            let text = value.to_string();
            let value = i64::try_from(value).map_or_else(|_| text.clone().into(), toml::Value::Integer);
            (text, value)
        };
        let text = |value: &String| (value.clone(), value.clone().into());
        let flags = [
            ("engine.workers", "--workers", self.workers.map(number)),
            ("strategy.preset", "--strategy", self.strategy.as_ref().map(text)),
            ("train.epochs", "--epochs", self.epochs.map(number)),
            ("train.global_batch", "--batch", self.batch.map(number)),
            ("train.optimizer.lr", "--lr", self.lr.map(|rate| (rate.to_string(), rate.into()))),
            ("train.seed", "--seed", self.seed.map(number)),
            ("train.optimizer.kind", "--optimizer", self.optimizer.as_ref().map(text)),
        ];
        let given = flags.into_iter().filter_map(|(key, flag, value)| Some((key, flag, value?)));
        given.map(|(key, flag, (text, value))| (key, format!("{flag} {text}"), value))
    }
}

impl JobArgs {
    /// The layers of job file and flags, not yet resolved.
    pub fn layers(&self) -> Result<JobLayers> {
        let mut layers = JobLayers::default();
        if let Some(path) = &self.job {
            let shown = path.display().to_string();
            let text = regular_file::read_to_string(path).map_err(|error| unreadable(path, &error))?;
            let added = match folder::run_of_job_copy(path) {
                Some(run) => layers.add_file_with(&shown, &text, &|path| folder::locate_kept_path(run, path)),
                None => layers.add_file(&shown, &text),
            };
            added.map_err(|message| not_a_job(path, message))?;
        }
        self.flags.add_to(&mut layers)?;
        Ok(layers)
    }

    /// The job, resolved and validated.
    pub fn resolve(&self) -> Result<thalweg_core::Job> {
        registry::resolve(self.layers()?)
    }

    /// Arguments that repeat this job apart from `--workers`; `None` if flags change it.
    pub(crate) fn rerun_args(&self) -> Option<String> {
        let plain =
            self.flags.set.is_empty() && self.flags.shorthands().all(|(key, ..)| key == "engine.workers");
        plain.then(|| self.job.as_ref().map_or(String::new(), |path| path.display().to_string()))
    }

    /// The job's name: its `name` key, or else that of its file or data without extension; for the `job.toml` of a run,
    /// that of the run folder.
    pub fn name(&self, layers: &JobLayers) -> String {
        if let Some(name) = layers.get(NAME).and_then(|(value, _)| value.as_str()) {
            return name.into();
        }
        if let Some(name) = self.job.as_deref().and_then(folder::run_of_job_copy).and_then(folder::name_of) {
            return name;
        }
        let source = layers.get("data.source").and_then(|(value, _)| value.as_str()).unwrap_or("digits");
        let path = self.job.clone().unwrap_or_else(|| PathBuf::from(source.trim_start_matches("builtin:")));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.strip_suffix(".toml").unwrap_or_else(|| thalweg_data::stem(&name));
        let plain: String = stem.chars().filter(|c| !"*?[]".contains(*c)).collect();
        if plain.is_empty() { "run".into() } else { plain }
    }
}

/// Parses a learning rate; the job's validation checks its range.
fn rate(typed: &str) -> std::result::Result<f64, String> {
    typed.parse().map_err(|_| "a number is expected, such as 0.01".into())
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::InvalidData || path.is_dir() {
        return not_a_job(path, format!("{} is not UTF-8 text", path.display()));
    }
    let mut refused = Error::io(format!("cannot read the job file {}", path.display()), error);
    refused.kind = thalweg_core::Kind::Job;
    if error.kind() == std::io::ErrorKind::Other {
        // A pipe or a device.
        return refused.hint("every rank reads the job file: write it to a file first and name that");
    }
    refused.hint = match similar_command(&path.to_string_lossy()) {
        Some(name) => Some(format!("did you mean the command `thalweg {name}`?")),
        None if error.kind() == std::io::ErrorKind::NotFound => thalweg_data::file_not_found(path).hint,
        None => refused.hint.take(),
    };
    refused
}

/// The command with a name similar to `typed`.
fn similar_command(typed: &str) -> Option<String> {
    let names = Cli::names();
    let close = nearest(typed, names.iter().map(String::as_str)).filter(|name| *name != typed);
    close.map(String::from)
}

/// The error for a file that is not a job; for a known kind of file it names the commands that take it.
fn not_a_job(path: &Path, message: String) -> Error {
    match Artifact::of(path) {
        Artifact::Job | Artifact::Unknown => Error::job(message),
        other => other.refused(path, "a job", ""),
    }
}
