//! Columns of names: gathered in the index, one-hot from then on.

use super::problem::Problem;
use super::value::{is_missing, shown};
use std::collections::{HashMap, HashSet};

/// Different names a column may have; beyond, it is probably an identifier or free text.
pub(crate) const MOST_CATEGORIES: usize = 1000;

/// The names seen so far in a column.
#[derive(Debug, Default)]
pub(crate) struct CategoryTally {
    seen: HashSet<Vec<u8>>,
    missing: bool,
}

impl CategoryTally {
    /// Counts a value, already trimmed.
    pub(crate) fn add(&mut self, column: &str, field: &[u8]) -> Result<(), Problem> {
        if is_missing(field) {
            self.missing = true;
        } else if !self.seen.contains(field) {
            if std::str::from_utf8(field).is_err() {
                return Err(not_utf8(column, field));
            }
            if self.seen.len() == MOST_CATEGORIES {
                return Err(Problem {
                    column: column.into(),
                    what: format!("more than {MOST_CATEGORIES} different values, too many for categories"),
                    hint: format!("leave the column out with data.ignore = [\"{column}\"]"),
                    input_hint: None,
                });
            }
            self.seen.insert(field.to_vec());
        }
        Ok(())
    }

    /// The names in order; a category without a name, the first, stands for missing values where they are allowed.
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

/// A text in another encoding.
pub(crate) fn not_utf8(column: &str, field: &[u8]) -> Problem {
    Problem {
        column: column.into(),
        what: format!("`{}` is not UTF-8", shown(field)),
        hint: "convert the file, for instance with iconv -f latin1 -t utf8".into(),
        input_hint: None,
    }
}

/// The number of each name.
#[derive(Debug)]
pub(crate) struct Categories {
    numbers: HashMap<Vec<u8>, usize>,
    names: Vec<String>,
    missing: Option<usize>,
}

impl Categories {
    /// From the names of a schema.
    pub(crate) fn new(names: &[String]) -> Categories {
        let numbers =
            names.iter().enumerate().map(|(number, name)| (name.as_bytes().to_vec(), number)).collect();
        let missing = names.iter().position(String::is_empty);
        Categories { numbers, names: names.to_vec(), missing }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The number of a value, already trimmed. What is not known counts as missing where that is a category.
    pub(crate) fn number(&self, column: &str, field: &[u8]) -> Result<usize, Problem> {
        if is_missing(field) {
            return self.missing.ok_or_else(|| Problem::missing(column));
        }
        self.numbers.get(field).copied().or(self.missing).ok_or_else(|| {
            Problem::unknown_category(column, &shown(field), self.names.iter().map(String::as_str))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_missing_ones_have_their_own() {
        let tally = || {
            let mut tally = CategoryTally::default();
            for name in ["red", "blue", "NA", "red"] {
                tally.add("colour", name.as_bytes()).unwrap();
            }
            tally
        };
        assert_eq!(tally().names(false), ["blue", "red"]);
        assert_eq!(tally().names(true), ["", "blue", "red"]);
    }

    #[test]
    fn unknown_names_are_refused_or_count_as_missing() {
        let strict = Categories::new(&["blue".into(), "red".into()]);
        assert_eq!(strict.number("colour", b"red").unwrap(), 1);
        let problem = strict.number("colour", b"green").unwrap_err();
        assert!(problem.what.contains("`green`") && problem.hint.contains("blue, red"));
        assert!(strict.number("colour", b"").unwrap_err().what.contains("missing"));
        let lenient = Categories::new(&["".into(), "blue".into()]);
        assert_eq!(lenient.number("colour", b"green").unwrap(), 0);
        assert_eq!(lenient.number("colour", b"?").unwrap(), 0);
    }

    #[test]
    fn too_many_names_suggest_to_leave_the_column_out() {
        let mut tally = CategoryTally::default();
        for name in 0..MOST_CATEGORIES {
            tally.add("id", name.to_string().as_bytes()).unwrap();
        }
        assert!(tally.add("id", b"one more").unwrap_err().hint.contains("data.ignore = [\"id\"]"));
    }
}
