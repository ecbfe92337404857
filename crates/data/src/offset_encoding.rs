//! Stores double-precision columns in single precision without losing distinct values.
//!
//! A Unix time or an account number does not fit into an `f32`, but its distance from the mean of its block
//! usually does, with an error no larger than that of scaling. A column of a block whose values would be
//! rounded is therefore stored as distances from an offset near their mean, if these are smaller. The choice
//! is a function of the values in the block, so it is the same on every rank.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_core::Targets;

/// Minimum ratio of the largest value to the largest distance: the offset must save at least one bit.
const MIN_GAIN: f64 = 2.0;

/// Offsets are multiples of this fraction of the largest distance, rounded to a power of two: distances
/// between integers stay exact.
const OFFSET_GRANULARITY: f64 = 1.0 / 16.0;

pub(crate) const F32_RELATIVE_ERROR: f64 = 1.0 / (1 << 24) as f64;

/// Integers up to here are exact in single precision.
const F32_EXACT_LIMIT: f64 = (1 << 24) as f64;

/// Whether the value is large and not exact in single precision.
pub(crate) fn exceeds_f32(value: f64) -> bool {
    value.abs() >= F32_EXACT_LIMIT && f64::from(value as f32) != value
}

/// Range and mean of a column, to choose its offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueRange {
    smallest: f64,
    largest: f64,
    count: u64,
    first: f64,
    /// Sum of the distances from the first value.
    distances: f64,
    /// Whether all values are exact in single precision.
    exact: bool,
}

impl Default for ValueRange {
    fn default() -> Self {
        let (smallest, largest) = (f64::INFINITY, f64::NEG_INFINITY);
        ValueRange { smallest, largest, count: 0, first: 0.0, distances: 0.0, exact: true }
    }
}

impl ValueRange {
    pub(crate) fn add(&mut self, value: f64) {
        // NaN is a missing value.
        if value.is_nan() {
            return;
        }
        if self.count == 0 {
            self.first = value;
        }
        self.count += 1;
        self.distances += value - self.first;
        self.smallest = self.smallest.min(value);
        self.largest = self.largest.max(value);
        self.exact &= f64::from(value as f32) == value;
    }

    fn of(values: &[f64]) -> ValueRange {
        let mut span = ValueRange::default();
        values.iter().for_each(|&value| span.add(value));
        span
    }

    fn size(&self) -> f64 {
        self.smallest.abs().max(self.largest.abs())
    }

    /// The offset to subtract before conversion to single precision.
    pub(crate) fn offset(&self) -> f64 {
        let mean = self.first + self.distances / self.count as f64;
        let distance = (self.largest - mean).max(mean - self.smallest);
        // With a few large values among many small ones, distances would round the small ones.
        let shorter = self.size() > MIN_GAIN * distance;
        if self.exact || !shorter {
            return 0.0;
        }
        let granularity = OFFSET_GRANULARITY * distance.log2().floor().exp2();
        if granularity.is_normal() { (mean / granularity).round() * granularity } else { self.first }
    }

    /// Whether values may collapse even as distances.
    pub(crate) fn needs_gaps(&self) -> bool {
        !self.exact && self.size() >= F32_EXACT_LIMIT
    }
}

/// Gaps between adjacent distinct values of a column, and how many of them the stored form loses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GapHistogram {
    /// Number of gaps per power of two.
    sizes: BTreeMap<i16, u64>,
    /// Adjacent values that became equal when stored.
    lost: u64,
    /// Largest stored distance.
    distance: f64,
}

impl GapHistogram {
    /// Gaps of values that are stored as distances from `offset`.
    pub(crate) fn of(values: impl Iterator<Item = f64>, offset: f64) -> GapHistogram {
        let mut values: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
        values.sort_unstable_by(f64::total_cmp);
        let mut gaps = GapHistogram::default();
        for pair in values.windows(2).filter(|pair| pair[0] < pair[1]) {
            *gaps.sizes.entry((pair[1] - pair[0]).log2().floor() as i16).or_default() += 1;
            gaps.lost += u64::from((pair[0] - offset) as f32 == (pair[1] - offset) as f32);
        }
        let ends = [values.first(), values.last()].into_iter().flatten();
        gaps.distance = ends.fold(0.0, |most, value| (value - offset).abs().max(most));
        gaps
    }

    pub(crate) fn merge(&mut self, other: &GapHistogram) {
        for (&power, count) in &other.sizes {
            *self.sizes.entry(power).or_default() += count;
        }
        self.lost += other.lost;
        self.distance = self.distance.max(other.distance);
    }

    /// The smallest step that the stored form resolves over its whole range.
    pub(crate) fn resolution(&self) -> f64 {
        F32_RELATIVE_ERROR * self.distance
    }

    /// The fraction of gaps that were lost or are smaller than `size`.
    pub(crate) fn fraction_lost(&self, size: f64) -> f64 {
        let all: u64 = self.sizes.values().sum();
        let limit = size.log2();
        let sizes = self.sizes.iter().filter(|(power, _)| f64::from(**power) < limit);
        let below: u64 = sizes.map(|(_, count)| count).sum();
        below.max(self.lost) as f64 / all.max(1) as f64
    }
}

/// Dense rows as stored in a block.
pub(crate) struct EncodedRows {
    pub(crate) features: Vec<f32>,
    /// Offset subtracted from each column; empty if all are 0.
    pub(crate) offsets: Vec<f64>,
    pub(crate) gaps: Vec<(u32, GapHistogram)>,
}

/// Builds dense rows column by column.
pub(crate) struct ColumnBuilder {
    width: usize,
    pub(crate) rows: EncodedRows,
}

impl ColumnBuilder {
    /// `rows` rows of zeros.
    pub(crate) fn new(rows: usize, width: usize) -> ColumnBuilder {
        let features = vec![0.0; rows * width];
        ColumnBuilder { width, rows: EncodedRows { features, offsets: Vec::new(), gaps: Vec::new() } }
    }

    pub(crate) fn set(&mut self, row: usize, position: usize, value: f32) {
        self.rows.features[row * self.width + position] = value;
    }

    pub(crate) fn column(&mut self, position: usize, values: &[f64]) {
        self.write(position, &ValueRange::of(values), || values.iter().copied());
    }

    fn write<I: Iterator<Item = f64>>(&mut self, position: usize, span: &ValueRange, values: impl Fn() -> I) {
        let offset = span.offset();
        if span.needs_gaps() {
            self.rows.gaps.push((position as u32, GapHistogram::of(values(), offset)));
        }
        if offset != 0.0 {
            self.rows.offsets.resize(self.width, 0.0);
            self.rows.offsets[position] = offset;
        }
        let into = self.rows.features.iter_mut().skip(position).step_by(self.width);
        into.zip(values()).for_each(|(into, value)| *into = (value - offset) as f32);
    }
}

/// Builds dense rows row by row.
pub(crate) struct RowBuilder {
    /// Positions of numbers in a row; the others are one-hot.
    positions: Vec<usize>,
    spans: Vec<ValueRange>,
    /// The numbers of all rows in double precision.
    numbers: Vec<f64>,
    columns: ColumnBuilder,
}

impl RowBuilder {
    /// Reserves memory for `rows` rows.
    pub(crate) fn new(width: usize, positions: Vec<usize>, rows: usize) -> RowBuilder {
        let mut columns = ColumnBuilder::new(0, width);
        columns.rows.features.reserve(rows * width);
        let (spans, numbers) =
            (vec![ValueRange::default(); positions.len()], Vec::with_capacity(rows * positions.len()));
        RowBuilder { positions, spans, numbers, columns }
    }

    pub(crate) fn push(&mut self, row: &[f64]) {
        self.columns.rows.features.extend(row.iter().map(|&value| value as f32));
        for (&position, span) in self.positions.iter().zip(&mut self.spans) {
            span.add(row[position]);
            self.numbers.push(row[position]);
        }
    }

    /// Rewrites only the columns that need an offset.
    pub(crate) fn finish(mut self) -> EncodedRows {
        for (column, (&position, span)) in self.positions.iter().zip(&self.spans).enumerate() {
            if span.needs_gaps() || span.offset() != 0.0 {
                let values = || self.numbers.iter().skip(column).step_by(self.positions.len()).copied();
                self.columns.write(position, span, values);
            }
        }
        self.columns.rows
    }
}

/// Targets in double precision, before their offset is chosen.
#[derive(Debug)]
pub(crate) enum TargetBuilder {
    Classes(Vec<u32>),
    Values(Vec<f64>),
}

impl TargetBuilder {
    pub(crate) fn len(&self) -> usize {
        match self {
            TargetBuilder::Classes(classes) => classes.len(),
            TargetBuilder::Values(values) => values.len(),
        }
    }

    /// The targets and the offset subtracted from them.
    pub(crate) fn finish(self) -> (Targets, f64) {
        match self {
            TargetBuilder::Classes(classes) => (Targets::Classes(classes), 0.0),
            TargetBuilder::Values(values) => {
                let offset = ValueRange::of(&values).offset();
                (Targets::Values(values.iter().map(|value| (value - offset) as f32).collect()), offset)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(values: &[f64]) -> EncodedRows {
        let mut rows = RowBuilder::new(2, vec![1], values.len());
        values.iter().for_each(|&value| rows.push(&[1.0, value]));
        rows.finish()
    }

    #[test]
    fn exact_values_are_stored_unchanged() {
        for values in [&[1.0, 2.0, f64::NAN][..], &[0.1, -0.2, 0.3], &[16777215.0, 16777214.0], &[]] {
            let rows = encode(values);
            assert!(rows.offsets.is_empty() && rows.gaps.is_empty(), "{values:?}");
            let kept: Vec<u32> = rows.features.chunks(2).map(|row| row[1].to_bits()).collect();
            assert_eq!(kept, values.iter().map(|&value| (value as f32).to_bits()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn close_numbers_far_from_zero_are_stored_as_distances() {
        let values = [1_700_000_001.0, 1_700_000_004.5, f64::NAN, 1_700_000_003.0];
        let rows = encode(&values);
        assert_eq!(rows.offsets, [0.0, 1_700_000_002.812_5], "near the mean");
        let kept: Vec<f64> = rows.features.chunks(2).map(|row| f64::from(row[1]) + rows.offsets[1]).collect();
        assert_eq!((kept[0], kept[1], kept[3]), (values[0], values[1], values[3]));
        assert!(kept[2].is_nan() && rows.features[0] == 1.0);
        let (targets, offset) = TargetBuilder::Values(vec![1e9 + 1.0, 1e9 + 3.0]).finish();
        assert_eq!((targets, offset), (Targets::Values(vec![-1.0, 1.0]), 1e9 + 2.0));
    }

    #[test]
    fn gaps_count_values_that_collapse() {
        let near = (0..100).map(f64::from);
        let rows = encode(&near.clone().chain(near.map(|value| 1.7e18 + 1024.0 * value)).collect::<Vec<_>>());
        assert!(rows.offsets.is_empty(), "the spread is as large as the numbers");
        let (position, gaps) = &rows.gaps[0];
        assert_eq!(*position, 1);
        assert!(gaps.fraction_lost(1e10) > 0.9);
        assert!((0.4..0.6).contains(&gaps.fraction_lost(0.5)), "the far ones are equal as they are kept");
    }

    #[test]
    fn distances_are_stored_only_where_they_are_smaller() {
        let constant = encode(&[0.1; 7]);
        assert_eq!(constant.offsets, [0.0, 0.1]);
        assert!(constant.features.chunks(2).all(|row| row[1] == 0.0));
        let skewed: Vec<f64> = (1..100).map(f64::from).chain([1e9 + 1.0]).collect();
        assert!(encode(&skewed).offsets.is_empty(), "small numbers among a large one stay exact");
    }
}
