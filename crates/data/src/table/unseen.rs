//! Categories that did not occur in training, counted while rows are read with a stored schema.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Different values that are counted one by one; the input may hold any number of others.
const COUNTED: usize = 1000;

/// The value under which the rows beyond these are counted.
const OTHERS: &str = "...";

/// A category that did not occur in training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenCategory {
    /// The column's name.
    pub column: String,
    /// The category, or `...` for all further ones.
    pub value: String,
    /// Rows it stands in.
    pub rows: u64,
}

/// Counts of such categories; clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unseen(Arc<Mutex<BTreeMap<(String, String), u64>>>);

impl Unseen {
    /// Counts a row with this category.
    pub(crate) fn add(&self, column: &str, value: String) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (column.to_string(), value);
        if counts.len() >= COUNTED && !counts.contains_key(&key) {
            key.1 = OTHERS.into();
        }
        *counts.entry(key).or_default() += 1;
    }

    /// What was counted, by column, the most frequent first.
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
        let unseen = Unseen::default();
        unseen.add("city", "oslo".into());
        (0..2).for_each(|_| unseen.clone().add("city", "rome".into()));
        let list = unseen.list();
        assert_eq!((list[0].value.as_str(), list[0].rows, list[1].rows), ("rome", 2, 1));
        (0..2 * COUNTED).for_each(|number| unseen.add("id", number.to_string()));
        let list = unseen.list();
        assert!(list.len() <= COUNTED + 1);
        assert_eq!(list.iter().map(|entry| entry.rows).sum::<u64>(), 3 + 2 * COUNTED as u64);
    }
}
