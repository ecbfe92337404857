//! Columns of names: gathered in the index, one-hot from then on.

use super::problem::Problem;
use super::unseen::Unseen;
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
    /// Counts a value, already trimmed; nothing for a missing one.
    pub(crate) fn add(&mut self, column: &str, field: Option<&[u8]>) -> Result<(), Problem> {
        let Some(field) = field else {
            self.missing = true;
            return Ok(());
        };
        if !self.seen.contains(field) {
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

    /// The number of a value, already trimmed. What is not known counts as missing where that is a category, and is
    /// noted in `unseen`.
    pub(crate) fn number(&self, column: &str, field: &[u8], unseen: &Unseen) -> Result<usize, Problem> {
        // A name of the schema comes first: a source with nulls of its own may hold `None` as a name.
        if let Some(&number) = self.numbers.get(field) {
            return Ok(number);
        }
        if is_missing(field) {
            return self.missing.ok_or_else(|| Problem::missing_word(column, field));
        }
        let missing = self.missing.ok_or_else(|| {
            Problem::unknown_category(column, &shown(field), self.names.iter().map(String::as_str))
        })?;
        unseen.add(column, shown(field));
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_missing_ones_have_their_own() {
        let tally = || {
            let mut tally = CategoryTally::default();
            for name in [Some("red"), Some("blue"), None, Some("red")] {
                tally.add("colour", name.map(str::as_bytes)).unwrap();
            }
            tally
        };
        assert_eq!(tally().names(false), ["blue", "red"]);
        assert_eq!(tally().names(true), ["", "blue", "red"]);
    }

    #[test]
    fn unknown_names_are_refused_or_count_as_missing() {
        let strict = Categories::new(&["blue".into(), "red".into()]);
        let unseen = Unseen::default();
        assert_eq!(strict.number("colour", b"red", &unseen).unwrap(), 1);
        let problem = strict.number("colour", b"green", &unseen).unwrap_err();
        assert!(problem.what.contains("`green`") && problem.hint.contains("blue, red"));
        assert!(strict.number("colour", b"", &unseen).unwrap_err().what.contains("missing"));
        assert!(strict.number("colour", b"None", &unseen).unwrap_err().what.contains("`None` stands for"));
        let lenient = Categories::new(&["".into(), "None".into(), "blue".into()]);
        assert_eq!(lenient.number("colour", b"?", &unseen).unwrap(), 0);
        assert_eq!(lenient.number("colour", b"None", &unseen).unwrap(), 1, "a name of the schema");
        assert!(unseen.list().is_empty());
        assert_eq!(lenient.number("colour", b"green", &unseen).unwrap(), 0);
        let list = unseen.list();
        assert_eq!((list[0].column.as_str(), list[0].value.as_str(), list[0].rows), ("colour", "green", 1));
    }

    #[test]
    fn too_many_names_suggest_to_leave_the_column_out() {
        let mut tally = CategoryTally::default();
        for name in 0..MOST_CATEGORIES {
            tally.add("id", Some(name.to_string().as_bytes())).unwrap();
        }
        assert!(tally.add("id", Some(b"one more")).unwrap_err().hint.contains("data.ignore = [\"id\"]"));
    }
}
