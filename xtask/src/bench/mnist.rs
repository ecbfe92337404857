//! MNIST through `thalweg train` beside `bench train`: who trains on files, with ends of epochs, checkpoints and a report,
//! gets the speed that is measured.

use super::peer::number;
use crate::command::{Outcome, output};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The share of `bench train`'s rows per second that `train` must reach.
const LEAST: f64 = 0.8;

/// A job that does what `bench train --work mlp` does.
const JOB: [&str; 6] = [
    "model.zoo=mlp",
    "train.global_batch=256",
    "train.optimizer.kind=adam",
    "train.epochs=5",
    "engine.workers=1",
    "engine.threads=1",
];

/// Ratios of pairs of runs that follow each other, sorted. There is at least one.
pub struct Share(Vec<f64>);

impl Share {
    /// Measures that many pairs.
    pub fn measure(binary: &Path, folder: &Path, pairs: usize, seconds: f64) -> Outcome<Share> {
        let run = Scratch(std::env::temp_dir().join(format!("thalweg-bench-mnist-{}", std::process::id())));
        let source = format!("data.source={}", folder.display());
        let mut ratios = Vec::new();
        for _ in 0..pairs.max(1) {
            let mut bench = Command::new(binary);
            bench.args(["bench", "train", "--json", "--work", "mlp", "--threads", "1", "--seconds"]);
            let text = output(bench.arg(seconds.to_string()))?;
            let alone = rate(&String::from_utf8_lossy(&text))?;
            let mut train = Command::new(binary);
            train.args(["train", "--quiet", "--set", &source]).arg("--out").arg(&run.0);
            for key in JOB {
                train.args(["--set", key]);
            }
            output(&mut train)?;
            let report = run.0.join("report.json");
            let text = std::fs::read_to_string(&report)
                .map_err(|error| format!("cannot read {}: {error}", report.display()))?;
            ratios.push(rate(&text)? / alone);
            run.clear();
        }
        Ok(Share(sorted(ratios)))
    }

    /// Whether the median is enough.
    pub fn held(&self) -> bool {
        median(&self.0) >= LEAST
    }

    /// A line under the table.
    pub fn line(&self) -> String {
        format!(
            "MNIST through `train` reaches {:.2} of `bench train --work mlp` ({:.2} to {:.2}); at least {LEAST}: {}",
            median(&self.0),
            self.0[0],
            self.0[self.0.len() - 1],
            if self.held() { "yes" } else { "NO" },
        )
    }
}

fn rate(text: &str) -> Outcome<f64> {
    number(text, "samples_per_s").ok_or_else(|| format!("no samples_per_s in {text}"))
}

/// A run folder that goes when it is not needed any more.
struct Scratch(PathBuf);

impl Scratch {
    fn clear(&self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.clear();
    }
}

/// From the smallest to the largest.
fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The middle one, the lower of two.
fn median(sorted: &[f64]) -> f64 {
    sorted[(sorted.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides() {
        assert!(Share(vec![0.5, 0.81, 0.9]).held());
        let missed = Share(vec![0.5, 0.79, 0.9]);
        assert!(!missed.held() && missed.line().contains("0.79") && missed.line().ends_with("NO"));
    }
}
