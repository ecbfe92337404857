//! MNIST with `thalweg train` compared with `bench train`: training on files, with epochs, checkpoints and a report, must
//! reach the speed of the benchmark.

use super::peer::{median, number};
use crate::command::{Outcome, output};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The share of the benchmark's rows per second that `train` must reach.
const TARGET: f64 = 0.8;

/// The job of `bench train --work mlp`.
const JOB: [&str; 6] = [
    "model.zoo=mlp",
    "train.global_batch=256",
    "train.optimizer.kind=adam",
    "train.epochs=5",
    "engine.workers=1",
    "engine.threads=1",
];

/// Ratios of consecutive runs, sorted, at least one.
pub struct Share(Vec<f64>);

impl Share {
    pub fn measure(binary: &Path, folder: &Path, pairs: usize, seconds: f64) -> Outcome<Share> {
        let run = RunFolder(std::env::temp_dir().join(format!("thalweg-bench-mnist-{}", std::process::id())));
        let source = format!("data.source={}", folder.display());
        let mut ratios = Vec::new();
        for _ in 0..pairs.max(1) {
            let mut bench = Command::new(binary);
            bench.args(["bench", "train", "--json", "--work", "mlp", "--threads", "1", "--seconds"]);
            let text = output(bench.arg(seconds.to_string()))?;
            let benchmark = rate(&String::from_utf8_lossy(&text))?;
            let mut train = Command::new(binary);
            train.args(["train", "--quiet", "--set", &source]).arg("--out").arg(&run.0);
            for key in JOB {
                train.args(["--set", key]);
            }
            output(&mut train)?;
            let report = run.0.join("report.json");
            let text = std::fs::read_to_string(&report)
                .map_err(|error| format!("cannot read {}: {error}", report.display()))?;
            ratios.push(rate(&text)? / benchmark);
            run.clear();
        }
        Ok(Share(sorted(ratios)))
    }

    /// Whether the median reaches the target.
    pub fn passed(&self) -> bool {
        median(&self.0) >= TARGET
    }

    pub fn line(&self) -> String {
        format!(
            "MNIST through `train` reaches {:.2} of `bench train --work mlp` ({:.2} to {:.2}); at least {TARGET}: {}",
            median(&self.0),
            self.0[0],
            self.0[self.0.len() - 1],
            if self.passed() { "yes" } else { "NO" },
        )
    }
}

fn rate(text: &str) -> Outcome<f64> {
    number(text, "samples_per_s").ok_or_else(|| format!("no samples_per_s in {text}"))
}

/// A run folder that is removed on drop.
struct RunFolder(PathBuf);

impl RunFolder {
    fn clear(&self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        self.clear();
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides() {
        assert!(Share(vec![0.5, 0.81, 0.9]).passed());
        let missed = Share(vec![0.5, 0.79, 0.9]);
        assert!(!missed.passed() && missed.line().contains("0.79") && missed.line().ends_with("NO"));
    }
}
