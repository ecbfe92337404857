//! `cargo xtask bench compute`: training speed and memory beside PyTorch's, in alternating pairs.

use super::against::{self, Case};
use super::mnist::Share;
use super::peer::{Peers, Rates, Script, measure, yes};
use crate::command::{Outcome, build_thalweg, root};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to measure.
#[derive(Args)]
pub struct Arguments {
    /// What to train: mlp, mlp-b64, wide, lenet, gpt, lstm
    #[arg(long, value_delimiter = ',', default_value = "mlp,mlp-b64,wide,lenet,gpt,lstm")]
    works: Vec<String>,
    /// Threads of either side
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Pairs of runs for each work
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Seconds of each run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    peers: Peers,
    /// The folder of MNIST's IDX files, to train on with `train`
    #[arg(long, default_value = "../shared/data/mnist")]
    mnist: PathBuf,
    /// The instructions that either side may use: portable (ours alone), avx2, avx512; the best there are, unless told
    #[arg(long)]
    instructions: Option<String>,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Another binary of this project to compare with instead of the peers, in alternating pairs
    #[arg(long, value_name = "BINARY")]
    against: Option<PathBuf>,
}

/// All pairs of a work.
struct Comparison {
    work: String,
    threads: usize,
    rates: Rates,
    /// The most memory of any run, ours and theirs.
    memory: [f64; 2],
}

/// The ratio to PyTorch that is asked for; nothing where none is.
fn target(work: &str, threads: usize) -> Option<f64> {
    match (work, threads) {
        ("mlp", 1) => Some(1.6),
        ("mlp-b64", 1) => Some(2.2),
        ("wide", 1) => Some(1.05),
        ("lenet", 1) => Some(1.9),
        ("gpt", 1) => Some(1.2),
        ("lstm", 1) => Some(1.5),
        ("mlp" | "wide" | "lenet", 2) => Some(1.4),
        _ => None,
    }
}

/// The share of PyTorch's memory that is allowed.
const MEMORY: f64 = 0.5;

/// Measures every work and reports; a missed target is a failure.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    if let Some(other) = &arguments.against {
        return against::compare_training(&binary, other, &cases(arguments), arguments.pairs);
    }
    let script = arguments.peers.script("torch_train.py")?;
    println!("work     threads {}  MiB ours  theirs  half held", Rates::HEADER);
    let mut held = true;
    for &threads in &arguments.threads {
        for work in &arguments.works {
            let comparison = compare(arguments, &binary, &script, work, threads)?;
            println!("{}", comparison.line());
            held &= comparison.held();
        }
    }
    let mnist = root().join(&arguments.mnist);
    if mnist.is_dir() {
        let share = Share::measure(&binary, &mnist, arguments.pairs, arguments.seconds)?;
        println!("{}", share.line());
        held &= share.held();
    } else {
        println!("MNIST through `train` is not measured: {} is not there (--mnist)", mnist.display());
    }
    if held { Ok(()) } else { Err("a target was missed".into()) }
}

/// Every work with every number of threads, for a comparison of two binaries.
fn cases(arguments: &Arguments) -> Vec<Case> {
    let seconds = arguments.seconds.to_string();
    let case = |threads: usize, work: &String| {
        let threads = threads.to_string();
        let arguments =
            ["bench", "train", "--json", "--work", work, "--threads", &threads, "--seconds", &seconds];
        Case {
            name: format!("{work}, {threads} threads"),
            arguments: arguments.iter().map(ToString::to_string).collect(),
        }
    };
    let threads = arguments.threads.iter();
    threads.flat_map(|&threads| arguments.works.iter().map(move |work| case(threads, work))).collect()
}

fn compare(
    arguments: &Arguments,
    binary: &Path,
    script: &Script,
    work: &str,
    threads: usize,
) -> Outcome<Comparison> {
    const KEYS: [&str; 2] = ["samples_per_s", "peak_rss_bytes"];
    let (count, seconds) = (threads.to_string(), arguments.seconds.to_string());
    let (mut rates, mut memory) = (Rates::default(), [0.0f64; 2]);
    for _ in 0..arguments.pairs.max(1) {
        let mut ours = Command::new(binary);
        ours.args(["bench", "train", "--json", "--work", work, "--threads", &count]);
        let mut theirs = script.with(&[work, &count, &seconds]);
        if let Some(set) = &arguments.instructions {
            ours.env("THALWEG_INSTRUCTIONS", set);
            theirs.env("ATEN_CPU_CAPABILITY", set).env("ONEDNN_MAX_CPU_ISA", set.to_uppercase());
            theirs.env("MKL_ENABLE_INSTRUCTIONS", set.to_uppercase());
        }
        let [mine, held] = measure(ours.args(["--seconds", &seconds]), KEYS)?;
        let [yours, taken] = measure(&mut theirs, KEYS)?;
        rates.push(mine, yours);
        memory = [memory[0].max(held), memory[1].max(taken)];
    }
    Ok(Comparison { work: work.into(), threads, rates, memory })
}

impl Comparison {
    fn is_small(&self) -> bool {
        self.memory[0] <= MEMORY * self.memory[1]
    }

    fn held(&self) -> bool {
        let wanted = target(&self.work, self.threads);
        wanted.is_none_or(|wanted| self.rates.ratio() >= wanted) && self.is_small()
    }

    fn line(&self) -> String {
        let [ours, theirs] = self.memory.map(|bytes| bytes / f64::from(1 << 20));
        let (work, threads) = (&self.work, self.threads);
        let rates = self.rates.line(target(work, threads));
        format!("{work:<8} {threads:>7} {rates} {ours:>9.0} {theirs:>7.0} {:>10}", yes(self.is_small()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_and_memory_must_both_hold() {
        let comparison = |ratio: f64, memory: f64| {
            let mut rates = Rates::default();
            rates.push(100.0 * ratio, 100.0);
            Comparison { work: "mlp".into(), threads: 1, rates, memory: [memory, 100.0] }
        };
        assert!(comparison(1.61, 50.0).held());
        assert!(!comparison(1.59, 50.0).held());
        assert!(!comparison(1.61, 51.0).held(), "more than half of their memory");
    }
}
