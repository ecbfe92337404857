//! `--against BINARY`: two binaries of this project on the same work, in alternating pairs.
//!
//! A case is slower if the 95% bootstrap interval of the paired median lies below 1, or if it needs over 3% more user CPU
//! time per row. An interval wider than 10% is inconclusive.

use super::peer::{measure, median, yes};
use crate::command::Outcome;
use std::path::Path;
use std::process::Command;

/// Largest acceptable ratio of user CPU time per row.
const CPU_TOLERANCE: f64 = 1.03;

/// Wider intervals are inconclusive.
const MAX_WIDTH: f64 = 0.10;

const RESAMPLES: usize = 10_000;

pub struct Case {
    /// The first column of the table.
    pub name: String,
    /// Arguments of `thalweg`, which prints one line of JSON.
    pub arguments: Vec<String>,
}

/// The header of [`Pairs::line`].
pub const HEADER: &str =
    "case                         ours        other  ratio  95% interval    user CPU  verdict";

/// Measures training cases with both binaries in alternating pairs; fails if a case is slower.
pub fn compare_training(ours: &Path, other: &Path, cases: &[Case], pairs: usize) -> Outcome {
    println!("{HEADER}");
    let mut passed = true;
    for case in cases {
        let (mut rates, mut cpu) = (Pairs::default(), Vec::new());
        for pair in 0..pairs.max(1) {
            // The order alternates, so that drift of the machine favours neither.
            let mut order: [&Path; 2] = [ours, other];
            if pair % 2 == 1 {
                order.reverse();
            }
            let [first, second] = order.map(|binary| {
                let mut command = Command::new(binary);
                measure(command.args(&case.arguments), ["samples_per_s", "user_us_per_row"])
            });
            let (mut ours, mut other) = (first?, second?);
            if pair % 2 == 1 {
                std::mem::swap(&mut ours, &mut other);
            }
            rates.push(ours[0], other[0]);
            cpu.push(ours[1] / other[1]);
        }
        let cpu = median(&cpu);
        let verdict = rates.verdict();
        println!("{}", rates.line(&case.name, Some(cpu)));
        passed &= verdict != Verdict::Slower && cpu <= CPU_TOLERANCE;
    }
    if passed { Ok(()) } else { Err("a case is slower than with the other binary".into()) }
}

/// Figures of alternating runs; larger is better.
#[derive(Default)]
pub struct Pairs {
    ours: Vec<f64>,
    other: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interval lies below 1.
    Slower,
    /// The interval is too wide to decide.
    Inconclusive,
    NotSlower,
}

impl Pairs {
    pub fn push(&mut self, ours: f64, other: f64) {
        self.ours.push(ours);
        self.other.push(other);
    }

    fn ratios(&self) -> Vec<f64> {
        self.ours.iter().zip(&self.other).map(|(ours, other)| ours / other).collect()
    }

    pub fn verdict(&self) -> Verdict {
        let [low, high] = interval(&self.ratios());
        match (high < 1.0, high - low > MAX_WIDTH) {
            (true, _) => Verdict::Slower,
            (false, true) => Verdict::Inconclusive,
            (false, false) => Verdict::NotSlower,
        }
    }

    /// Medians, the paired median with its interval, the ratio of user CPU time, and the verdict.
    pub fn line(&self, name: &str, cpu: Option<f64>) -> String {
        let ratios = self.ratios();
        let ([low, high], ratio) = (interval(&ratios), median(&ratios));
        let cpu = cpu.map_or("-".into(), |cpu| format!("{cpu:.3} {}", yes(cpu <= CPU_TOLERANCE)));
        let verdict = match self.verdict() {
            Verdict::Slower => "SLOWER",
            Verdict::Inconclusive => "inconclusive",
            Verdict::NotSlower => "not slower",
        };
        let (ours, other) = (median(&self.ours), median(&self.other));
        format!(
            "{name:<22} {ours:>10.1} {other:>12.1} {ratio:>6.3}  {low:.3} to {high:.3} {cpu:>11}  {verdict}"
        )
    }
}

/// The 95% bootstrap interval of the median, from a fixed seed.
fn interval(ratios: &[f64]) -> [f64; 2] {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        // xorshift64 is sufficient for a bootstrap.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| median(&ratios.iter().map(|_| ratios[draw(ratios.len())]).collect::<Vec<_>>()))
        .collect();
    medians.sort_by(f64::total_cmp);
    [RESAMPLES / 40, RESAMPLES - 1 - RESAMPLES / 40].map(|index| medians[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ratios: &[f64]) -> Pairs {
        let mut pairs = Pairs::default();
        ratios.iter().for_each(|ratio| pairs.push(100.0 * ratio, 100.0));
        pairs
    }

    #[test]
    fn the_interval_decides() {
        let spread = |centre: f64, width: f64| -> Vec<f64> {
            (0..11).map(|index| centre + width * (f64::from(index) - 5.0) / 10.0).collect()
        };
        assert_eq!(pairs(&spread(0.97, 0.02)).verdict(), Verdict::Slower);
        assert_eq!(pairs(&spread(0.995, 0.04)).verdict(), Verdict::NotSlower);
        assert_eq!(pairs(&spread(1.0, 0.9)).verdict(), Verdict::Inconclusive);
        assert!(pairs(&spread(0.97, 0.02)).line("mlp", Some(1.04)).contains("1.040 NO"));
    }

    #[test]
    fn the_interval_contains_the_median_and_repeats() {
        let ratios = [0.9, 1.0, 1.1, 1.05, 0.95];
        let [low, high] = interval(&ratios);
        assert!(low <= 1.0 && 1.0 <= high);
        assert_eq!(interval(&ratios), [low, high]);
    }
}
