//! Numbers of double precision, kept in single precision without losing what tells them apart.
//!
//! A time in seconds or an account number does not fit into an `f32`, the distance from the mean of its block usually
//! does, and is rounded no more than scaling rounds it. So a column of a block whose numbers would be rounded is kept as
//! distances from an offset near their mean, where these are shorter. Whether and from which is a function of the block's
//! numbers alone: the same on every rank.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_core::Targets;

/// How many times the largest distance a number must be for distances to be kept instead: one bit more is worth it.
const FAR: f64 = 2.0;

/// Offsets are multiples of this share of the largest distance, a power of two: distances of whole numbers stay exact.
const GRAIN: f64 = 1.0 / 16.0;

/// The relative error of single precision.
pub(crate) const RESOLUTION: f64 = 1.0 / (1 << 24) as f64;

/// From here on whole numbers do not all fit into single precision.
const LARGE: f64 = (1 << 24) as f64;

/// Whether a number is too large for single precision to hold it.
pub(crate) fn is_large(value: f64) -> bool {
    value.abs() >= LARGE && f64::from(value as f32) != value
}

/// The numbers of a column, as far as the choice of an offset asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    smallest: f64,
    largest: f64,
    count: u64,
    first: f64,
    /// The sum of the distances from the first number.
    distances: f64,
    /// Whether single precision holds all of them.
    exact: bool,
}

impl Default for Span {
    fn default() -> Self {
        let (smallest, largest) = (f64::INFINITY, f64::NEG_INFINITY);
        Span { smallest, largest, count: 0, first: 0.0, distances: 0.0, exact: true }
    }
}

impl Span {
    pub(crate) fn add(&mut self, value: f64) {
        // Missing values are NaN: they count for nothing here.
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

    fn of(values: &[f64]) -> Span {
        let mut span = Span::default();
        values.iter().for_each(|&value| span.add(value));
        span
    }

    fn size(&self) -> f64 {
        self.smallest.abs().max(self.largest.abs())
    }

    /// What is subtracted before numbers become single.
    pub(crate) fn offset(&self) -> f64 {
        let mean = self.first + self.distances / self.count as f64;
        let distance = (self.largest - mean).max(mean - self.smallest);
        // A few large numbers among many small ones: distances would round the small ones.
        let shorter = self.size() > FAR * distance;
        if self.exact || !shorter {
            return 0.0;
        }
        let grain = GRAIN * distance.log2().floor().exp2();
        if grain.is_normal() { (mean / grain).round() * grain } else { self.first }
    }

    /// Whether even distances may be too large to be told apart.
    pub(crate) fn needs_gaps(&self) -> bool {
        !self.exact && self.size() >= LARGE
    }
}

/// How far apart the different numbers of a column lie, and what of that is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gaps {
    /// How many gaps between neighbours there are of each power of two.
    sizes: BTreeMap<i16, u64>,
    /// Neighbours that became equal when they were kept.
    lost: u64,
    /// The largest distance that was kept.
    distance: f64,
}

impl Gaps {
    /// Between these numbers, which are kept as distances from an offset.
    pub(crate) fn of(values: impl Iterator<Item = f64>, offset: f64) -> Gaps {
        let mut values: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
        values.sort_unstable_by(f64::total_cmp);
        let mut gaps = Gaps::default();
        for pair in values.windows(2).filter(|pair| pair[0] < pair[1]) {
            *gaps.sizes.entry((pair[1] - pair[0]).log2().floor() as i16).or_default() += 1;
            gaps.lost += u64::from((pair[0] - offset) as f32 == (pair[1] - offset) as f32);
        }
        let ends = [values.first(), values.last()].into_iter().flatten();
        gaps.distance = ends.fold(0.0, |most, value| (value - offset).abs().max(most));
        gaps
    }

    pub(crate) fn merge(&mut self, other: &Gaps) {
        for (&power, count) in &other.sizes {
            *self.sizes.entry(power).or_default() += count;
        }
        self.lost += other.lost;
        self.distance = self.distance.max(other.distance);
    }

    /// The steps that can be told apart in what was kept, where it is coarsest.
    pub(crate) fn resolution(&self) -> f64 {
        RESOLUTION * self.distance
    }

    /// The share of gaps that were lost, or are below a size.
    pub(crate) fn share_lost(&self, size: f64) -> f64 {
        let all: u64 = self.sizes.values().sum();
        let limit = size.log2();
        let sizes = self.sizes.iter().filter(|(power, _)| f64::from(**power) < limit);
        let below: u64 = sizes.map(|(_, count)| count).sum();
        below.max(self.lost) as f64 / all.max(1) as f64
    }
}

/// Rows as a block holds them.
pub(crate) struct Narrowed {
    pub(crate) features: Vec<f32>,
    /// What was subtracted from each number of a row; empty if nothing was.
    pub(crate) offsets: Vec<f64>,
    pub(crate) gaps: Vec<(u32, Gaps)>,
}

/// Dense rows that are filled column by column.
pub(crate) struct Narrowing {
    width: usize,
    pub(crate) rows: Narrowed,
}

impl Narrowing {
    /// `rows` rows, all zeros.
    pub(crate) fn new(rows: usize, width: usize) -> Narrowing {
        let features = vec![0.0; rows * width];
        Narrowing { width, rows: Narrowed { features, offsets: Vec::new(), gaps: Vec::new() } }
    }

    /// Writes one number.
    pub(crate) fn set(&mut self, row: usize, place: usize, value: f32) {
        self.rows.features[row * self.width + place] = value;
    }

    /// Writes the numbers of a column.
    pub(crate) fn column(&mut self, place: usize, values: &[f64]) {
        self.write(place, &Span::of(values), || values.iter().copied());
    }

    fn write<I: Iterator<Item = f64>>(&mut self, place: usize, span: &Span, values: impl Fn() -> I) {
        let offset = span.offset();
        if span.needs_gaps() {
            self.rows.gaps.push((place as u32, Gaps::of(values(), offset)));
        }
        if offset != 0.0 {
            self.rows.offsets.resize(self.width, 0.0);
            self.rows.offsets[place] = offset;
        }
        let into = self.rows.features.iter_mut().skip(place).step_by(self.width);
        into.zip(values()).for_each(|(into, value)| *into = (value - offset) as f32);
    }
}

/// Dense rows that are filled row by row.
pub(crate) struct DenseRows {
    /// The places of numbers in a row; the others hold categories.
    places: Vec<usize>,
    spans: Vec<Span>,
    /// The numbers of all rows, as they are.
    numbers: Vec<f64>,
    narrowing: Narrowing,
}

impl DenseRows {
    /// For about `rows` rows.
    pub(crate) fn new(width: usize, places: Vec<usize>, rows: usize) -> DenseRows {
        let mut narrowing = Narrowing::new(0, width);
        narrowing.rows.features.reserve(rows * width);
        let (spans, numbers) = (vec![Span::default(); places.len()], Vec::with_capacity(rows * places.len()));
        DenseRows { places, spans, numbers, narrowing }
    }

    pub(crate) fn push(&mut self, row: &[f64]) {
        self.narrowing.rows.features.extend(row.iter().map(|&value| value as f32));
        for (&place, span) in self.places.iter().zip(&mut self.spans) {
            span.add(row[place]);
            self.numbers.push(row[place]);
        }
    }

    /// Only columns that need an offset are written again.
    pub(crate) fn finish(mut self) -> Narrowed {
        for (column, (&place, span)) in self.places.iter().zip(&self.spans).enumerate() {
            if span.needs_gaps() || span.offset() != 0.0 {
                let values = || self.numbers.iter().skip(column).step_by(self.places.len()).copied();
                self.narrowing.write(place, span, values);
            }
        }
        self.narrowing.rows
    }
}

/// Targets under construction.
#[derive(Debug)]
pub(crate) enum WideTargets {
    Classes(Vec<u32>),
    Values(Vec<f64>),
}

impl WideTargets {
    pub(crate) fn len(&self) -> usize {
        match self {
            WideTargets::Classes(classes) => classes.len(),
            WideTargets::Values(values) => values.len(),
        }
    }

    /// The targets, and what was subtracted from them.
    pub(crate) fn finish(self) -> (Targets, f64) {
        match self {
            WideTargets::Classes(classes) => (Targets::Classes(classes), 0.0),
            WideTargets::Values(values) => {
                let offset = Span::of(&values).offset();
                (Targets::Values(values.iter().map(|value| (value - offset) as f32).collect()), offset)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrowed(values: &[f64]) -> Narrowed {
        let mut rows = DenseRows::new(2, vec![1], values.len());
        values.iter().for_each(|&value| rows.push(&[1.0, value]));
        rows.finish()
    }

    #[test]
    fn what_single_precision_holds_stays_as_it_is() {
        for values in [&[1.0, 2.0, f64::NAN][..], &[0.1, -0.2, 0.3], &[16777215.0, 16777214.0], &[]] {
            let rows = narrowed(values);
            assert!(rows.offsets.is_empty() && rows.gaps.is_empty(), "{values:?}");
            let kept: Vec<u32> = rows.features.chunks(2).map(|row| row[1].to_bits()).collect();
            assert_eq!(kept, values.iter().map(|&value| (value as f32).to_bits()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn close_numbers_far_from_zero_are_kept_as_distances() {
        let values = [1_700_000_001.0, 1_700_000_004.5, f64::NAN, 1_700_000_003.0];
        let rows = narrowed(&values);
        assert_eq!(rows.offsets, [0.0, 1_700_000_002.812_5], "near the mean");
        let kept: Vec<f64> = rows.features.chunks(2).map(|row| f64::from(row[1]) + rows.offsets[1]).collect();
        assert_eq!((kept[0], kept[1], kept[3]), (values[0], values[1], values[3]));
        assert!(kept[2].is_nan() && rows.features[0] == 1.0);
        let (targets, offset) = WideTargets::Values(vec![1e9 + 1.0, 1e9 + 3.0]).finish();
        assert_eq!((targets, offset), (Targets::Values(vec![-1.0, 1.0]), 1e9 + 2.0));
    }

    #[test]
    fn gaps_tell_what_cannot_be_told_apart() {
        let near = (0..100).map(f64::from);
        let rows =
            narrowed(&near.clone().chain(near.map(|value| 1.7e18 + 1024.0 * value)).collect::<Vec<_>>());
        assert!(rows.offsets.is_empty(), "the spread is as large as the numbers");
        let (place, gaps) = &rows.gaps[0];
        assert_eq!(*place, 1);
        assert!(gaps.share_lost(1e10) > 0.9);
        assert!((0.4..0.6).contains(&gaps.share_lost(0.5)), "the far ones are equal as they are kept");
    }

    #[test]
    fn distances_are_kept_only_where_they_are_shorter() {
        let constant = narrowed(&[0.1; 7]);
        assert_eq!(constant.offsets, [0.0, 0.1]);
        assert!(constant.features.chunks(2).all(|row| row[1] == 0.0));
        let skewed: Vec<f64> = (1..100).map(f64::from).chain([1e9 + 1.0]).collect();
        assert!(narrowed(&skewed).offsets.is_empty(), "small numbers among a large one stay exact");
    }
}
