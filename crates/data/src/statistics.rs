//! Counts, means and extremes of the training rows, per block.
//!
//! Each worker collects a partition of the blocks; partial results are merged in block order, so the result
//! is bit-identical for any number of workers.

use crate::block::{Block, BlockFeatures};
use crate::offset_encoding::GapHistogram;
use serde::{Deserialize, Serialize};
use thalweg_core::Targets;

/// Statistics of a partition of the blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    pub(crate) blocks: Vec<BlockStatistics>,
}

/// Statistics of the training rows of one block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BlockStatistics {
    pub(crate) block: u64,
    pub(crate) rows: u64,
    /// Moments per column; sparse rows list only columns that occur.
    pub(crate) columns: Vec<(u32, Moments)>,
    pub(crate) target: Moments,
    /// Gaps between values, for columns whose values exceed single precision.
    pub(crate) gaps: Vec<(u32, GapHistogram)>,
}

/// Moments of one column.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Moments {
    /// Values that are not missing.
    pub(crate) count: u64,
    pub(crate) mean: f64,
    /// Sum of squared distances from the mean.
    pub(crate) squares: f64,
    pub(crate) smallest: f64,
    pub(crate) largest: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Moments { count: 0, mean: 0.0, squares: 0.0, smallest: f64::INFINITY, largest: f64::NEG_INFINITY }
    }
}

impl Moments {
    /// Adds a value (Welford); NaN is missing and not counted.
    pub(crate) fn add(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        self.count += 1;
        let distance = value - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (value - self.mean);
        self.smallest = self.smallest.min(value);
        self.largest = self.largest.max(value);
    }

    /// Merges the moments of other values of the column (Chan et al.).
    pub(crate) fn merge(&mut self, other: &Moments) {
        if other.count == 0 {
            return;
        }
        let total = (self.count + other.count) as f64;
        let distance = other.mean - self.mean;
        let weight = other.count as f64 / total;
        self.squares += other.squares + distance * distance * self.count as f64 * weight;
        self.mean += distance * weight;
        self.count += other.count;
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
    }

    /// Adds zeros that sparse rows do not store.
    pub(crate) fn add_zeros(&mut self, count: u64) {
        self.merge(&Moments { count, mean: 0.0, squares: 0.0, smallest: 0.0, largest: 0.0 });
    }

    /// The population standard deviation.
    pub(crate) fn deviation(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

impl BlockStatistics {
    /// Collects over some rows of a block, for the `wanted` columns (sparse rows: all that occur).
    pub(crate) fn collect(
        number: usize,
        block: &Block,
        rows: &[usize],
        width: usize,
        wanted: &[u32],
    ) -> BlockStatistics {
        let mut target = Moments::default();
        if let Targets::Values(values) = &block.targets {
            rows.iter().for_each(|&row| target.add(f64::from(values[row]) + block.target_offset));
        }
        let columns = match &block.features {
            BlockFeatures::Dense(values) => dense(rows, wanted, |row, column| {
                let offset = block.offsets.get(column).copied().unwrap_or(0.0);
                f64::from(values[row * width + column]) + offset
            }),
            BlockFeatures::Pixels(pixels) => {
                dense(rows, wanted, |row, column| f64::from(pixels[row * width + column]))
            }
            BlockFeatures::Sparse { starts, columns, values } if !wanted.is_empty() => {
                sparse(rows, starts, columns, values)
            }
            BlockFeatures::Sparse { .. } | BlockFeatures::Text(_) => Vec::new(),
        };
        let gaps = block.gaps.clone();
        BlockStatistics { block: number as u64, rows: rows.len() as u64, columns, target, gaps }
    }
}

fn dense(rows: &[usize], wanted: &[u32], value: impl Fn(usize, usize) -> f64) -> Vec<(u32, Moments)> {
    let mut columns: Vec<(u32, Moments)> =
        wanted.iter().map(|&column| (column, Moments::default())).collect();
    for &row in rows {
        for (column, moments) in &mut columns {
            moments.add(value(row, *column as usize));
        }
    }
    columns
}

fn sparse(rows: &[usize], starts: &[usize], columns: &[u32], values: &[f32]) -> Vec<(u32, Moments)> {
    let mut found = std::collections::BTreeMap::<u32, Moments>::new();
    for &row in rows {
        for index in starts[row]..starts[row + 1] {
            found.entry(columns[index]).or_default().add(f64::from(values[index]));
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn moments(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        values.iter().for_each(|&value| moments.add(value));
        moments
    }

    proptest! {
        #[test]
        fn parts_combine_to_the_whole(values in prop::collection::vec(-1e3f64..1e3, 1..200), cut in 0usize..200) {
            let cut = cut.min(values.len());
            let mut combined = moments(&values[..cut]);
            combined.merge(&moments(&values[cut..]));
            let whole = moments(&values);
            prop_assert_eq!(combined.count, whole.count);
            prop_assert!((combined.mean - whole.mean).abs() < 1e-9);
            prop_assert!((combined.deviation() - whole.deviation()).abs() < 1e-7);
            prop_assert_eq!((combined.smallest, combined.largest), (whole.smallest, whole.largest));
        }
    }

    #[test]
    fn missing_values_do_not_count_and_zeros_can_be_added() {
        assert_eq!(moments(&[1.0, f64::NAN, 3.0]).mean, 2.0);
        let mut sparse = moments(&[4.0, 4.0]);
        sparse.add_zeros(2);
        assert_eq!((sparse.mean, sparse.deviation(), sparse.smallest), (2.0, 2.0, 0.0));
    }
}
