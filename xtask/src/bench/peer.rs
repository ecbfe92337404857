//! Other systems to measure beside: where their scripts are, what they print, how runs in turns are compared.
//!
//! Machines are shared and their speed changes from second to second, so only ratios of runs that follow each other
//! count: ours, theirs, ours, theirs.

use crate::command::{Outcome, output, root, spelled, succeeds};
use clap::Args;
use std::path::PathBuf;
use std::process::Command;

/// Where the peers are.
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
    /// A file of theirs, if it is there.
    pub fn file(&self, name: &str) -> Outcome<PathBuf> {
        let path = root().join(&self.folder).join(name);
        match path.is_file() {
            true => Ok(path),
            false => Err(format!(
                "{} is not there: --peers names the folder of the peers' scripts",
                path.display()
            )),
        }
    }

    /// One of their Python scripts, if it and PyTorch are there.
    pub fn script(&self, name: &str) -> Outcome<Script> {
        let path = self.file(name)?;
        if !succeeds(Command::new(&self.python).args(["-c", "import torch"])) {
            return Err(format!(
                "{} has no PyTorch: run `{} DIR`, then pass --python DIR/bin/python",
                self.python.display(),
                path.with_file_name("setup.sh").display()
            ));
        }
        Ok(Script { python: self.python.clone(), path })
    }
}

/// A Python script that can be run.
pub struct Script {
    python: PathBuf,
    path: PathBuf,
}

impl Script {
    /// It with arguments.
    pub fn with(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(&self.path).args(arguments).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// The numbers behind those keys in the line of JSON that a program prints.
pub fn measure<const COUNT: usize>(command: &mut Command, keys: [&str; COUNT]) -> Outcome<[f64; COUNT]> {
    let text = String::from_utf8_lossy(&output(command)?).into_owned();
    let mut numbers = [0.0; COUNT];
    for (place, key) in numbers.iter_mut().zip(keys) {
        *place =
            number(&text, key).ok_or_else(|| format!("`{}` printed no {key}: {text}", spelled(command)))?;
    }
    Ok(numbers)
}

/// The value of a key in a flat JSON object, without its quotes.
pub fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, behind) = line.rsplit_once(&format!("\"{key}\":"))?;
    let end = behind.find([',', '}'])?;
    Some(behind[..end].trim().trim_matches('"'))
}

/// The number behind a key.
pub fn number(line: &str, key: &str) -> Option<f64> {
    value(line, key)?.parse().ok()
}

/// Rates of runs in turns, ours beside theirs. There is at least one pair.
#[derive(Default)]
pub struct Rates {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Rates {
    /// Notes a pair.
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

    /// What [`Rates::line`] shows.
    pub const HEADER: &str = "    ours/s   theirs/s  ratio median    min    max  target  held";

    /// Medians, the spread of the ratio, and whether it reaches the target, if there is one.
    pub fn line(&self, target: Option<f64>) -> String {
        let (ratios, ratio) = (self.ratios(), self.ratio());
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let (target, held) = match target {
            Some(target) => (format!("{target:.2}"), yes(ratio >= target)),
            None => ("-".into(), "-"),
        };
        let (ours, theirs) = (median(&self.ours), median(&self.theirs));
        format!("{ours:>10.0} {theirs:>10.0} {ratio:>13.2} {least:>6.2} {most:>6.2} {target:>7} {held:>5}")
    }
}

/// A word for a table.
pub fn yes(held: bool) -> &'static str {
    if held { "yes" } else { "NO" }
}

/// The middle one, the lower of two; no number if there is none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_either_spelling() {
        let line = "{\"peer\": \"gloo\",\"n\":2,\"samples_per_s\": 12.5, \"us\": 789.25}\n";
        assert_eq!(value(line, "peer"), Some("gloo"));
        assert_eq!((number(line, "samples_per_s"), number(line, "us")), (Some(12.5), Some(789.25)));
        assert_eq!(number(line, "best"), None);
    }

    #[test]
    fn the_median_of_the_ratios_decides() {
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
