//! What is wrong with a value, before it is known where it stands.

use super::value::shown;
use thalweg_core::Error;

/// A value that cannot be used.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The column's name.
    pub(crate) column: String,
    /// What is wrong, as a clause.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) hint: String,
    /// What to do about it in a row to be predicted, where that is something else.
    pub(crate) input_hint: Option<&'static str>,
}

impl Problem {
    /// The error for a value at a place such as `people.csv line 17`.
    pub(crate) fn at(self, place: &str) -> Error {
        Error::data(format!("{place}, column `{}`: {}", self.column, self.what)).hint(self.hint)
    }

    /// The error for a value in a row to be predicted, counted from 1.
    pub(crate) fn at_input(self, row: u64) -> Error {
        let hint = self.input_hint.map_or(self.hint, str::to_owned);
        Error::data(format!("input row {row}, column `{}`: {}", self.column, self.what)).hint(hint)
    }

    /// There is no value.
    pub(crate) fn missing(column: &str) -> Problem {
        Problem {
            column: column.into(),
            what: "the value is missing".into(),
            hint: "fill it in, or set data.missing = \"mean\" (or \"zero\"), or leave the column out with data.ignore".into(),
            input_hint: Some("fill it in: the model was trained without missing values in this column"),
        }
    }

    /// The same, for a field that says so with a word such as NA.
    pub(crate) fn missing_word(column: &str, field: &[u8]) -> Problem {
        let mut problem = Problem::missing(column);
        if !field.is_empty() {
            problem.what = format!("`{}` stands for a missing value", shown(field));
        }
        problem
    }

    /// There is no label.
    pub(crate) fn missing_label(column: &str, field: &[u8]) -> Problem {
        let (what, rename) = match field {
            b"" => ("the label is missing".into(), ""),
            word => (
                format!("the label is missing: `{}` stands for a missing value", shown(word)),
                ", rename it if it is a class",
            ),
        };
        Problem {
            column: column.into(),
            what,
            hint: format!("fill it in or remove the row{rename}; data.label names the column to predict"),
            input_hint: None,
        }
    }

    /// Not a number where there should be one.
    pub(crate) fn not_a_number(column: &str, value: &str) -> Problem {
        Problem {
            column: column.into(),
            what: format!("`{value}` is not a number"),
            hint: format!(
                "fix it; or set data.categorical = [\"{column}\"] if the column holds names, or leave it out with \
                 data.ignore = [\"{column}\"]; if it stands for a missing value, leave the field empty and set data.missing = \"mean\""
            ),
            input_hint: Some("fix it: the model was trained on numbers in this column"),
        }
    }

    /// Infinite, or too large.
    pub(crate) fn not_finite(column: &str, value: &str) -> Problem {
        Problem {
            column: column.into(),
            what: format!("`{value}` is not a finite number of single precision"),
            hint: "fix it, or leave the column out with data.ignore".into(),
            input_hint: Some("fix it"),
        }
    }

    /// A category that was not there in training.
    pub(crate) fn unknown_category<'a>(
        column: &str,
        value: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Problem {
        let mut names: Vec<&str> = known.take(13).collect();
        let more = if names.len() > 12 { ", ..." } else { "" };
        names.truncate(12);
        Problem {
            column: column.into(),
            what: format!("the category `{value}` is not known to the model"),
            hint: format!("known are {}{more}", names.join(", ")),
            input_hint: None,
        }
    }

    /// A class that was not there in training.
    pub(crate) fn unknown_class<'a>(
        column: &str,
        value: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Problem {
        Problem {
            what: format!("the class `{value}` is not known to the model"),
            ..Problem::unknown_category(column, value, known)
        }
    }
}
