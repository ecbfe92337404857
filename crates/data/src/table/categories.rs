//! Categorical columns: the distinct values, collected in the first pass over the file (index pass), and the one-hot
//! index of each. An unseen value takes the category of missing ones; without one it is an error.

use super::unseen::UnseenCounts;
use super::value::{is_missing, printable};
use super::value_error::ValueError;
use std::collections::{HashMap, HashSet};

/// Maximum categories per column; a column with more is probably an identifier or free text.
pub(crate) const MAX_CATEGORIES: usize = 1000;

/// Categories seen so far in a column.
#[derive(Debug, Default)]
pub(crate) struct CategoryCollector {
    seen: HashSet<Vec<u8>>,
    missing: bool,
}

impl CategoryCollector {
    /// Adds a trimmed value; `None` is missing.
    pub(crate) fn add(&mut self, column: &str, field: Option<&[u8]>) -> Result<(), ValueError> {
        let Some(field) = field else {
            self.missing = true;
            return Ok(());
        };
        if !self.seen.contains(field) {
            if std::str::from_utf8(field).is_err() {
                return Err(not_utf8(column, field));
            }
            if self.seen.len() == MAX_CATEGORIES {
                return Err(ValueError {
                    column: column.into(),
                    what: format!("more than {MAX_CATEGORIES} different values, too many for categories"),
                    hint: format!("leave the column out with data.ignore = [\"{column}\"]"),
                    input_hint: None,
                });
            }
            self.seen.insert(field.to_vec());
        }
        Ok(())
    }

    /// The sorted categories; where missing values are allowed, an empty name, the first, represents them.
    pub(crate) fn names(&self, missing_allowed: bool) -> Vec<String> {
        let mut names: Vec<String> =
            self.seen.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        if self.missing && missing_allowed {
            names.push(String::new());
        }
        names.sort();
        names
    }
}

pub(crate) fn not_utf8(column: &str, field: &[u8]) -> ValueError {
    ValueError {
        column: column.into(),
        what: format!("`{}` is not UTF-8", printable(field)),
        hint: "convert the file, for instance with iconv -f latin1 -t utf8".into(),
        input_hint: None,
    }
}

/// Index of each category.
#[derive(Debug)]
pub(crate) struct Categories {
    indices: HashMap<Vec<u8>, usize>,
    names: Vec<String>,
    missing: Option<usize>,
}

impl Categories {
    pub(crate) fn new(names: &[String]) -> Categories {
        let indices =
            names.iter().enumerate().map(|(index, name)| (name.as_bytes().to_vec(), index)).collect();
        let missing = names.iter().position(String::is_empty);
        Categories { indices, names: names.to_vec(), missing }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The index of a trimmed value. An unknown value counts as missing if the schema has that category, and
    /// is added to `unseen`.
    pub(crate) fn index(
        &self,
        column: &str,
        field: &[u8],
        unseen: &UnseenCounts,
    ) -> Result<usize, ValueError> {
        // Schema names come first: Parquet has nulls and may hold `None` as a category.
        if let Some(&index) = self.indices.get(field) {
            return Ok(index);
        }
        if is_missing(field) {
            return self.missing.ok_or_else(|| ValueError::missing_word(column, field));
        }
        let missing = self.missing.ok_or_else(|| {
            ValueError::unknown_category(column, &printable(field), self.names.iter().map(String::as_str))
        })?;
        unseen.add(column, printable(field));
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_are_sorted_and_missing_values_have_their_own() {
        let tally = || {
            let mut tally = CategoryCollector::default();
            for name in [Some("red"), Some("blue"), None, Some("red")] {
                tally.add("colour", name.map(str::as_bytes)).unwrap();
            }
            tally
        };
        assert_eq!(tally().names(false), ["blue", "red"]);
        assert_eq!(tally().names(true), ["", "blue", "red"]);
    }

    #[test]
    fn unknown_categories_are_refused_or_count_as_missing() {
        let strict = Categories::new(&["blue".into(), "red".into()]);
        let unseen = UnseenCounts::default();
        assert_eq!(strict.index("colour", b"red", &unseen).unwrap(), 1);
        let problem = strict.index("colour", b"green", &unseen).unwrap_err();
        assert!(problem.what.contains("`green`") && problem.hint.contains("blue, red"));
        assert!(strict.index("colour", b"", &unseen).unwrap_err().what.contains("missing"));
        assert!(strict.index("colour", b"None", &unseen).unwrap_err().what.contains("`None` stands for"));
        let lenient = Categories::new(&["".into(), "None".into(), "blue".into()]);
        assert_eq!(lenient.index("colour", b"?", &unseen).unwrap(), 0);
        assert_eq!(lenient.index("colour", b"None", &unseen).unwrap(), 1, "a name of the schema");
        assert!(unseen.list().is_empty());
        assert_eq!(lenient.index("colour", b"green", &unseen).unwrap(), 0);
        let list = unseen.list();
        assert_eq!((list[0].column.as_str(), list[0].value.as_str(), list[0].rows), ("colour", "green", 1));
    }

    #[test]
    fn too_many_categories_suggest_to_leave_the_column_out() {
        let mut tally = CategoryCollector::default();
        for name in 0..MAX_CATEGORIES {
            tally.add("id", Some(name.to_string().as_bytes())).unwrap();
        }
        assert!(tally.add("id", Some(b"one more")).unwrap_err().hint.contains("data.ignore = [\"id\"]"));
    }
}
