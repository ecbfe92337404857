//! `thalweg bench train`: training rows per second of a few well-known networks.
//!
//! A workload becomes a job file with synthetic data. The job runs as `train` runs it, with the same launcher and in
//! real worker processes, and the figures come from the events that every run writes: no code path is special to the
//! benchmark.

use super::workload::Workload;
use crate::cli::JobArgs;
use crate::command::print;
use crate::scratch::Scratch;
use crate::trainer::Trainer;
use clap::Args;
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::linux::{cpu_time_of_children, peak_memory_of_children};
use thalweg_core::event::{Event, Record};
use thalweg_core::report::Report;
use thalweg_core::{Error, Result};

/// Steps left out: memory is touched for the first time, caches and clock rates warm up.
const WARM_UP: u64 = 10;

/// Arguments of `bench train`.
#[derive(Args, Debug)]
pub struct TrainBenchArgs {
    /// What to train
    #[arg(long = "work", value_name = "WORK", value_enum, default_value_t = Workload::Mlp)]
    workload: Workload,
    /// Threads of each worker
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// How many workers, each with the work's batch
    #[arg(long, short = 'w', default_value_t = 1)]
    workers: usize,
    /// How long to measure
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The same bits on any number of workers (train.reproducible), and what that costs: measured in turns with the
    /// ordinary run
    #[arg(long)]
    reproducible: bool,
    /// As JSON, on one line
    #[arg(long)]
    json: bool,
}

/// The result of a measurement.
#[derive(Debug, Serialize)]
struct Measured {
    peer: &'static str,
    work: &'static str,
    threads: usize,
    workers: usize,
    /// Median over intervals of at least 0.1 s.
    samples_per_s: f64,
    /// Maximum over the same intervals.
    best: f64,
    /// Share of a step's time spent in the exchange, including the wait for slower ranks.
    exchange_share: f64,
    /// Largest resident set of any worker.
    peak_rss_bytes: u64,
    /// User CPU time of all workers, from start to exit, per row trained on.
    user_us_per_row: f64,
    /// Whether the result is bit-identical for any number of workers.
    reproducible: bool,
    /// Step time of a reproducible run divided by that of an ordinary one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

/// Measures and prints; returns the exit code.
pub fn run(args: &TrainBenchArgs) -> Result<u8> {
    if !(args.seconds > 0.0 && args.seconds <= 1e6) {
        return Err(Error::job(format!("--seconds {}: must be above 0", args.seconds)));
    }
    let folder = Scratch::create("bench")?;
    let job = args.workload.write(&folder.0, args.workers, args.threads)?;
    let mut measured = measure(args, &job, &folder.0, args.reproducible)?;
    if args.reproducible {
        // The ordinary run is measured between two reproducible ones, against drift of the machine's load.
        let ordinary = measure(args, &job, &folder.0, false)?.samples_per_s;
        let again = measure(args, &job, &folder.0, true)?;
        measured.best = measured.best.max(again.best);
        measured.samples_per_s = (measured.samples_per_s + again.samples_per_s) / 2.0;
        measured.cost = Some(ordinary / measured.samples_per_s);
    }
    if args.json {
        let line = serde_json::to_string(&measured).map_err(|error| Error::internal(error.to_string()))?;
        print(&(line + "\n"))?;
    } else {
        print(&sentence(&measured))?;
    }
    Ok(0)
}

/// Runs the job for `args.seconds` in a new folder.
fn measure(args: &TrainBenchArgs, job: &Path, folder: &Path, reproducible: bool) -> Result<Measured> {
    let run = (1..).map(|number| folder.join(format!("run-{number}"))).find(|path| !path.exists());
    let run = run.ok_or_else(|| Error::internal("no free run folder"))?;
    let trainer = trainer(job, &run, reproducible)?;
    let before = cpu_time_of_children().unwrap_or_default();
    let result = trainer.stop_after(WARM_UP, Duration::from_secs_f64(args.seconds)).finish()?;
    let cpu_time = cpu_time_of_children().unwrap_or_default().saturating_sub(before);
    let report = result.report.ok_or_else(|| Error::internal("a launcher without a report"))?;
    measured(args, &report, &run, reproducible, cpu_time)
}

/// A trainer for a job file; its workers run `thalweg train` on it.
fn trainer(job: &Path, run: &Path, reproducible: bool) -> Result<Trainer> {
    let program = std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
    let mut command = vec![program.into_os_string(), OsString::from("train"), job.into()];
    let mut args = JobArgs { job: Some(job.to_path_buf()), ..JobArgs::default() };
    if reproducible {
        args.flags.set.push("train.reproducible=true".into());
        command.extend(["--set".into(), "train.reproducible=true".into()]);
    }
    let trainer = Trainer::from_layers("bench", args.layers()?).out(run).quiet(true);
    Ok(trainer.worker_command(command))
}

fn measured(
    args: &TrainBenchArgs,
    report: &Report,
    run: &Path,
    reproducible: bool,
    cpu_time: Duration,
) -> Result<Measured> {
    let path = run.join("events.jsonl");
    let text = fs::read_to_string(&path)
        .map_err(|error| Error::io(format!("cannot read {}", path.display()), &error))?;
    let rates = text.lines().filter_map(rate).skip_while(|(step, _)| *step < WARM_UP);
    // The first event after the warm-up still covers a part of it.
    let mut rates: Vec<f64> = rates.skip(1).map(|(_, rate)| rate).collect();
    rates.sort_by(f64::total_cmp);
    let (Some(best), Some(median)) = (rates.last(), rates.get(rates.len() / 2)) else {
        return Err(Error::job(format!("no step was measured within {} s", args.seconds))
            .hint("measure longer: --seconds 10"));
    };
    let share = |rank: &thalweg_core::report::RankReport| {
        let exchange = rank.exchange_s + rank.wait_s;
        exchange / (exchange + rank.compute_s).max(1e-9)
    };
    let shares: f64 = report.ranks.iter().map(share).sum();
    let rows: u64 = report.ranks.iter().map(|rank| rank.rows).sum();
    Ok(Measured {
        peer: "thalweg",
        work: args.workload.name(),
        threads: args.threads,
        workers: args.workers,
        samples_per_s: *median,
        best: *best,
        exchange_share: shares / report.ranks.len().max(1) as f64,
        peak_rss_bytes: peak_memory_of_children().unwrap_or(0),
        user_us_per_row: 1e6 * cpu_time.as_secs_f64() / rows.max(1) as f64,
        reproducible,
        cost: None,
    })
}

/// Step and rate of a `step` event; `None` for other lines.
fn rate(line: &str) -> Option<(u64, f64)> {
    match serde_json::from_str::<Record>(line).ok()?.event {
        Event::Step { step, samples_per_s, .. } => Some((step, samples_per_s)),
        _ => None,
    }
}

fn sentence(measured: &Measured) -> String {
    let Measured { work, workers, threads, samples_per_s, best, exchange_share, peak_rss_bytes, .. } =
        measured;
    let cost = measured.cost.map_or(String::new(), |cost| {
        format!(", reproducible: a step takes {cost:.2} times as long as an ordinary one")
    });
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    format!(
        "{work}, {} of {}: {samples_per_s:.0} rows/s (best {best:.0}), {:.0}% of the time in exchange, {} MiB at most{cost}\n",
        count(*workers, "worker"),
        count(*threads, "thread"),
        100.0 * exchange_share,
        peak_rss_bytes >> 20,
    )
}
