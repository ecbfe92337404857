//! `cargo xtask bench compute`: training speed and memory beside PyTorch's, in alternating pairs.
//!
//! Machines are shared and their speed changes from second to second, so only ratios of runs that follow each other
//! count: ours, theirs, ours, theirs.

use super::mnist::Share;
use crate::command::{Outcome, build_thalweg, output, root, spelled};
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
    /// The folder of the peers' scripts
    #[arg(long, default_value = "../shared/peers")]
    peers: PathBuf,
    /// A Python that has PyTorch
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// The folder of MNIST's IDX files, to train on with `train`
    #[arg(long, default_value = "../shared/data/mnist")]
    mnist: PathBuf,
    /// The instructions that either side may use: portable (ours alone), avx2, avx512; the best there are, unless told
    #[arg(long)]
    instructions: Option<String>,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// What one run says.
#[derive(Clone, Copy)]
struct Run {
    rate: f64,
    memory: f64,
}

/// All pairs of a work. There is at least one.
struct Comparison {
    work: String,
    threads: usize,
    ours: Vec<Run>,
    theirs: Vec<Run>,
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
    let peers = root().join(&arguments.peers);
    let script = peers.join("torch_train.py");
    if !script.is_file() {
        return Err(format!(
            "{} is not there: --peers names the folder with torch_train.py and works.py",
            script.display()
        ));
    }
    let has_torch = Command::new(&arguments.python).args(["-c", "import torch"]).output();
    if !has_torch.is_ok_and(|output| output.status.success()) {
        return Err(format!(
            "{} has no PyTorch: run `{} DIR`, then pass --python DIR/bin/python",
            arguments.python.display(),
            peers.join("setup.sh").display()
        ));
    }
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    println!("{HEADER}");
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

fn compare(
    arguments: &Arguments,
    binary: &Path,
    script: &Path,
    work: &str,
    threads: usize,
) -> Outcome<Comparison> {
    let (count, seconds) = (threads.to_string(), arguments.seconds.to_string());
    let mut comparison = Comparison { work: work.into(), threads, ours: Vec::new(), theirs: Vec::new() };
    for _ in 0..arguments.pairs.max(1) {
        let mut ours = Command::new(binary);
        ours.args(["bench", "train", "--json", "--work", work, "--threads", &count]);
        if let Some(set) = &arguments.instructions {
            ours.env("THALWEG_INSTRUCTIONS", set);
        }
        comparison.ours.push(measure(ours.args(["--seconds", &seconds]))?);
        let mut theirs = Command::new(&arguments.python);
        theirs.arg(script).args([work, &count, &seconds]).env("PYTHONDONTWRITEBYTECODE", "1");
        if let Some(set) = &arguments.instructions {
            theirs.env("ATEN_CPU_CAPABILITY", set).env("ONEDNN_MAX_CPU_ISA", set.to_uppercase());
            theirs.env("MKL_ENABLE_INSTRUCTIONS", set.to_uppercase());
        }
        comparison.theirs.push(measure(&mut theirs)?);
    }
    Ok(comparison)
}

fn measure(command: &mut Command) -> Outcome<Run> {
    let text = String::from_utf8_lossy(&output(command)?).into_owned();
    let number = |key: &str| {
        number(&text, key).ok_or_else(|| format!("`{}` printed no {key}: {text}", spelled(command)))
    };
    Ok(Run { rate: number("samples_per_s")?, memory: number("peak_rss_bytes")? })
}

/// The number behind a key of a line of JSON.
pub(super) fn number(text: &str, key: &str) -> Option<f64> {
    let (_, behind) = text.rsplit_once(&format!("\"{key}\":"))?;
    behind.split([',', '}']).next()?.trim().parse().ok()
}

const HEADER: &str = "work     threads     ours/s   theirs/s  ratio median    min    max  target  held  \
                      MiB ours  theirs  half held";

impl Comparison {
    /// The ratios of the pairs, sorted.
    fn ratios(&self) -> Vec<f64> {
        let pairs = self.ours.iter().zip(&self.theirs);
        sorted(pairs.map(|(ours, theirs)| ours.rate / theirs.rate).collect())
    }

    /// The median ratio and the largest memories.
    fn outcome(&self) -> (f64, [f64; 2]) {
        let most = |runs: &[Run]| runs.iter().map(|run| run.memory).fold(0.0, f64::max);
        (median(&self.ratios()), [most(&self.ours), most(&self.theirs)])
    }

    fn held(&self) -> bool {
        let (ratio, [ours, theirs]) = self.outcome();
        let wanted = target(&self.work, self.threads);
        wanted.is_none_or(|wanted| ratio >= wanted) && ours <= MEMORY * theirs
    }

    fn line(&self) -> String {
        let (ratio, [ours, theirs]) = self.outcome();
        let ratios = self.ratios();
        let rate = |runs: &[Run]| median(&sorted(runs.iter().map(|run| run.rate).collect()));
        let yes = |held: bool| if held { "yes" } else { "NO" };
        let (target, fast) = match target(&self.work, self.threads) {
            Some(target) => (format!("{target:.2}"), yes(ratio >= target)),
            None => ("-".into(), "-"),
        };
        format!(
            "{:<8} {:>7} {:>10.0} {:>10.0} {ratio:>13.2} {:>6.2} {:>6.2} {target:>7} {fast:>5} {:>9.0} {:>7.0} {:>10}",
            self.work,
            self.threads,
            rate(&self.ours),
            rate(&self.theirs),
            ratios[0],
            ratios[ratios.len() - 1],
            ours / f64::from(1 << 20),
            theirs / f64::from(1 << 20),
            yes(ours <= MEMORY * theirs),
        )
    }
}

/// From the smallest to the largest.
pub(super) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The middle one, the lower of two.
pub(super) fn median(sorted: &[f64]) -> f64 {
    sorted[(sorted.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_either_spelling() {
        let line = "{\"peer\":\"x\",\"samples_per_s\": 12.5, \"peak_rss_bytes\":7}\n";
        assert_eq!((number(line, "samples_per_s"), number(line, "peak_rss_bytes")), (Some(12.5), Some(7.0)));
        assert_eq!(number(line, "best"), None);
    }

    #[test]
    fn the_median_of_the_ratios_decides() {
        let run = |rate: f64| Run { rate, memory: rate };
        let comparison = |ours: [f64; 3]| Comparison {
            work: "mlp".into(),
            threads: 1,
            ours: ours.map(run).to_vec(),
            theirs: [100.0; 3].map(run).to_vec(),
        };
        assert!(!comparison([150.0, 159.0, 400.0]).held());
        assert!(comparison([10.0, 161.0, 170.0]).line().contains(" 1.61 "));
        assert!(!comparison([161.0; 3]).held(), "more than half of their memory");
    }
}
