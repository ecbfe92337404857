//! How long the steps of a rank take: the shortest, the middle, the longest.

use serde::{Deserialize, Serialize};

/// Times kept to find the middle one.
const KEPT: usize = 4096;

/// The shortest, the middle and the longest of some times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The shortest.
    pub min: f64,
    /// Half of them were shorter.
    pub median: f64,
    /// The longest.
    pub max: f64,
}

impl Spread {
    /// Of these times; all zero if there are none.
    pub fn of(times: impl IntoIterator<Item = f32>) -> Spread {
        let mut times: Vec<f32> = times.into_iter().collect();
        times.sort_by(f32::total_cmp);
        let at = |place: usize| times.get(place).copied().map_or(0.0, f64::from);
        Spread { min: at(0), median: at(times.len() / 2), max: at(times.len().saturating_sub(1)) }
    }
}

/// Times as they come, in bounded memory: of many, the middle is that of every second one, every fourth and so on.
#[derive(Clone, Debug, Default)]
pub struct Times {
    kept: Vec<f32>,
    /// One of 2 to the power of this many is kept.
    thinned: u32,
    count: u64,
    bounds: Option<(f32, f32)>,
}

impl Times {
    /// One more, in milliseconds.
    pub fn add(&mut self, milliseconds: f32) {
        let (least, most) = self.bounds.unwrap_or((milliseconds, milliseconds));
        self.bounds = Some((least.min(milliseconds), most.max(milliseconds)));
        if self.count.is_multiple_of(1 << self.thinned) {
            self.kept.push(milliseconds);
        }
        self.count += 1;
        if self.kept.len() == KEPT {
            let mut place = 0;
            self.kept.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.thinned += 1;
        }
    }

    /// What they come to.
    pub fn spread(&self) -> Spread {
        let (least, most) = self.bounds.unwrap_or_default();
        let Spread { median, .. } = Spread::of(self.kept.iter().copied());
        Spread { min: least.into(), median, max: most.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_times_are_exact_and_many_nearly() {
        assert_eq!(Times::default().spread(), Spread::default());
        let mut times = Times::default();
        [3.0, 1.0, 2.0].into_iter().for_each(|time| times.add(time));
        assert_eq!(times.spread(), Spread { min: 1.0, median: 2.0, max: 3.0 });
        let mut times = Times::default();
        (0..100_000u32).for_each(|step| times.add((step * 7919 % 100_000) as f32));
        let spread = times.spread();
        assert_eq!((spread.min, spread.max), (0.0, 99_999.0));
        assert!((spread.median - 50_000.0).abs() < 2_000.0, "{spread:?}");
        assert!(times.kept.len() < KEPT);
    }
}
