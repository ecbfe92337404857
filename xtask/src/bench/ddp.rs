//! `cargo xtask bench ddp`: training on several workers of one host compared with PyTorch's DistributedDataParallel over
//! Gloo, in alternating pairs. Every worker has one thread and the batch of the workload.

use super::against::{self, Case};
use super::peer::{Peers, Rates, Script, measure, median, yes};
use crate::command::{Outcome, build_thalweg};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct Arguments {
    /// Workloads: mlp, mlp-b64, wide, lenet, gpt, lstm
    #[arg(long, value_delimiter = ',', default_value = "mlp,lenet,wide")]
    works: Vec<String>,
    /// Workers of both systems, one thread each
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Pairs of runs per workload
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Seconds per run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    peers: Peers,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Another binary of this project to compare with instead of the peers, in alternating pairs
    #[arg(long, value_name = "BINARY")]
    against: Option<PathBuf>,
}

/// The target for the ratio to PyTorch.
fn target(work: &str, workers: usize) -> Option<f64> {
    match (work, workers) {
        ("mlp", 2) => Some(3.5),
        ("lenet", 2) => Some(2.0),
        ("wide", 2) => Some(1.4),
        _ => None,
    }
}

/// Largest acceptable share of non-overlapped exchange and wait in a step.
const EXCHANGE: f64 = 0.07;

/// All pairs of a workload.
struct Comparison {
    work: String,
    workers: usize,
    rates: Rates,
    /// Shares of exchange and wait in our runs.
    shares: Vec<f64>,
}

/// Measures every workload; a missed target is a failure.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    if let Some(other) = &arguments.against {
        let cases: Vec<Case> = arguments.works.iter().map(|work| case(arguments, work)).collect();
        return against::compare_training(&binary, other, &cases, arguments.pairs);
    }
    let script = arguments.peers.script("torch_ddp.py")?;
    println!("work     workers {}  exchange at most  held", Rates::HEADER);
    let mut passed = true;
    for work in &arguments.works {
        let comparison = compare(arguments, &binary, &script, work)?;
        println!("{}", comparison.line());
        passed &= comparison.passed();
    }
    if passed { Ok(()) } else { Err("a target was missed".into()) }
}

/// A workload, for a comparison of two binaries.
fn case(arguments: &Arguments, work: &str) -> Case {
    let (workers, seconds) = (arguments.workers.to_string(), arguments.seconds.to_string());
    let command = ["bench", "train", "--json", "--threads", "1", "--work", work];
    let sizes = ["--workers", &workers, "--seconds", &seconds];
    let arguments = command.iter().chain(&sizes).map(ToString::to_string).collect();
    Case { name: format!("{work}, {workers} workers"), arguments }
}

fn compare(arguments: &Arguments, binary: &Path, script: &Script, work: &str) -> Outcome<Comparison> {
    let (workers, seconds) = (arguments.workers.to_string(), arguments.seconds.to_string());
    let (mut rates, mut shares) = (Rates::default(), Vec::new());
    for _ in 0..arguments.pairs.max(1) {
        let mut ours = Command::new(binary);
        ours.args(["bench", "train", "--json", "--threads", "1", "--work", work, "--workers", &workers]);
        let [ours_per_s, share] =
            measure(ours.args(["--seconds", &seconds]), ["samples_per_s", "exchange_share"])?;
        let mut theirs = script.with(&[work, &workers, &seconds]);
        let [theirs_per_s] = measure(&mut theirs, ["samples_per_s"])?;
        rates.push(ours_per_s, theirs_per_s);
        shares.push(share);
    }
    Ok(Comparison { work: work.into(), workers: arguments.workers, rates, shares })
}

impl Comparison {
    fn passed(&self) -> bool {
        let fast = target(&self.work, self.workers).is_none_or(|target| self.rates.ratio() >= target);
        fast && median(&self.shares) <= EXCHANGE
    }

    fn line(&self) -> String {
        let share = median(&self.shares);
        format!(
            "{:<8} {:>7} {} {:>8.1}% {:>6.0}% {:>5}",
            self.work,
            self.workers,
            self.rates.line(target(&self.work, self.workers)),
            100.0 * share,
            100.0 * EXCHANGE,
            yes(share <= EXCHANGE)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_and_exchange_have_targets() {
        let comparison = |ratio: f64, share: f64| {
            let mut rates = Rates::default();
            rates.push(100.0 * ratio, 100.0);
            Comparison { work: "mlp".into(), workers: 2, rates, shares: vec![share] }
        };
        assert!(comparison(3.6, 0.06).passed());
        assert!(!comparison(3.4, 0.06).passed() && !comparison(3.6, 0.08).passed());
        assert!(comparison(3.6, 0.08).line().ends_with("NO"));
    }
}
