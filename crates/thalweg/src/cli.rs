//! The command line: what can be typed, and which command it becomes.

use crate::artifact::Artifact;
use crate::command;
use crate::folder;
use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use thalweg_cluster::regular;
use thalweg_core::spec::nearest::nearest;
use thalweg_core::spec::{Layers, NAME, Origin, optimizer};
use thalweg_core::{Error, Result};

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

/// What a job ends with, and the signals it knows.
const EXIT_CODES: &str = "\
Exit codes:
  0              done
  1              a file could not be read or written after the start, or a bug
  2              the job, an argument or the data is wrong; nothing was started
  3              a rank failed, or a loss or gradient is not finite
  4              the ranks did not find each other
  129, 130, 143  stopped by SIGHUP, SIGINT (Ctrl-C) or SIGTERM; the last lines say what was saved

Signals:
  The first SIGHUP, SIGINT or SIGTERM stops the job after its step, with a checkpoint if training has
  begun; another SIGINT or SIGTERM a second or more later leaves at once, without one. SIGUSR1 writes
  a checkpoint and goes on.";

/// The sub-commands.
#[derive(Subcommand, Debug)]
enum Command {
    /// Train a job (what `thalweg` alone does)
    #[command(after_help = EXIT_CODES)]
    Train(TrainArgs),
    /// Add a worker to a job that runs
    Join(command::join::JoinArgs),
    /// How a job goes: ranks joined, step, last progress; for people and probes
    #[command(after_help = command::status::EXIT_CODES)]
    Status(command::status::StatusArgs),
    /// Train a job under random faults, and tell how it came through
    Chaos(command::chaos::ChaosArgs),
    /// Go on with a run from its newest checkpoint
    #[command(after_help = EXIT_CODES)]
    Resume(command::resume::ResumeArgs),
    /// Loss and metrics of a trained model on validation rows or another source
    Evaluate(command::evaluate::EvaluateArgs),
    /// Answers of a trained model for rows of a file or of standard input
    Predict(command::predict::PredictArgs),
    /// Write a commented job file for a data file of your own
    Init(command::init::InitArgs),
    /// Write a trained model as an ONNX file, for other runtimes
    Export(command::export::ExportArgs),
    /// What a model is made of: layers, operators, shapes, parameters, cost and memory
    Inspect(command::inspect::InspectArgs),
    /// Print the resolved job and where each value came from
    Config(ConfigArgs),
    /// Look at this machine, its network and the launcher's variables before a job does
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

/// How a job is given.
#[derive(Args, Debug, Clone, Default)]
pub struct JobArgs {
    /// The job file (TOML); without it, every value is a default: the built-in digits on 2 workers
    pub job: Option<PathBuf>,
    /// What the command line changes.
    #[command(flatten)]
    pub flags: JobFlags,
}

/// Values of a job that the command line sets.
#[derive(Args, Debug, Clone, Default)]
pub struct JobFlags {
    /// The preset: see `thalweg strategies`
    #[arg(long, short = 's', value_name = "PRESET")]
    pub strategy: Option<String>,
    /// How many workers, over all hosts
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
    /// What random numbers come from (train.seed)
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// The optimizer (train.optimizer.kind): sgd, momentum, adam, ...
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Set any value of the job: --set train.schedule.kind=cosine; lists take commas (--set data.ignore=id,date) or TOML;
    /// with nothing behind the = the key is unset (--set train.target=)
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// What `train` takes.
#[derive(Args, Debug, Clone, Default)]
pub struct TrainArgs {
    /// The job.
    #[command(flatten)]
    pub job: JobArgs,
    /// Where results go (default: runs/NAME-N)
    #[arg(long, short = 'o', value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Go on from the newest checkpoint in that folder, or start fresh if there is none; without --out, the folder is that
    /// of the newest run of this name: the runs/NAME-N with the highest N
    #[arg(long)]
    pub resume: bool,
    /// Throw away an earlier run in that folder
    #[arg(long, conflicts_with = "resume")]
    pub overwrite: bool,
    /// Print nothing but warnings and errors
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// Print the report as JSON on standard output at the end
    #[arg(long)]
    pub json: bool,
    /// How many hosts share the job (start the same command on each)
    #[arg(long, value_name = "N", requires_all = ["node_rank", "master"])]
    pub nnodes: Option<usize>,
    /// Which of the hosts this is, counted from 0
    #[arg(long, value_name = "R", requires = "nnodes")]
    pub node_rank: Option<usize>,
    /// The first host, and the port rank 0 listens on (default 29500)
    #[arg(long, value_name = "HOST[:PORT]", requires = "nnodes")]
    pub master: Option<String>,
    /// Write HOST:PORT of rank 0 to this file for as long as the job runs; under another launcher with MASTER_PORT=0, where
    /// rank 0 takes any port, the other ranks find it there
    #[arg(long, value_name = "FILE")]
    pub address_file: Option<PathBuf>,
}

/// What `config` takes.
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

/// What `doctor` takes.
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
    /// What was typed. Help, and what cannot be understood, ends the program.
    pub fn of_command_line() -> Result<Cli> {
        Cli::try_parse().or_else(|complaint| {
            let first = std::env::args_os().nth(1).unwrap_or_default().to_string_lossy().into_owned();
            // A word that is no command is taken for a job file, and the next one has no business behind it.
            let misplaced = !first.starts_with('-') && !Path::new(&first).exists();
            match meant_command(&first).filter(|_| misplaced && complaint.use_stderr()) {
                Some(name) => Err(Error::job(format!("there is no command `{first}`"))
                    .hint(format!("did you mean `thalweg {name}`?"))),
                None => complaint.exit(),
            }
        })
    }

    /// Carries out what was typed; the answer is the exit code.
    pub fn run(self) -> Result<u8> {
        thalweg_graph::instructions::check()?;
        match self.command {
            None => command::train::run(&self.train),
            Some(Command::Train(args)) => command::train::run(&args),
            Some(Command::Join(args)) => command::join::run(&args),
            Some(Command::Status(args)) => command::status::run(&args),
            Some(Command::Chaos(args)) => command::chaos::run(&args),
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

    /// The names of the sub-commands, for those who mistyped one.
    pub fn names() -> Vec<String> {
        use clap::CommandFactory;
        Cli::command().get_subcommands().map(|command| command.get_name().to_string()).collect()
    }
}

impl JobFlags {
    /// Adds what the flags say. An optimizer that a flag names comes with its own numbers, not with those of the file for
    /// another kind.
    fn add_to(&self, layers: &mut Layers) -> Result<()> {
        for assignment in &self.set {
            layers.add_assignment(assignment).map_err(Error::job)?;
        }
        for (key, flag, value) in self.shorthands() {
            layers.set(key, value, Origin::Flag(flag));
        }
        if self.optimizer.is_some() {
            optimizer::make_way(layers);
        }
        Ok(())
    }

    /// Flags that stand for one key of the job: the key, the flag as typed, the value.
    fn shorthands(&self) -> impl Iterator<Item = (&'static str, String, toml::Value)> {
        // A number that a job cannot hold is left to the job to refuse.
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
        let said = flags.into_iter().filter_map(|(key, flag, said)| Some((key, flag, said?)));
        said.map(|(key, flag, (text, value))| (key, format!("{flag} {text}"), value))
    }
}

impl JobArgs {
    /// What file and flags say, in layers.
    pub fn layers(&self) -> Result<Layers> {
        let mut layers = Layers::default();
        if let Some(path) = &self.job {
            let shown = path.display().to_string();
            let text = regular::read_to_string(path).map_err(|error| unreadable(path, &error))?;
            let added = match folder::of_copy(path) {
                Some(run) => layers.add_file_with(&shown, &text, &|path| folder::kept_path(run, path)),
                None => layers.add_file(&shown, &text),
            };
            added.map_err(|complaint| not_a_job(path, complaint))?;
        }
        self.flags.add_to(&mut layers)?;
        Ok(layers)
    }

    /// The job, resolved and validated.
    pub fn resolve(&self) -> Result<thalweg_core::Job> {
        thalweg_core::Job::resolve(self.layers()?)
    }

    /// The arguments that give this job again, whatever the workers; nothing if they are more than its file.
    pub fn again(&self) -> Option<String> {
        let plain =
            self.flags.set.is_empty() && self.flags.shorthands().all(|(key, ..)| key == "engine.workers");
        plain.then(|| self.job.as_ref().map_or(String::new(), |path| path.display().to_string()))
    }

    /// The job's name: what it says itself, or else that of its file or of its data, without the ending. The copy of a run
    /// that does not say it has the name of its folder.
    pub fn name(&self, layers: &Layers) -> String {
        if let Some(name) = layers.get(NAME).and_then(|(value, _)| value.as_str()) {
            return name.into();
        }
        if let Some(name) = self.job.as_deref().and_then(folder::of_copy).and_then(folder::name_of) {
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

/// A learning rate as typed; whether a job can have it is left to the job.
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
    refused.hint = match meant_command(&path.to_string_lossy()) {
        Some(name) => Some(format!("did you mean the command `thalweg {name}`?")),
        None if error.kind() == std::io::ErrorKind::NotFound => thalweg_data::missing(path).hint,
        None => refused.hint.take(),
    };
    refused
}

/// The command that a word other than its name may mean.
fn meant_command(typed: &str) -> Option<String> {
    let names = Cli::names();
    let close = nearest(typed, names.iter().map(String::as_str)).filter(|name| *name != typed);
    close.map(String::from)
}

/// What is wrong with a job file; another kind of file is told which command takes it.
fn not_a_job(path: &Path, complaint: String) -> Error {
    match Artifact::of(path) {
        Artifact::Job | Artifact::Unknown => Error::job(complaint),
        other => other.refused(path, "a job", ""),
    }
}
