//! Other systems to compare with: their scripts, their output, and the comparison of alternating runs.
//!
//! The speed of a shared machine varies over seconds, so only ratios of consecutive runs are used: ours, theirs, ours,
//! theirs.

use crate::command::{Outcome, output, root, shell_line, succeeds};
use clap::Args;
use std::path::PathBuf;
use std::process::Command;

#[derive(Args)]
pub struct Peers {
    /// The folder of the peers' scripts
    #[arg(long = "peers", default_value = "../shared/peers")]
    folder: PathBuf,
    /// A Python that has PyTorch
    #[arg(long, default_value = "python3")]
    python: PathBuf,
}

impl Peers {
    /// A file of the folder, if it exists.
    pub fn file(&self, name: &str) -> Outcome<PathBuf> {
        let path = root().join(&self.folder).join(name);
        match path.is_file() {
            true => Ok(path),
            false => Err(format!(
                "{} does not exist: pass the folder of the peers' scripts with --peers",
                path.display()
            )),
        }
    }

    /// A Python script, if it and PyTorch exist.
    pub fn script(&self, name: &str) -> Outcome<Script> {
        self.own_script(self.file(name)?)
    }

    /// A Python script of this project, if PyTorch exists.
    pub fn own_script(&self, path: PathBuf) -> Outcome<Script> {
        if !succeeds(Command::new(&self.python).args(["-c", "import torch"])) {
            return Err(format!(
                "{} has no PyTorch: install it with pip and pass --python with a Python that has it",
                self.python.display(),
            ));
        }
        Ok(Script { python: self.python.clone(), path })
    }
}

pub struct Script {
    python: PathBuf,
    path: PathBuf,
}

impl Script {
    pub fn with(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(&self.path).args(arguments).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// Runs a program and returns these numbers of the JSON line that it prints.
pub fn measure<const COUNT: usize>(command: &mut Command, keys: [&str; COUNT]) -> Outcome<[f64; COUNT]> {
    let text = String::from_utf8_lossy(&output(command)?).into_owned();
    let mut numbers = [0.0; COUNT];
    for (slot, key) in numbers.iter_mut().zip(keys) {
        *slot = number(&text, key)
            .ok_or_else(|| format!("`{}` printed no {key}: {text}", shell_line(command)))?;
    }
    Ok(numbers)
}

/// The value of a key in a flat JSON object, without its quotes.
pub fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.rsplit_once(&format!("\"{key}\":"))?;
    let end = rest.find([',', '}'])?;
    Some(rest[..end].trim().trim_matches('"'))
}

pub fn number(line: &str, key: &str) -> Option<f64> {
    value(line, key)?.parse().ok()
}

/// Rates of alternating runs, at least one pair.
#[derive(Default)]
pub struct Rates {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Rates {
    pub fn push(&mut self, ours: f64, theirs: f64) {
        self.ours.push(ours);
        self.theirs.push(theirs);
    }

    /// The median of the ratios of the pairs.
    pub fn ratio(&self) -> f64 {
        median(&self.ratios())
    }

    fn ratios(&self) -> Vec<f64> {
        self.ours.iter().zip(&self.theirs).map(|(ours, theirs)| ours / theirs).collect()
    }

    /// The header of [`Rates::line`].
    pub const HEADER: &str = "    ours/s   theirs/s  ratio median    min    max  target  held";

    /// Medians, the range of the ratio, and whether it reaches the target.
    pub fn line(&self, target: Option<f64>) -> String {
        let (ratios, ratio) = (self.ratios(), self.ratio());
        let min = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let max = ratios.iter().copied().fold(0.0, f64::max);
        let (target, held) = match target {
            Some(target) => (format!("{target:.2}"), yes(ratio >= target)),
            None => ("-".into(), "-"),
        };
        let (ours, theirs) = (median(&self.ours), median(&self.theirs));
        format!("{ours:>10.0} {theirs:>10.0} {ratio:>13.2} {min:>6.2} {max:>6.2} {target:>7} {held:>5}")
    }
}

pub fn yes(held: bool) -> &'static str {
    if held { "yes" } else { "NO" }
}

/// The lower median; NaN without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_with_and_without_spaces() {
        let line = "{\"peer\": \"gloo\",\"n\":2,\"samples_per_s\": 12.5, \"us\": 789.25}\n";
        assert_eq!(value(line, "peer"), Some("gloo"));
        assert_eq!((number(line, "samples_per_s"), number(line, "us")), (Some(12.5), Some(789.25)));
        assert_eq!(number(line, "best"), None);
    }

    #[test]
    fn the_median_of_the_ratios_is_compared() {
        let mut rates = Rates::default();
        for ours in [10.0, 161.0, 170.0] {
            rates.push(ours, 100.0);
        }
        assert_eq!(rates.ratio(), 1.61);
        assert!(rates.line(Some(1.6)).ends_with("yes") && rates.line(Some(1.7)).ends_with("NO"));
        assert!(rates.line(None).ends_with('-'));
        assert_eq!(median(&[3.0, 1.0, 2.0, 4.0]), 2.0);
    }
}
