//! `cargo xtask bench trust`: the times within which a failure ends a job, against what is promised.
//!
//! Each case starts a real job on the release binary, does harm, and looks at the clock, the exit code, the message,
//! what is left of the job's processes and its port.

use super::measurement::{Measurement, Promise, table};
use super::session::Session;
use crate::command::{Outcome, build_thalweg};
use clap::Args;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How to measure.
#[derive(Args)]
pub struct Arguments {
    /// Runs of each case; the missing rank, which waits by design, runs once
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// One JSON object per case and line instead of a table
    #[arg(long)]
    json: bool,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// One way to do harm, and what must come of it.
struct Case {
    name: &'static str,
    promise: Promise,
    settings: &'static [&'static str],
    strike: fn(&Session) -> Outcome,
    exit_code: i32,
    words: &'static [&'static str],
    wants_checkpoint: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "kill -9 of a worker",
        promise: Promise::Within(Duration::from_secs(2)),
        settings: &[],
        strike: |session| session.strike_worker(1, Signal::SIGKILL),
        exit_code: 3,
        words: &["rank 1", "SIGKILL"],
        wants_checkpoint: false,
    },
    Case {
        name: "a stopped worker",
        promise: Promise::Within(Duration::from_secs(2)),
        settings: &["fault.step_deadline=2s"],
        strike: |session| session.strike_worker(1, Signal::SIGSTOP),
        exit_code: 3,
        words: &["rank 1"],
        wants_checkpoint: false,
    },
    Case {
        name: "Ctrl-C, with checkpoint",
        promise: Promise::Open,
        settings: &["fault.checkpoint_every=0"],
        strike: Session::interrupt,
        exit_code: 130,
        words: &[],
        wants_checkpoint: true,
    },
];

/// Ten times a promise: past it, it is no longer slow but broken.
const LIMIT: Duration = Duration::from_secs(20);

/// Measures every case and reports; a broken promise is a failure.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    let mut measurements = Vec::new();
    for case in CASES {
        let times = (0..arguments.runs).map(|_| measure(case, &binary)).collect::<Outcome<Vec<_>>>();
        let times = times.map_err(|message| format!("{}: {message}", case.name))?;
        measurements.extend(Measurement::new(case.name, case.promise, times));
    }
    measurements.extend(missing_rank(&binary).map_err(|message| format!("a missing rank: {message}"))?);
    if arguments.json {
        measurements.iter().for_each(|measurement| println!("{}", measurement.json()));
    } else {
        print!("{}", table(&measurements));
    }
    match measurements.iter().all(Measurement::held) {
        true => Ok(()),
        false => Err("a promise was not held".into()),
    }
}

/// The time from the harm to the launcher's end.
fn measure(case: &Case, binary: &Path) -> Outcome<Duration> {
    let workers = ["engine.workers=2".to_string()];
    let settings: Vec<String> =
        workers.into_iter().chain(case.settings.iter().map(|s| s.to_string())).collect();
    let mut session = Session::start(binary, &settings, &[])?;
    session.wait_for_training()?;
    let begin = Instant::now();
    (case.strike)(&session)?;
    let status = session.wait(LIMIT)?;
    let time = begin.elapsed();
    check_end(&session, status.code(), case.exit_code, case.words)?;
    if case.wants_checkpoint && !session.has_checkpoint() {
        return Err("no checkpoint was written".into());
    }
    Ok(time)
}

/// Rank 0 of two, alone: when it first says whom it misses, and when it gives up.
fn missing_rank(binary: &Path) -> Outcome<Vec<Measurement>> {
    let (first_word, join_deadline) = (Duration::from_secs(10), Duration::from_secs(12));
    let settings = [format!("fault.join_deadline={}s", join_deadline.as_secs())];
    let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
    let begin = Instant::now();
    let mut session = Session::start(binary, &settings, &variables)?;
    session.wait_for_words(&["rank 1"], LIMIT)?;
    let said = begin.elapsed();
    let status = session.wait(LIMIT)?;
    let ended = begin.elapsed();
    check_end(&session, status.code(), 4, &["rank 1"])?;
    let said = Measurement::new("a missing rank: first named", Promise::At(first_word), vec![said]);
    let ended = Measurement::new("a missing rank: given up", Promise::At(join_deadline), vec![ended]);
    Ok(said.into_iter().chain(ended).collect())
}

/// The exit code, the words of the message, and that nothing is left.
fn check_end(session: &Session, code: Option<i32>, expected: i32, words: &[&str]) -> Outcome {
    let messages = || session.messages();
    if code != Some(expected) {
        return Err(format!("exit code {code:?} instead of {expected}\n{}", messages()));
    }
    if !session.says(words) {
        return Err(format!("the message does not say {words:?}\n{}", messages()));
    }
    session.left_nothing().map_err(|message| format!("{message}\n{}", messages()))
}
