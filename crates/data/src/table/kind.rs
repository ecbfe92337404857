//! Whether a column holds numbers or categories, decided from counts of its values.

use super::spelling::Spelling;
use super::value::{number, present};
use std::collections::HashSet;

/// Different numbers that make a column with some texts in it one of numbers.
const MANY_NUMBERS: usize = 20;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers; values that are none are mistakes.
    Numbers,
    /// Numbers, some in a spelling that is not read.
    Misspelled,
    /// Names.
    Categories,
}

/// Counts of the values of a column, without the missing ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KindCounts {
    pub(crate) values: u64,
    pub(crate) numbers: u64,
    /// Numbers in a spelling that is not read.
    pub(crate) misspelled: u64,
}

impl KindCounts {
    /// Counts a value of this kind that is not missing.
    pub(crate) fn add(&mut self, kind: Kind) {
        self.values += 1;
        self.numbers += u64::from(kind == Kind::Numbers);
        self.misspelled += u64::from(kind == Kind::Misspelled);
    }

    /// The kind: nine in ten values decide. Between half and nine tenths of numbers, texts are mistakes if the numbers are
    /// many or mostly different, and categories if a few numbers come again and again.
    pub(crate) fn kind(&self, different_numbers: impl FnOnce() -> usize) -> Kind {
        let most = |count: u64| count * 10 >= self.values * 9;
        if most(self.numbers) {
            Kind::Numbers
        } else if most(self.numbers + self.misspelled) {
            Kind::Misspelled
        } else if self.numbers * 2 < self.values {
            Kind::Categories
        } else {
            let different = different_numbers();
            let amounts = different > MANY_NUMBERS || different as u64 * 2 > self.numbers;
            if amounts { Kind::Numbers } else { Kind::Categories }
        }
    }
}

/// What one value that is not missing would make of a column.
pub(crate) fn kind_of_value(field: &[u8]) -> Kind {
    match number(field) {
        Some(_) => Kind::Numbers,
        None if Spelling::of(field).is_some() => Kind::Misspelled,
        None => Kind::Categories,
    }
}

/// The kind of a column from its values; missing ones do not count, and a column without any counts as numbers.
pub(crate) fn kind_of<'a>(values: impl Iterator<Item = &'a [u8]> + Clone) -> Kind {
    let values = values.filter_map(present);
    let mut counts = KindCounts::default();
    values.clone().for_each(|value| counts.add(kind_of_value(value)));
    counts.kind(|| values.filter(|value| number(value).is_some()).collect::<HashSet<_>>().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(values: &[&str]) -> Kind {
        kind_of(values.iter().map(|value| value.as_bytes()))
    }

    #[test]
    fn numbers_and_names_are_told_apart() {
        assert_eq!(kind(&["1", "2.5", "NA", "None"]), Kind::Numbers);
        assert_eq!(kind(&["a", "b", "1"]), Kind::Categories);
        assert_eq!(kind(&["NA", ""]), Kind::Numbers);
    }

    #[test]
    fn a_few_texts_among_different_numbers_are_mistakes() {
        assert_eq!(kind(&["1.5", "2.5", "3.5", "4.5", "oops"]), Kind::Numbers);
        assert_eq!(kind(&["1", "2", "1", "2", "1", "2", "K", "1", "2", "K"]), Kind::Categories, "codes");
    }

    #[test]
    fn other_spellings_of_numbers_are_no_categories() {
        assert_eq!(kind(&["1,5", "2,5", "3", "4,25"]), Kind::Misspelled);
        assert_eq!(kind(&["12%", "5%", "NA"]), Kind::Misspelled);
        assert_eq!(kind(&["low", "12%", "high"]), Kind::Categories);
    }
}
