//! Counts over one column, in bounded memory.

use crate::table::column_kind::{ColumnKind, KindCounts, value_kind};
use crate::table::value::{parse_number, printable};
use std::collections::{BTreeSet, HashMap};

/// Example values per column.
const EXAMPLES: usize = 3;

/// Distinct values stored over all columns, and their bytes.
const ALL_VALUES: usize = 1_000_000;
const ALL_BYTES: usize = 64 << 20;

/// Memory limits of one column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TallyLimits {
    values: usize,
    bytes: usize,
}

impl TallyLimits {
    /// Limits for each of `columns` columns: enough to count the classes of a label unless there are
    /// thousands of columns.
    pub(super) fn for_columns(columns: usize) -> TallyLimits {
        let columns = columns.max(1);
        TallyLimits {
            values: (ALL_VALUES / columns).clamp(101, 10_000),
            bytes: (ALL_BYTES / columns).max(1 << 10),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ColumnTally {
    bound: TallyLimits,
    /// Distinct values in order of appearance, each with its index and kind.
    seen: HashMap<Vec<u8>, (u64, ColumnKind)>,
    bytes: usize,
    /// Whether there are more distinct values than are stored.
    overflow: bool,
    /// Values up to the last stored one, without missing ones.
    values_until_full: u64,
    /// A digest of the value indices of all rows: equal for two columns that partition the rows in the same
    /// way.
    partition: u64,
    pub(super) counts: KindCounts,
    pub(super) missing: u64,
    /// Words that represent missing values.
    pub(super) missing_words: BTreeSet<String>,
    whole: bool,
    smallest: f64,
    largest: f64,
    dates: bool,
    /// The first value that is not a number.
    text: Option<Vec<u8>>,
    pub(super) examples: Vec<String>,
}

impl ColumnTally {
    pub(super) fn new(bound: TallyLimits) -> ColumnTally {
        ColumnTally {
            bound,
            seen: HashMap::new(),
            bytes: 0,
            overflow: false,
            values_until_full: 0,
            partition: 0,
            counts: KindCounts::default(),
            missing: 0,
            missing_words: BTreeSet::new(),
            whole: true,
            smallest: f64::INFINITY,
            largest: f64::NEG_INFINITY,
            dates: true,
            text: None,
            examples: Vec::new(),
        }
    }

    /// Counts a missing value; `word` is its field, possibly empty.
    pub(super) fn add_missing(&mut self, word: &[u8]) {
        self.missing += 1;
        self.update_partition(u64::MAX);
        if !word.is_empty() && self.missing_words.len() < EXAMPLES {
            self.missing_words.insert(printable(word));
        }
    }

    /// Counts a trimmed value that is not missing.
    pub(super) fn add(&mut self, field: &[u8]) {
        if let Some(&(number, kind)) = self.seen.get(field) {
            self.update_partition(number);
            self.counts.add(kind);
        } else {
            self.add_new(field);
        }
        if !self.overflow {
            self.values_until_full = self.counts.values;
        }
    }

    fn add_new(&mut self, field: &[u8]) {
        let kind = value_kind(field);
        self.counts.add(kind);
        match parse_number(field) {
            Some(value) => {
                self.whole &= value.fract() == 0.0;
                self.smallest = self.smallest.min(value);
                self.largest = self.largest.max(value);
            }
            None => {
                self.whole = false;
                self.text.get_or_insert_with(|| field.to_vec());
            }
        }
        self.dates = self.dates && is_date(field);
        if self.overflow
            || self.seen.len() >= self.bound.values
            || self.bytes + field.len() > self.bound.bytes
        {
            self.overflow = true;
            return;
        }
        if self.examples.len() < EXAMPLES {
            self.examples.push(printable(field));
        }
        let number = self.seen.len() as u64;
        self.update_partition(number);
        self.bytes += field.len();
        self.seen.insert(field.to_vec(), (number, kind));
    }

    fn update_partition(&mut self, number: u64) {
        self.partition = (self.partition ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    /// Distinct values stored, and whether there are more.
    pub(super) fn distinct(&self) -> (usize, bool) {
        (self.seen.len(), self.overflow)
    }

    /// The distinct values stored.
    pub(super) fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.seen.keys().map(Vec::as_slice)
    }

    pub(super) fn text(&self) -> Option<&[u8]> {
        self.text.as_deref()
    }

    pub(super) fn kind(&self) -> ColumnKind {
        self.counts.kind(|| self.values().filter(|value| parse_number(value).is_some()).count())
    }

    /// Whether all values are integers, and all stored ones are distinct.
    pub(super) fn all_different_whole(&self) -> bool {
        self.whole && self.counts.values > 0 && self.values_until_full == self.seen.len() as u64
    }

    /// Whether the values are consecutive integers in any order.
    pub(super) fn consecutive(&self) -> bool {
        self.all_different_whole() && self.largest - self.smallest + 1.0 == self.counts.values as f64
    }

    pub(super) fn smallest(&self) -> f64 {
        self.smallest
    }

    /// Whether at least nine in ten values are distinct.
    pub(super) fn nearly_unique(&self) -> bool {
        let count = self.values_until_full;
        count > 20 && self.seen.len() as u64 >= count - count / 10
    }

    pub(super) fn all_dates(&self) -> bool {
        self.dates && !self.seen.is_empty()
    }

    /// Whether both columns partition the rows in the same way: each determines the other.
    pub(super) fn is_bijective_with(&self, other: &ColumnTally) -> bool {
        let kept = !self.overflow && !other.overflow;
        kept && self.seen.len() == other.seen.len() && self.partition == other.partition
    }
}

/// `2011-01-31`, `31.1.2011`, `1/31/11`, each optionally followed by a time.
fn is_date(value: &[u8]) -> bool {
    let day = value.split(|byte| matches!(byte, b' ' | b'T')).next().unwrap_or_default();
    [b'-', b'/', b'.'].iter().any(|separator| {
        let parts: Vec<&[u8]> = day.split(|byte| byte == separator).collect();
        let digits = parts.iter().all(|part| part.iter().all(u8::is_ascii_digit));
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        digits && matches!(lengths[..], [4, 1..=2, 1..=2] | [1..=2, 1..=2, 2 | 4])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(values: impl IntoIterator<Item = String>) -> ColumnTally {
        let mut tally = ColumnTally::new(TallyLimits::for_columns(1));
        values.into_iter().for_each(|value| tally.add(value.as_bytes()));
        tally
    }

    #[test]
    fn memory_is_bounded_and_overflow_is_reported() {
        let tally = tally((0..50_000).map(|n| n.to_string()));
        assert_eq!(tally.distinct(), (10_000, true));
        assert!(tally.consecutive() && tally.nearly_unique());
        assert_eq!(TallyLimits::for_columns(1_000_000).values, 101);
    }

    #[test]
    fn row_numbers_are_distinguished_from_amounts() {
        assert!(tally((0..30).rev().map(|n| (n + 5).to_string())).consecutive());
        assert!(!tally((0..30).map(|n| (n * n).to_string())).consecutive());
        assert!(tally((0..30).map(|n| (n * n).to_string())).all_different_whole());
        assert!(!tally((0..30).map(|n| (n / 2).to_string())).all_different_whole());
        assert!(!tally((0..30).map(|n| format!("{n}.5"))).all_different_whole());
    }

    #[test]
    fn bijective_columns_are_found() {
        let code = tally((0..90).map(|n| (n * 7 % 3).to_string()));
        let name = tally((0..90).map(|n| ["ash", "oak", "elm"][n * 7 % 3].to_string()));
        let other = tally((0..90).map(|n| ["ash", "oak", "elm"][n * 7 % 3].replace("elm", "oak")));
        assert!(
            code.is_bijective_with(&name) && name.is_bijective_with(&code) && !name.is_bijective_with(&other)
        );
    }
}
