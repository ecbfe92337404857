//! Counts categories that did not occur in training.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum distinct values counted separately, because input is unbounded.
const MAX_COUNTED: usize = 1000;

/// The value under which all further rows are counted.
const OTHERS: &str = "...";

/// A category that did not occur in training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenCategory {
    /// Name of the column.
    pub column: String,
    /// The category, or `...` for all beyond the limit.
    pub value: String,
    /// Rows with this category.
    pub rows: u64,
}

/// Shared counter: clones add to the same counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnseenCounts(Arc<Mutex<BTreeMap<(String, String), u64>>>);

impl UnseenCounts {
    pub(crate) fn add(&self, column: &str, value: String) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (column.to_string(), value);
        if counts.len() >= MAX_COUNTED && !counts.contains_key(&key) {
            key.1 = OTHERS.into();
        }
        *counts.entry(key).or_default() += 1;
    }

    /// The counts by column, most frequent first.
    pub(crate) fn list(&self) -> Vec<UnseenCategory> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<UnseenCategory> = counts
            .iter()
            .map(|((column, value), &rows)| UnseenCategory {
                column: column.clone(),
                value: value.clone(),
                rows,
            })
            .collect();
        list.sort_by(|one, other| (&one.column, other.rows).cmp(&(&other.column, one.rows)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_by_value_within_bounds() {
        let unseen = UnseenCounts::default();
        unseen.add("city", "oslo".into());
        (0..2).for_each(|_| unseen.clone().add("city", "rome".into()));
        let list = unseen.list();
        assert_eq!((list[0].value.as_str(), list[0].rows, list[1].rows), ("rome", 2, 1));
        (0..2 * MAX_COUNTED).for_each(|number| unseen.add("id", number.to_string()));
        let list = unseen.list();
        assert!(list.len() <= MAX_COUNTED + 1);
        assert_eq!(list.iter().map(|entry| entry.rows).sum::<u64>(), 3 + 2 * MAX_COUNTED as u64);
    }
}
