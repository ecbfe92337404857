//! `cargo xtask bench trust`: the time from a failure to the end of the job, compared with targets.
//!
//! Each case starts a job with the release binary, injects a failure, and checks the time, the exit code, the output, and
//! that no process is left and the port is free.

use super::measurement::{Measurement, Target, table};
use super::observed_job::ObservedJob;
use crate::command::{Outcome, build_thalweg};
use clap::Args;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Arguments {
    /// Runs per case; the case of a missing rank, which waits by design, runs once
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// One line of JSON per case instead of a table
    #[arg(long)]
    json: bool,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// A failure and the expected end of the job.
struct Case {
    name: &'static str,
    target: Target,
    settings: &'static [&'static str],
    inject: fn(&ObservedJob) -> Outcome,
    exit_code: i32,
    texts: &'static [&'static str],
    wants_checkpoint: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "kill -9 of a worker",
        target: Target::Within(Duration::from_secs(2)),
        settings: &[],
        inject: |job| job.signal_worker(1, Signal::SIGKILL),
        exit_code: 3,
        texts: &["rank 1", "SIGKILL"],
        wants_checkpoint: false,
    },
    Case {
        name: "a stopped worker",
        target: Target::Within(Duration::from_secs(2)),
        settings: &["fault.step_deadline=2s"],
        inject: |job| job.signal_worker(1, Signal::SIGSTOP),
        exit_code: 3,
        texts: &["rank 1"],
        wants_checkpoint: false,
    },
    Case {
        name: "Ctrl-C, with checkpoint",
        target: Target::None,
        settings: &["fault.checkpoint_every=0"],
        inject: ObservedJob::interrupt,
        exit_code: 130,
        texts: &[],
        wants_checkpoint: true,
    },
];

/// Ten times the target: a job that takes longer counts as hanging.
const LIMIT: Duration = Duration::from_secs(20);

/// Measures every case; a missed target is a failure.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    let mut measurements = Vec::new();
    for case in CASES {
        let times = (0..arguments.runs).map(|_| measure(case, &binary)).collect::<Outcome<Vec<_>>>();
        let times = times.map_err(|message| format!("{}: {message}", case.name))?;
        measurements.extend(Measurement::new(case.name, case.target, times));
    }
    measurements.extend(missing_rank(&binary).map_err(|message| format!("a missing rank: {message}"))?);
    if arguments.json {
        measurements.iter().for_each(|measurement| println!("{}", measurement.json()));
    } else {
        print!("{}", table(&measurements));
    }
    match measurements.iter().all(Measurement::passed) {
        true => Ok(()),
        false => Err("a target was missed".into()),
    }
}

/// The time from the failure to the launcher's exit.
fn measure(case: &Case, binary: &Path) -> Outcome<Duration> {
    let workers = ["engine.workers=2".to_string()];
    let settings: Vec<String> =
        workers.into_iter().chain(case.settings.iter().map(|s| s.to_string())).collect();
    let mut job = ObservedJob::start(binary, &settings, &[])?;
    job.wait_for_training()?;
    let begin = Instant::now();
    (case.inject)(&job)?;
    let status = job.wait(LIMIT)?;
    let time = begin.elapsed();
    check_end(&job, status.code(), case.exit_code, case.texts)?;
    if case.wants_checkpoint && !job.has_checkpoint() {
        return Err("no checkpoint was written".into());
    }
    Ok(time)
}

/// Starts rank 0 of two alone: the time until it names the missing rank, and until it gives up.
fn missing_rank(binary: &Path) -> Outcome<Vec<Measurement>> {
    let (first_notice, join_deadline) = (Duration::from_secs(10), Duration::from_secs(12));
    let settings = [format!("fault.join_deadline={}s", join_deadline.as_secs())];
    let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
    let begin = Instant::now();
    let mut job = ObservedJob::start(binary, &settings, &variables)?;
    job.wait_for_output(&["rank 1"], LIMIT)?;
    let named = begin.elapsed();
    let status = job.wait(LIMIT)?;
    let ended = begin.elapsed();
    check_end(&job, status.code(), 4, &["rank 1"])?;
    let named = Measurement::new("a missing rank: first named", Target::At(first_notice), vec![named]);
    let ended = Measurement::new("a missing rank: given up", Target::At(join_deadline), vec![ended]);
    Ok(named.into_iter().chain(ended).collect())
}

/// Checks the exit code, the output, and the cleanup.
fn check_end(job: &ObservedJob, code: Option<i32>, expected: i32, texts: &[&str]) -> Outcome {
    let output = || job.output();
    if code != Some(expected) {
        return Err(format!("exit code {code:?} instead of {expected}\n{}", output()));
    }
    if !job.has_printed(texts) {
        return Err(format!("the output does not contain {texts:?}\n{}", output()));
    }
    job.check_cleanup().map_err(|message| format!("{message}\n{}", output()))
}
