//! An invalid value, before its location is known.

use super::value::printable;
use thalweg_core::Error;

#[derive(Debug)]
pub(crate) struct ValueError {
    pub(crate) column: String,
    /// What is wrong, as a clause.
    pub(crate) what: String,
    pub(crate) hint: String,
    /// Replaces `hint` for a row to predict.
    pub(crate) input_hint: Option<&'static str>,
}

impl ValueError {
    /// The error for a value at a location such as `people.csv line 17`.
    pub(crate) fn at(self, location: &str) -> Error {
        Error::data(format!("{location}, column `{}`: {}", self.column, self.what)).hint(self.hint)
    }

    /// The error for a value in a row to predict, counted from 1.
    pub(crate) fn at_input(self, row: u64) -> Error {
        let hint = self.input_hint.map_or(self.hint, str::to_owned);
        Error::data(format!("input row {row}, column `{}`: {}", self.column, self.what)).hint(hint)
    }

    pub(crate) fn missing(column: &str) -> ValueError {
        ValueError {
            column: column.into(),
            what: "the value is missing".into(),
            hint: "fill it in, or set data.missing = \"mean\" (or \"zero\"), or leave the column out with data.ignore".into(),
            input_hint: Some("fill it in: the model was trained without missing values in this column"),
        }
    }

    /// A missing value, quoting a word such as NA.
    pub(crate) fn missing_word(column: &str, field: &[u8]) -> ValueError {
        let mut problem = ValueError::missing(column);
        if !field.is_empty() {
            problem.what = format!("`{}` stands for a missing value", printable(field));
        }
        problem
    }

    pub(crate) fn missing_label(column: &str, field: &[u8]) -> ValueError {
        let (what, rename) = match field {
            b"" => ("the label is missing".into(), ""),
            word => (
                format!("the label is missing: `{}` stands for a missing value", printable(word)),
                ", rename it if it is a class",
            ),
        };
        ValueError {
            column: column.into(),
            what,
            hint: format!("fill it in or remove the row{rename}; data.label names the column to predict"),
            input_hint: None,
        }
    }

    pub(crate) fn not_a_number(column: &str, value: &str) -> ValueError {
        ValueError {
            column: column.into(),
            what: format!("`{value}` is not a number"),
            hint: format!(
                "fix it; or set data.categorical = [\"{column}\"] if the column holds names, or leave it out with \
                 data.ignore = [\"{column}\"]; if it stands for a missing value, leave the field empty and set data.missing = \"mean\""
            ),
            input_hint: Some("fix it: the model was trained on numbers in this column"),
        }
    }

    /// Infinite, or beyond single precision.
    pub(crate) fn not_finite(column: &str, value: &str) -> ValueError {
        ValueError {
            column: column.into(),
            what: format!("`{value}` is not a finite number of single precision"),
            hint: "fix it, or leave the column out with data.ignore".into(),
            input_hint: Some("fix it"),
        }
    }

    pub(crate) fn unknown_category<'a>(
        column: &str,
        value: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> ValueError {
        let mut names: Vec<&str> = known.take(13).collect();
        let more = if names.len() > 12 { ", ..." } else { "" };
        names.truncate(12);
        ValueError {
            column: column.into(),
            what: format!("the category `{value}` is not known to the model"),
            hint: format!("known are {}{more}", names.join(", ")),
            input_hint: None,
        }
    }

    pub(crate) fn unknown_class<'a>(
        column: &str,
        value: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> ValueError {
        ValueError {
            what: format!("the class `{value}` is not known to the model"),
            ..ValueError::unknown_category(column, value, known)
        }
    }
}
