//! `thalweg compare`: the same job under many strategies, by the time and the rows that they take to a quality.
//!
//! ```text
//! entries, planned   the list of --strategies: which run, and which the job refuses
//! candidate          the job of each, on each network; its rates and seeds
//! runs               a run folder for each rate and seed: run, resumed, or read
//! figures, summary   what a run came to; medians over seeds, the best rate, the ratio to one worker
//! table, page        what is shown
//! ```

mod candidate;
mod entries;
mod figures;
mod networks;
mod output;
mod page;
mod planned;
mod runs;
mod summary;
mod table;

use crate::cli::TrainArgs;
use crate::signals::Signals;
use crate::view::formatting::counted;
use candidate::{Candidate, Shared, Variant};
use clap::Args;
use figures::Figures;
use networks::{NETWORKS, Network};
use output::{Output, write_documents};
use planned::{Compared, Planned};
use runs::{Ended, Runs};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use thalweg_cluster::engine::environment;
use thalweg_cluster::interruption::{Received, Signal};
use thalweg_core::{Error, Result};

/// Arguments of `compare`.
#[derive(Args, Debug, Clone)]
pub struct CompareArgs {
    /// The job, and the arguments of `train`.
    #[command(flatten)]
    pub train: TrainArgs,
    /// The strategies: presets, separated by commas, each with settings of [strategy] in brackets if wanted
    /// ('allreduce,sparknet[merge.every=10]'), or all
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub strategies: String,
    /// Runs of every strategy, with as many seeds: --seed, and those after it
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Tries these factors of the learning rate with every strategy, and shows the best of each: 0.25,0.5,1,2
    #[arg(long, value_name = "FACTORS", value_delimiter = ',', value_parser = factor)]
    pub rates: Vec<f64>,
    /// The quality to reach, at which a run ends: accuracy=0.96, or loss=0.1 (train.target)
    #[arg(long, value_name = "METRIC=VALUE", value_parser = target)]
    pub target: Option<(String, f64)>,
    /// Runs on four simulated networks instead, in virtual time: fast, 1 Gbit/s, 100 Mbit/s, wide area
    #[arg(long)]
    pub networks: bool,
    /// Writes a page with the tables, and the metric over time and over rows
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Writes the tables as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// Compares; returns the exit code.
pub fn run(args: &CompareArgs) -> Result<u8> {
    refuse_other_launchers(args)?;
    let list =
        entries::parse(&args.strategies).map_err(|error| Error::job(format!("--strategies: {error}")))?;
    let list = planned::with_baseline(list);
    let layers = args.train.job.layers()?;
    let name = args.train.job.name(&layers);
    let shared = Shared { layers, rates: args.rates.clone(), seeds: args.seeds, target: args.target.clone() };
    let networks: Vec<Network> = match args.networks {
        true => NETWORKS.iter().map(Some).collect(),
        false => vec![None],
    };
    let planned = planned::plan(&shared, &list, &networks)?;
    let folder = args.train.out.clone().unwrap_or_else(|| Path::new("runs").join(format!("{name}-compare")));
    let runs = Runs::new(folder, &args.train)?;
    let mut progress = Progress::begin(args, &runs, &planned, &shared)?;
    let mut all = Vec::new();
    for (network, planned) in networks.into_iter().zip(&planned) {
        let output = Output::new(args, network, planned);
        all.push((network, compare(planned, &output, &shared, &mut progress)?));
        if progress.interrupted.is_some() {
            break;
        }
    }
    write_documents(args, &name, &planned, &all)?;
    Ok(progress.exit_code())
}

/// Compares all strategies on one network, as far as no signal ends it.
fn compare(
    planned: &[Planned<'_>],
    output: &Output,
    shared: &Shared,
    progress: &mut Progress<'_>,
) -> Result<Vec<Compared>> {
    output.begin()?;
    let mut all: Vec<Compared> = Vec::new();
    for planned in planned {
        if let Some(mut compared) = planned.compare(shared, progress)? {
            let single = all.first().unwrap_or(&compared).summary.clone();
            compared.summary.compare_to(&single);
            output.row(&compared.summary)?;
            all.push(compared);
        }
        if progress.interrupted.is_some() {
            break;
        }
    }
    output.end(&all)?;
    Ok(all)
}

/// How far the comparison is.
struct Progress<'a> {
    runs: &'a Runs,
    signals: Receiver<Received>,
    shows_status: bool,
    total: usize,
    done: usize,
    /// The exit code, if a signal ended it.
    interrupted: Option<u8>,
}

impl<'a> Progress<'a> {
    /// Before the first run: refuses folders with runs of another job.
    fn begin(
        args: &CompareArgs,
        runs: &'a Runs,
        planned: &[Vec<Planned<'_>>],
        shared: &Shared,
    ) -> Result<Progress<'a>> {
        let (mut total, mut finished) = (0, 0);
        for candidate in planned.iter().flatten().filter_map(Planned::candidate) {
            for variant in candidate.variants(shared).concat() {
                total += 1;
                finished += usize::from(runs.is_finished(candidate, variant)?);
            }
        }
        if !args.train.quiet {
            let known =
                if finished > 0 { format!(", {finished} of them finished before") } else { String::new() };
            eprintln!("{} in {}{known}", counted(total as u64, "run"), runs.folder().display());
        }
        let shows_status = std::io::stderr().is_terminal() && !args.train.quiet;
        let signals = Signals::install()?.forward();
        Ok(Progress { runs, signals, shows_status, total, done: 0, interrupted: None })
    }

    /// Makes a run, unless it is made. None if a signal ends it.
    fn run(&mut self, candidate: &Candidate<'_>, variant: Variant) -> Result<Option<Figures>> {
        // One that arrived between two runs, or too late to interrupt the last.
        let ends = |received: &Received| received.signal != Signal::User1;
        if let Some(received) = self.signals.try_iter().find(ends) {
            self.interrupted = Some(received.signal.exit_code());
            return Ok(None);
        }
        if self.shows_status {
            let network = candidate.network.map_or(String::new(), |network| format!(" on {}", network.name));
            let rate = variant.rate.map_or(String::new(), |rate| format!(", rate x{rate}"));
            let (label, seed, number) = (candidate.entry.label(), variant.seed, self.done + 1);
            eprint!("\r\x1b[2K{label}{network}{rate}, seed {seed} (run {number} of {})", self.total);
            let _ = std::io::stderr().flush();
        }
        let ended = self.runs.run(candidate, variant);
        if self.shows_status {
            eprint!("\r\x1b[2K");
        }
        match ended? {
            Ended::Done(figures) => {
                self.done += 1;
                Ok(Some(*figures))
            }
            Ended::Interrupted(code) => {
                self.interrupted = Some(code);
                Ok(None)
            }
        }
    }

    /// After an interruption says how to go on.
    fn exit_code(&self) -> u8 {
        if self.interrupted.is_some() {
            let (done, total, folder) = (self.done, self.total, self.runs.folder().display());
            eprintln!(
                "interrupted: {done} of {total} runs are done; the same command goes on with those in {folder}"
            );
        }
        self.interrupted.unwrap_or(0)
    }
}

/// `compare` starts the workers of every run itself.
fn refuse_other_launchers(args: &CompareArgs) -> Result<()> {
    if args.train.job.flags.strategy.is_some() {
        return Err(
            Error::job("--strategy names one strategy").hint("list those to compare: --strategies a,b,c")
        );
    }
    if args.train.nnodes.is_some() {
        return Err(Error::job("--nnodes: `compare` runs on one host")
            .hint("--networks compares the strategies on simulated networks"));
    }
    match environment::detect(&|name| std::env::var(name).ok())? {
        Some(rank) => Err(Error::job(format!(
            "`compare` starts the workers of every run itself, but {} started this",
            rank.launcher
        ))),
        None => Ok(()),
    }
}

/// Parses a factor of the learning rate.
fn factor(typed: &str) -> std::result::Result<f64, String> {
    let factor = typed.trim().parse::<f64>().ok();
    factor
        .filter(|factor| factor.is_finite() && *factor > 0.0)
        .ok_or_else(|| "a number above 0 is expected".into())
}

/// Parses `accuracy=0.96`; the job's validation checks the range.
fn target(typed: &str) -> std::result::Result<(String, f64), String> {
    let (metric, value) = typed.split_once('=').ok_or("expected METRIC=VALUE, such as accuracy=0.96")?;
    if !["accuracy", "loss"].contains(&metric) {
        return Err(format!("`{metric}`: known metrics are accuracy and loss"));
    }
    let value = value.parse().map_err(|_| format!("`{value}` is not a number"))?;
    Ok((metric.into(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_factors_are_read() {
        assert_eq!(target("accuracy=0.96"), Ok(("accuracy".into(), 0.96)));
        for wrong in ["accuracy", "f1=0.5", "loss=low"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
        assert_eq!(factor("0.5"), Ok(0.5));
        assert!(["0", "-1", "inf", "x"].iter().all(|wrong| factor(wrong).is_err()));
    }
}
