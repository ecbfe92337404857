//! `cargo xtask bench checkpoint`: `kill -9` of a whole job in the middle of a checkpoint, again and again.
//!
//! Each round starts the same job where the last one was killed, waits for a checkpoint that is being written, lets a
//! moment pass that is spread evenly over the time a checkpoint takes, and kills launcher and workers. The next round
//! must go on from a checkpoint no older than the last one the job had told of. On the way the job itself measures how
//! long training stands still for a checkpoint.

use super::session::Session;
use crate::command::{Outcome, build_thalweg};
use clap::Args;
use nix::sys::signal::{Signal, kill};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How to measure.
#[derive(Args)]
pub struct Arguments {
    /// How often the job is killed
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// A checkpoint of 52 MB, with two states of the optimizer for each of 4.3 million parameters.
const SETTINGS: [&str; 5] = [
    "model.layers=['dense 2048 relu', 'dense 2048 relu', 'dense auto']",
    "fault.checkpoint_every=5",
    "fault.checkpoint_keep=2",
    "engine.workers=2",
    "train.global_batch=32",
];

/// Far more than the end of killed processes takes.
const LIMIT: Duration = Duration::from_secs(20);

/// What came of all rounds.
#[derive(Default)]
struct Tally {
    rounds: usize,
    /// Kills that left a half-written file behind.
    inside: usize,
    /// Rounds that went on from a checkpoint that was there already, but not yet told of.
    newer: usize,
    /// Rounds that went on from an older one than was told, or from none. None is allowed.
    older: usize,
    /// Files with a checkpoint's name that turned out to be damaged. None is allowed.
    damaged: usize,
    pauses: Vec<f64>,
    writes: Vec<f64>,
}

/// Kills as often as asked and reports; a lost checkpoint is a failure.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    let settings = SETTINGS.map(String::from);
    let mut session = Session::start(&binary, &settings, &[])?;
    let mut tally = Tally::default();
    let mut told = kill_in_checkpoint(&mut session, &mut tally)?;
    for _ in 1..=arguments.rounds {
        let begun = times(&session.events(), "started");
        session.start_again()?;
        session.wait_for("first step", |events| times(events, "started") > begun)?;
        let first = last(&session.events(), "started", "first_step").unwrap_or(0.0);
        tally.newer += usize::from(first > told);
        tally.older += usize::from(first < told);
        told = kill_in_checkpoint(&mut session, &mut tally)?;
    }
    tally.damaged = fs::read_dir(session.run().join("checkpoints"))
        .map_err(|error| format!("no checkpoints: {error}"))?
        .flatten()
        .filter(|entry| has_ending(&entry.path(), "damaged"))
        .count();
    tally.rounds = arguments.rounds;
    println!("{}", if arguments.json { tally.json() } else { tally.table() });
    match tally.older + tally.damaged {
        0 => Ok(()),
        _ => Err("a checkpoint that was told of was lost".into()),
    }
}

/// Waits for a checkpoint, kills the job in the next one and returns the last step it told of.
fn kill_in_checkpoint(session: &mut Session, tally: &mut Tally) -> Outcome<f64> {
    let before = times(&session.events(), "checkpoint");
    session.wait_for("checkpoint", |events| times(events, "checkpoint") > before)?;
    let members = session.members();
    let folder = session.run().join("checkpoints");
    let begin = Instant::now();
    while !half_written(&folder) {
        if begin.elapsed() > LIMIT {
            return Err(format!("no checkpoint is being written within {LIMIT:?}"));
        }
        std::thread::yield_now();
    }
    // Multiples of the golden ratio lie evenly, however many there are.
    let write_s = last(&session.events(), "checkpoint", "write_s").unwrap_or(0.0);
    let delay = Duration::from_secs_f64((tally.pauses.len() as f64 * 0.618_034).fract() * write_s);
    let seen = Instant::now();
    while seen.elapsed() < delay {
        std::thread::yield_now();
    }
    for member in members {
        // One that has ended by itself meanwhile needs no signal.
        let _ = kill(member, Signal::SIGKILL);
    }
    session.wait_until_gone(LIMIT)?;
    tally.inside += usize::from(half_written(&folder));
    let events = session.events();
    tally.pauses.extend(last(&events, "checkpoint", "pause_s"));
    tally.writes.extend(last(&events, "checkpoint", "write_s"));
    last(&events, "checkpoint", "step").ok_or_else(|| "no checkpoint was told of".into())
}

fn half_written(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| has_ending(&entry.path(), "tmp"))
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|other| other == ending)
}

/// How many events of a kind there are.
fn times(events: &str, kind: &str) -> usize {
    events.matches(&format!("\"event\":\"{kind}\"")).count()
}

/// A number of the last whole event of a kind.
fn last(events: &str, kind: &str, key: &str) -> Option<f64> {
    let whole = &events[..events.rfind('\n')?];
    let line = whole.lines().rev().find(|line| times(line, kind) > 0)?;
    let (_, value) = line.split_once(&format!("\"{key}\":"))?;
    value.split([',', '}']).next()?.parse().ok()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

impl Tally {
    fn table(&self) -> String {
        let worst = self.pauses.iter().copied().fold(0.0, f64::max);
        [
            format!("kills                                        {}", self.rounds + 1),
            format!("  of which left a half-written file          {}", self.inside),
            format!("starts after a kill                          {}", self.rounds),
            format!("  from the last checkpoint told of           {}", self.rounds - self.newer - self.older),
            format!("  from a newer one, not yet told of          {}", self.newer),
            format!("  from an older one                          {}", self.older),
            format!("checkpoints that were damaged                {}", self.damaged),
            format!(
                "training stood still, median / worst         {:.1} / {:.1} ms",
                1e3 * median(&self.pauses),
                1e3 * worst
            ),
            format!("until it was on disk, meanwhile, median      {:.1} ms", 1e3 * median(&self.writes)),
        ]
        .join("\n")
    }

    fn json(&self) -> String {
        format!(
            "{{\"kills\":{},\"inside\":{},\"starts\":{},\"newer\":{},\"older\":{},\"damaged\":{},\
             \"pause_median_s\":{:.4},\"write_median_s\":{:.4}}}",
            self.rounds + 1,
            self.inside,
            self.rounds,
            self.newer,
            self.older,
            self.damaged,
            median(&self.pauses),
            median(&self.writes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_last_whole_line() {
        let events = "{\"event\":\"checkpoint\",\"step\":5,\"path\":\"a\",\"pause_s\":0.5}\n\
                      {\"event\":\"step\",\"step\":6}\n\
                      {\"event\":\"checkpoint\",\"step\":10,\"pa";
        assert_eq!(last(events, "checkpoint", "step"), Some(5.0));
        assert_eq!(last(events, "checkpoint", "pause_s"), Some(0.5));
        assert_eq!(last(events, "started", "first_step"), None);
        assert_eq!(times(events, "checkpoint"), 2);
    }
}
