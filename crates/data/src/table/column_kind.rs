//! Decides from counts whether a column holds numbers or categories.

use super::number_format::NumberFormat;
use super::value::{parse_number, present};
use std::collections::HashSet;

/// Distinct numbers above which a column that also contains text is numeric.
const MANY_NUMBERS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// Other values are errors.
    Numbers,
    /// Numbers, some in an unsupported format.
    UnsupportedNumbers,
    Categories,
}

/// Counts of the values of a column, without missing ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KindCounts {
    pub(crate) values: u64,
    pub(crate) numbers: u64,
    /// Numbers in an unsupported format.
    pub(crate) unsupported_number: u64,
}

impl KindCounts {
    pub(crate) fn add(&mut self, kind: ColumnKind) {
        self.values += 1;
        self.numbers += u64::from(kind == ColumnKind::Numbers);
        self.unsupported_number += u64::from(kind == ColumnKind::UnsupportedNumbers);
    }

    /// The kind by a nine-in-ten majority. If between half and nine tenths are numbers, text values are
    /// errors if there are many or mostly distinct numbers, and categories if a few numbers repeat.
    pub(crate) fn kind(&self, different_numbers: impl FnOnce() -> usize) -> ColumnKind {
        let most = |count: u64| count * 10 >= self.values * 9;
        if most(self.numbers) {
            ColumnKind::Numbers
        } else if most(self.numbers + self.unsupported_number) {
            ColumnKind::UnsupportedNumbers
        } else if self.numbers * 2 < self.values {
            ColumnKind::Categories
        } else {
            let different = different_numbers();
            let amounts = different > MANY_NUMBERS || different as u64 * 2 > self.numbers;
            if amounts { ColumnKind::Numbers } else { ColumnKind::Categories }
        }
    }
}

/// The kind of a single value that is not missing.
pub(crate) fn value_kind(field: &[u8]) -> ColumnKind {
    match parse_number(field) {
        Some(_) => ColumnKind::Numbers,
        None if NumberFormat::of(field).is_some() => ColumnKind::UnsupportedNumbers,
        None => ColumnKind::Categories,
    }
}

/// The kind of a column. Missing values are not counted; a column without values is numeric.
pub(crate) fn column_kind<'a>(values: impl Iterator<Item = &'a [u8]> + Clone) -> ColumnKind {
    let values = values.filter_map(present);
    let mut counts = KindCounts::default();
    values.clone().for_each(|value| counts.add(value_kind(value)));
    counts.kind(|| values.filter(|value| parse_number(value).is_some()).collect::<HashSet<_>>().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(values: &[&str]) -> ColumnKind {
        column_kind(values.iter().map(|value| value.as_bytes()))
    }

    #[test]
    fn numbers_and_categories_are_distinguished() {
        assert_eq!(kind(&["1", "2.5", "NA", "None"]), ColumnKind::Numbers);
        assert_eq!(kind(&["a", "b", "1"]), ColumnKind::Categories);
        assert_eq!(kind(&["NA", ""]), ColumnKind::Numbers);
    }

    #[test]
    fn a_few_texts_among_distinct_numbers_are_errors() {
        assert_eq!(kind(&["1.5", "2.5", "3.5", "4.5", "oops"]), ColumnKind::Numbers);
        assert_eq!(
            kind(&["1", "2", "1", "2", "1", "2", "K", "1", "2", "K"]),
            ColumnKind::Categories,
            "codes"
        );
    }

    #[test]
    fn unsupported_number_formats_are_not_categories() {
        assert_eq!(kind(&["1,5", "2,5", "3", "4,25"]), ColumnKind::UnsupportedNumbers);
        assert_eq!(kind(&["12%", "5%", "NA"]), ColumnKind::UnsupportedNumbers);
        assert_eq!(kind(&["low", "12%", "high"]), ColumnKind::Categories);
    }
}
