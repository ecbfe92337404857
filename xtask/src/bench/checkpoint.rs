//! `cargo xtask bench checkpoint`: repeated `kill -9` of a whole job while it writes a checkpoint.
//!
//! Each round resumes the job, waits until a checkpoint is being written, delays by a time spread evenly over the duration
//! of a checkpoint, and kills launcher and workers. The next round must resume from a checkpoint no older than the last
//! one reported. The job itself measures how long a checkpoint blocks training.

use super::observed_job::ObservedJob;
use crate::command::{Outcome, build_thalweg};
use clap::Args;
use nix::sys::signal::{Signal, kill};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Arguments {
    /// Number of kills
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// A checkpoint of 52 MB: 4.3 million parameters with two optimizer states each.
const SETTINGS: [&str; 5] = [
    "model.layers=['dense 2048 relu', 'dense 2048 relu', 'dense auto']",
    "fault.checkpoint_every=5",
    "fault.checkpoint_keep=2",
    "engine.workers=2",
    "train.global_batch=32",
];

/// Timeout for the end of killed processes.
const LIMIT: Duration = Duration::from_secs(20);

/// Counts over all rounds.
#[derive(Default)]
struct KillCounts {
    rounds: usize,
    /// Kills that left a half-written file behind.
    inside: usize,
    /// Rounds that resumed from a checkpoint not yet reported.
    newer: usize,
    /// Rounds that resumed from an older checkpoint than reported, or from none. Must be 0.
    older: usize,
    /// Damaged checkpoint files. Must be 0.
    damaged: usize,
    pauses: Vec<f64>,
    writes: Vec<f64>,
}

/// Fails if a checkpoint was lost.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    let settings = SETTINGS.map(String::from);
    let mut job = ObservedJob::start(&binary, &settings, &[])?;
    let mut counts = KillCounts::default();
    let mut reported = kill_in_checkpoint(&mut job, &mut counts)?;
    for _ in 1..=arguments.rounds {
        let begun = count(&job.events(), "started");
        job.start_again()?;
        job.wait_for("first step", |events| count(events, "started") > begun)?;
        let first = last(&job.events(), "started", "first_step").unwrap_or(0.0);
        counts.newer += usize::from(first > reported);
        counts.older += usize::from(first < reported);
        reported = kill_in_checkpoint(&mut job, &mut counts)?;
    }
    counts.damaged = fs::read_dir(job.run().join("checkpoints"))
        .map_err(|error| format!("no checkpoints: {error}"))?
        .flatten()
        .filter(|entry| has_extension(&entry.path(), "damaged"))
        .count();
    counts.rounds = arguments.rounds;
    println!("{}", if arguments.json { counts.json() } else { counts.table() });
    match counts.older + counts.damaged {
        0 => Ok(()),
        _ => Err("a reported checkpoint was lost".into()),
    }
}

/// Waits for a checkpoint, kills the job during the next one and returns the last reported step.
fn kill_in_checkpoint(job: &mut ObservedJob, counts: &mut KillCounts) -> Outcome<f64> {
    let before = count(&job.events(), "checkpoint");
    job.wait_for("checkpoint", |events| count(events, "checkpoint") > before)?;
    let members = job.members();
    let folder = job.run().join("checkpoints");
    let begin = Instant::now();
    while !has_partial_file(&folder) {
        if begin.elapsed() > LIMIT {
            return Err(format!("no checkpoint is being written within {LIMIT:?}"));
        }
        std::thread::yield_now();
    }
    // Multiples of the golden ratio are evenly spread for any count.
    let write_s = last(&job.events(), "checkpoint", "write_s").unwrap_or(0.0);
    let delay = Duration::from_secs_f64((counts.pauses.len() as f64 * 0.618_034).fract() * write_s);
    let seen = Instant::now();
    while seen.elapsed() < delay {
        std::thread::yield_now();
    }
    for member in members {
        // A process that has exited meanwhile needs no signal.
        let _ = kill(member, Signal::SIGKILL);
    }
    job.wait_until_gone(LIMIT)?;
    counts.inside += usize::from(has_partial_file(&folder));
    let events = job.events();
    counts.pauses.extend(last(&events, "checkpoint", "pause_s"));
    counts.writes.extend(last(&events, "checkpoint", "write_s"));
    last(&events, "checkpoint", "step").ok_or_else(|| "no checkpoint was reported".into())
}

fn has_partial_file(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| has_extension(&entry.path(), "tmp"))
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|other| other == extension)
}

/// The number of events of a kind.
fn count(events: &str, kind: &str) -> usize {
    events.matches(&format!("\"event\":\"{kind}\"")).count()
}

/// A number of the last complete event of a kind.
fn last(events: &str, kind: &str, key: &str) -> Option<f64> {
    let whole = &events[..events.rfind('\n')?];
    let line = whole.lines().rev().find(|line| count(line, kind) > 0)?;
    let (_, value) = line.split_once(&format!("\"{key}\":"))?;
    value.split([',', '}']).next()?.parse().ok()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

impl KillCounts {
    fn table(&self) -> String {
        let worst = self.pauses.iter().copied().fold(0.0, f64::max);
        [
            format!("kills                                        {}", self.rounds + 1),
            format!("  of which left a half-written file          {}", self.inside),
            format!("starts after a kill                          {}", self.rounds),
            format!("  from the last reported checkpoint          {}", self.rounds - self.newer - self.older),
            format!("  from a newer one, not yet reported         {}", self.newer),
            format!("  from an older one                          {}", self.older),
            format!("checkpoints that were damaged                {}", self.damaged),
            format!(
                "training blocked, median / worst             {:.1} / {:.1} ms",
                1e3 * median(&self.pauses),
                1e3 * worst
            ),
            format!("written in the background, median            {:.1} ms", 1e3 * median(&self.writes)),
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
    fn numbers_are_read_from_the_last_complete_line() {
        let events = "{\"event\":\"checkpoint\",\"step\":5,\"path\":\"a\",\"pause_s\":0.5}\n\
                      {\"event\":\"step\",\"step\":6}\n\
                      {\"event\":\"checkpoint\",\"step\":10,\"pa";
        assert_eq!(last(events, "checkpoint", "step"), Some(5.0));
        assert_eq!(last(events, "checkpoint", "pause_s"), Some(0.5));
        assert_eq!(last(events, "started", "first_step"), None);
        assert_eq!(count(events, "checkpoint"), 2);
    }
}
