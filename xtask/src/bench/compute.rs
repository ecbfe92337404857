//! `cargo xtask bench compute`: training speed and memory compared with PyTorch, in alternating pairs.

use super::against::{self, Case};
use super::mnist::Share;
use super::peer::{Peers, Rates, Script, measure, yes};
use crate::command::{Outcome, build_thalweg, root};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct Arguments {
    /// Workloads: mlp, mlp-b64, wide, lenet, gpt, lstm
    #[arg(long, value_delimiter = ',', default_value = "mlp,mlp-b64,wide,lenet,gpt,lstm")]
    works: Vec<String>,
    /// Threads of both systems
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Pairs of runs per workload
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Seconds per run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    peers: Peers,
    /// The folder of MNIST's IDX files, for `thalweg train`
    #[arg(long, default_value = "../shared/data/mnist")]
    mnist: PathBuf,
    /// Instruction set of both systems: portable (ours only), avx2, avx512; default: the best available
    #[arg(long)]
    instructions: Option<String>,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Another binary of this project to compare with instead of the peers, in alternating pairs
    #[arg(long, value_name = "BINARY")]
    against: Option<PathBuf>,
}

/// All pairs of a workload.
struct Comparison {
    work: String,
    threads: usize,
    rates: Rates,
    /// Peak memory over all runs, ours and theirs.
    memory: [f64; 2],
}

/// The target for the ratio to PyTorch.
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

/// Largest acceptable share of PyTorch's memory.
const MEMORY: f64 = 0.5;

/// Measures every workload; a missed target is a failure.
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
    let mut passed = true;
    for &threads in &arguments.threads {
        for work in &arguments.works {
            let comparison = compare(arguments, &binary, &script, work, threads)?;
            println!("{}", comparison.line());
            passed &= comparison.passed();
        }
    }
    let mnist = root().join(&arguments.mnist);
    if mnist.is_dir() {
        let share = Share::measure(&binary, &mnist, arguments.pairs, arguments.seconds)?;
        println!("{}", share.line());
        passed &= share.passed();
    } else {
        println!("MNIST with `train` is not measured: {} does not exist (--mnist)", mnist.display());
    }
    if passed { Ok(()) } else { Err("a target was missed".into()) }
}

/// Every workload with every number of threads, for a comparison of two binaries.
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
        let [ours_per_s, our_memory] = measure(ours.args(["--seconds", &seconds]), KEYS)?;
        let [theirs_per_s, their_memory] = measure(&mut theirs, KEYS)?;
        rates.push(ours_per_s, theirs_per_s);
        memory = [memory[0].max(our_memory), memory[1].max(their_memory)];
    }
    Ok(Comparison { work: work.into(), threads, rates, memory })
}

impl Comparison {
    fn is_small(&self) -> bool {
        self.memory[0] <= MEMORY * self.memory[1]
    }

    fn passed(&self) -> bool {
        let target = target(&self.work, self.threads);
        target.is_none_or(|target| self.rates.ratio() >= target) && self.is_small()
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
    fn speed_and_memory_have_targets() {
        let comparison = |ratio: f64, memory: f64| {
            let mut rates = Rates::default();
            rates.push(100.0 * ratio, 100.0);
            Comparison { work: "mlp".into(), threads: 1, rates, memory: [memory, 100.0] }
        };
        assert!(comparison(1.61, 50.0).passed());
        assert!(!comparison(1.59, 50.0).passed());
        assert!(!comparison(1.61, 51.0).passed(), "over half of their memory");
    }
}
