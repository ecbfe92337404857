//! Minimum, median and maximum of step times, in bounded memory.

use serde::{Deserialize, Serialize};

/// Samples kept for the median.
const CAPACITY: usize = 4096;

/// Minimum, median and maximum in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// All zero without times.
    pub fn of(times: impl IntoIterator<Item = f32>) -> Spread {
        let mut times: Vec<f32> = times.into_iter().collect();
        times.sort_by(f32::total_cmp);
        let at = |index: usize| times.get(index).copied().map_or(0.0, f64::from);
        Spread { min: at(0), median: at(times.len() / 2), max: at(times.len().saturating_sub(1)) }
    }
}

/// A stream of times in bounded memory. Minimum and maximum are exact; when full, every second sample is dropped, so the
/// median of a long stream is that of every 2nd, 4th, ... time.
#[derive(Clone, Debug, Default)]
pub struct Times {
    samples: Vec<f32>,
    /// One of `2^halvings` times is sampled.
    halvings: u32,
    count: u64,
    bounds: Option<(f32, f32)>,
}

impl Times {
    pub fn add(&mut self, milliseconds: f32) {
        let (min, max) = self.bounds.unwrap_or((milliseconds, milliseconds));
        self.bounds = Some((min.min(milliseconds), max.max(milliseconds)));
        if self.count.is_multiple_of(1 << self.halvings) {
            self.samples.push(milliseconds);
        }
        self.count += 1;
        if self.samples.len() == CAPACITY {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.halvings += 1;
        }
    }

    pub fn spread(&self) -> Spread {
        let (min, max) = self.bounds.unwrap_or_default();
        let Spread { median, .. } = Spread::of(self.samples.iter().copied());
        Spread { min: min.into(), median, max: max.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_times_are_exact_and_many_approximate() {
        assert_eq!(Times::default().spread(), Spread::default());
        let mut times = Times::default();
        [3.0, 1.0, 2.0].into_iter().for_each(|time| times.add(time));
        assert_eq!(times.spread(), Spread { min: 1.0, median: 2.0, max: 3.0 });
        let mut times = Times::default();
        (0..100_000u32).for_each(|step| times.add((step * 7919 % 100_000) as f32));
        let spread = times.spread();
        assert_eq!((spread.min, spread.max), (0.0, 99_999.0));
        assert!((spread.median - 50_000.0).abs() < 2_000.0, "{spread:?}");
        assert!(times.samples.len() < CAPACITY);
    }
}
