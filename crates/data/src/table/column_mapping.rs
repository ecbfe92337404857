//! Maps the fields of a table to the columns of a trained model.
//!
//! With a header, columns are matched by name, in any order and among others. Without one the fields must be
//! the training columns in their order: all of them, or without the label, without the ignored columns, or
//! without both. A number of fields that fits two of these is an error, because the rows could be misread
//! silently.

use super::column_roles::{default_names, header_names};
use super::value::{is_missing, parse_number};
use crate::format::{mismatch, shape_name};
use std::collections::{HashMap, HashSet};
use thalweg_core::schema::{Column, Encoding, RowShape, Schema};
use thalweg_core::spec::nearest::nearest;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Error, Result};

/// Maximum names listed in a message.
const MAX_LISTED: usize = 12;

/// The columns of a trained model and their order in its source.
#[derive(Debug)]
pub(crate) struct ModelColumns {
    inputs: Vec<String>,
    /// Whether each input holds numbers.
    numeric: Vec<bool>,
    label: Option<String>,
    /// All columns of the source in order; `None` for models stored without them.
    source: Option<Vec<String>>,
}

/// The fields of a table that hold the columns of a model.
#[derive(Debug, PartialEq)]
pub(crate) struct ColumnMapping {
    /// Whether the first record is a header.
    pub(crate) header: bool,
    /// Names of all fields.
    pub(crate) names: Vec<String>,
    /// The field of each input.
    pub(crate) inputs: Vec<usize>,
    /// The field of the label, if present.
    pub(crate) label: Option<usize>,
    /// Set if there is a header whose names are not used.
    pub(crate) warning: Option<String>,
}

impl ColumnMapping {
    /// The field of the label; an error if absent.
    pub(crate) fn label_field(&self, schema: &Schema, table: &str) -> Result<usize> {
        self.label.ok_or_else(|| {
            let label = schema.label.as_deref().unwrap_or("label");
            Error::data(format!("{table} has no column `{label}`, the label of the model"))
                .hint("add it to evaluate the model; `thalweg predict` accepts rows without a label")
        })
    }
}

impl ModelColumns {
    /// For images and sparse rows, `columns` has one entry per number of a row.
    pub(crate) fn new(columns: &[Column], schema: &Schema) -> ModelColumns {
        let inputs: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let source = match &schema.shape {
            RowShape::Table { .. } if schema.source_columns.is_empty() => {
                source_from_defaults(&inputs, &schema.label)
            }
            RowShape::Table { .. } => Some(schema.source_columns.clone()),
            _ => Some(inputs.clone()),
        };
        let numeric = columns.iter().map(|column| matches!(column.encoding, Encoding::Number { .. }));
        ModelColumns { numeric: numeric.collect(), inputs, label: schema.label.clone(), source }
    }

    /// An error unless the schema is that of a table; `table` is the name of the input in messages.
    pub(crate) fn of_table(schema: &Schema, table: &str) -> Result<ModelColumns> {
        match &schema.shape {
            RowShape::Table { columns } => Ok(ModelColumns::new(columns, schema)),
            other => Err(mismatch(table, "a table", shape_name(other))),
        }
    }

    /// Maps a table by its first record. `table` is its name in messages.
    pub(crate) fn map_first_record(
        &self,
        first: &[String],
        header: Auto<bool>,
        table: &str,
    ) -> Result<ColumnMapping> {
        if header != Auto::Is(false) {
            let names = header_names(first.iter().cloned());
            match self.by_name(names) {
                Ok(mapping) => return Ok(mapping),
                // A record that matches half of the names is a header with other columns.
                Err((found, missing)) if found * 2 >= self.inputs.len() && is_word(&self.inputs[missing]) => {
                    return Err(self.missing_column(missing, first, table));
                }
                Err((_, missing)) if header == Auto::Is(true) && self.default_named() == 0 => {
                    return Err(self.missing_column(missing, first, table));
                }
                Err(_) => {}
            }
        }
        let kept = self.columns_for_count(first.len(), table).map_err(|error| {
            let is_header = header != Auto::Is(false)
                && self.default_named() == 0
                && first.iter().all(|name| is_name(name));
            if is_header { self.foreign_header(first, table) } else { error }
        })?;
        let (inputs, label) = self.find(&kept);
        let inputs: Vec<usize> = inputs.into_iter().flatten().collect();
        let named = match header {
            Auto::Is(answer) => answer,
            Auto::Auto => self.looks_like_names(first, &inputs),
        };
        if named && self.default_named() == 0 {
            return Err(self.missing_column(0, first, table));
        }
        let names = if named { header_names(first.iter().cloned()) } else { kept };
        let warning = named.then(|| unused_header(&names, table));
        Ok(ColumnMapping { header: named, names, inputs, label, warning })
    }

    /// Maps columns that are known to be named.
    pub(crate) fn map_named(&self, names: &[String], table: &str) -> Result<ColumnMapping> {
        self.by_name(names.to_vec()).map_err(|(_, missing)| self.missing_column(missing, names, table))
    }

    /// Maps a record without names: the fields of the inputs and of the label.
    pub(crate) fn map_by_count(&self, count: usize, what: &str) -> Result<(Vec<usize>, Option<usize>)> {
        let (inputs, label) = self.find(&self.columns_for_count(count, what)?);
        Ok((inputs.into_iter().flatten().collect(), label))
    }

    /// Maps by the names of a header; on failure, the number of inputs found and the first one missing.
    fn by_name(&self, names: Vec<String>) -> Result<ColumnMapping, (usize, usize)> {
        let (found, label) = self.find(&names);
        if let Some(missing) = found.iter().position(Option::is_none) {
            return Err((found.iter().flatten().count(), missing));
        }
        let inputs = found.into_iter().flatten().collect();
        Ok(ColumnMapping { header: true, names, inputs, label, warning: None })
    }

    /// The index of each input and of the label among these names.
    fn find(&self, names: &[String]) -> (Vec<Option<usize>>, Option<usize>) {
        let indices: HashMap<&str, usize> =
            names.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
        let find = |name: &String| indices.get(name.as_str()).copied();
        (self.inputs.iter().map(find).collect(), self.label.as_ref().and_then(find))
    }

    /// The training columns, in order, that `count` fields represent.
    fn columns_for_count(&self, count: usize, table: &str) -> Result<Vec<String>> {
        let Some(source) = &self.source else {
            return if count == self.inputs.len() {
                Ok(self.inputs.clone())
            } else {
                Err(self.unknown_source(count, table))
            };
        };
        let inputs: HashSet<&String> = self.inputs.iter().collect();
        let mut candidates: Vec<Vec<String>> = Vec::new();
        for (label, ignored) in [(true, true), (false, true), (true, false), (false, false)] {
            let wanted = |name: &&String| match (Some(*name) == self.label.as_ref(), inputs.contains(name)) {
                (true, _) => label,
                (_, input) => input || ignored,
            };
            let kept: Vec<String> = source.iter().filter(wanted).cloned().collect();
            if kept.len() == count && !candidates.contains(&kept) {
                candidates.push(kept);
            }
        }
        match candidates.len() {
            1 => Ok(candidates.remove(0)),
            0 => Err(self.wrong_count(count, source, table)),
            _ => Err(ambiguous(count, &candidates, table)),
        }
    }

    /// Whether a record of the right length is a header: text in every numeric column.
    fn looks_like_names(&self, first: &[String], inputs: &[usize]) -> bool {
        let numeric = inputs.iter().zip(&self.numeric).filter(|(_, numeric)| **numeric);
        let mut fields = numeric.map(|(&field, _)| first[field].as_bytes()).peekable();
        fields.peek().is_some() && fields.all(|field| !is_missing(field) && parse_number(field).is_none())
    }

    /// Number of inputs with default names, as in training without a header.
    fn default_named(&self) -> usize {
        self.inputs.iter().filter(|name| default_index(name).is_some()).count()
    }

    fn wrong_count(&self, count: usize, source: &[String], table: &str) -> Error {
        let label = self.label.as_deref().map(|label| format!(" (label `{label}`)")).unwrap_or_default();
        let width = self.inputs.len();
        Error::data(format!(
            "{table} has {count} columns without names, but the model was trained on {width}: {}",
            join_names(&self.inputs)
        ))
        .hint(format!(
            "give the columns of the training in their order, {}{label}, with or without the label and those that were \
             left out; or a header with the names; data.delimiter sets the separator",
            join_names(source)
        ))
    }

    fn unknown_source(&self, count: usize, table: &str) -> Error {
        let width = self.inputs.len();
        Error::data(format!(
            "{table} has {count} columns without names, but the model was trained on {width}, and its file does not store \
             the order of the others"
        ))
        .hint(format!("give {}, or a header with these names", join_names(&self.inputs)))
    }

    /// Error for a header of other columns.
    fn foreign_header(&self, names: &[String], table: &str) -> Error {
        let shared = names.iter().any(|name| self.inputs.contains(name));
        let known = if shared { "few of which" } else { "none of which" };
        Error::data(format!("{table}: its header names {}, {known} the model knows", join_names(names)))
            .hint(format!("the model was trained on {}", join_names(&self.inputs)))
    }

    /// The header name that was probably meant for a missing input: equal up to case, else similar. Names
    /// that the model uses are excluded.
    fn suggestion<'a>(&self, wanted: &str, names: &'a [String]) -> Option<&'a str> {
        let used = |name: &&str| self.inputs.iter().chain(&self.label).any(|own| own == name);
        let free = || names.iter().map(String::as_str).filter(|name| !used(name));
        let same = |name: &&str| name.trim().to_lowercase() == wanted.to_lowercase();
        // Any two names of one letter are similar.
        let telling = |name: &&str| wanted.chars().count() > 1 || name.starts_with(wanted);
        let close = || nearest(wanted, free().filter(telling));
        free().find(same).or_else(close)
    }

    fn missing_column(&self, missing: usize, names: &[String], table: &str) -> Error {
        let wanted = &self.inputs[missing];
        let error =
            Error::data(format!("{table} has no column `{wanted}`, which the model was trained with"));
        match self.suggestion(wanted, names) {
            Some(name) => error.hint(format!("there is a column `{name}`; rename it if it is the same")),
            None => error.hint(format!("its header names {}", join_names(names))),
        }
    }
}

fn ambiguous(count: usize, candidates: &[Vec<String>], table: &str) -> Error {
    let readings: Vec<String> = candidates.iter().map(|names| join_names(names)).collect();
    Error::data(format!("{table} has {count} columns without names: they may be {}", readings.join(" or ")))
        .hint("add a header with the names of the columns")
}

fn unused_header(names: &[String], table: &str) -> String {
    format!(
        "the header of {table} ({}) is not used: the model was trained without column names, so columns count by position",
        join_names(names)
    )
}

/// `c0`, `c1`, ... without gaps, for a model trained without a header that does not store its source columns.
fn source_from_defaults(inputs: &[String], label: &Option<String>) -> Option<Vec<String>> {
    let indices: Option<Vec<usize>> = inputs.iter().chain(label).map(|name| default_index(name)).collect();
    indices.and_then(|indices| indices.into_iter().max()).map(|last| default_names(last + 1))
}

/// The index in a default column name.
fn default_index(name: &str) -> Option<usize> {
    name.strip_prefix('c').and_then(|index| index.parse().ok()).filter(|&index: &usize| index < 1 << 24)
}

/// Whether the name cannot be a number.
fn is_word(name: &str) -> bool {
    parse_number(name.as_bytes()).is_none()
}

/// Whether a field of the first record can be a column name.
fn is_name(field: &str) -> bool {
    !is_missing(field.as_bytes()) && is_word(field)
}

/// Joins names, abbreviating a long list.
pub(crate) fn join_names(names: &[String]) -> String {
    match names.last() {
        Some(last) if names.len() > MAX_LISTED => format!("{}, ... {last}", names[..MAX_LISTED].join(", ")),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(inputs: &[&str], label: &str, source: Option<&[&str]>) -> ModelColumns {
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let (inputs, label) = (owned(inputs), Some(label.to_string()));
        let source =
            source.map_or_else(|| source_from_defaults(&inputs, &label), |source| Some(owned(source)));
        ModelColumns { numeric: vec![true; inputs.len()], inputs, label, source }
    }

    fn map(
        columns: &ModelColumns,
        first: &str,
        header: Auto<bool>,
    ) -> Result<(bool, Vec<usize>, Option<usize>)> {
        let first: Vec<String> = first.split(',').map(String::from).collect();
        columns
            .map_first_record(&first, header, "rows.csv")
            .map(|found| (found.header, found.inputs, found.label))
    }

    #[test]
    fn fields_without_names_map_by_training_order() {
        for (source, label, with, inputs) in [
            (["y", "a", "b"], "y", Some(0), [1, 2]),
            (["a", "y", "b"], "y", Some(1), [0, 2]),
            (["a", "b", "y"], "y", Some(2), [0, 1]),
        ] {
            let columns = columns(&["a", "b"], label, Some(&source));
            assert_eq!(map(&columns, "1,2,3", Auto::Auto).unwrap(), (false, inputs.to_vec(), with));
            assert_eq!(map(&columns, "1,2", Auto::Auto).unwrap(), (false, vec![0, 1], None));
            assert_eq!(map(&columns, "b,a", Auto::Auto).unwrap(), (true, vec![1, 0], None));
        }
    }

    #[test]
    fn ignored_columns_are_optional_and_ambiguous_counts_are_refused() {
        let two = columns(&["a", "b"], "y", Some(&["id", "y", "a", "note", "b"]));
        assert_eq!(map(&two, "7,0,1,x,2", Auto::Auto).unwrap(), (false, vec![2, 4], Some(1)));
        assert_eq!(map(&two, "7,1,x,2", Auto::Auto).unwrap(), (false, vec![1, 3], None), "without the label");
        assert_eq!(map(&two, "0,1,2", Auto::Auto).unwrap(), (false, vec![1, 2], Some(0)));
        assert_eq!(map(&two, "1,2", Auto::Auto).unwrap(), (false, vec![0, 1], None));
        let message = map(&two, "1,2,3,4,5,6", Auto::Auto).unwrap_err().message;
        assert!(
            message.contains("6 columns without names, but the model was trained on 2: a, b"),
            "{message}"
        );
        let one = columns(&["a", "b"], "y", Some(&["id", "a", "b", "y"]));
        let error = map(&one, "1,2,3", Auto::Auto).unwrap_err();
        assert!(error.message.contains("they may be id, a, b or a, b, y"), "{error}");
        assert_eq!(map(&one, "9,1,2,0", Auto::Auto).unwrap().1, [1, 2]);
    }

    #[test]
    fn a_model_without_source_columns_accepts_only_its_inputs() {
        let named = columns(&["a", "b"], "y", None);
        assert!(named.source.is_none());
        assert_eq!(map(&named, "1,2", Auto::Auto).unwrap().1, [0, 1]);
        let message = map(&named, "1,2,3", Auto::Auto).unwrap_err().message;
        assert!(message.contains("does not store the order of the others"), "{message}");
        let numbered = columns(&["c1", "c3"], "c0", None);
        assert_eq!(map(&numbered, "0,1,2,3", Auto::Auto).unwrap(), (false, vec![1, 3], Some(0)));
    }

    #[test]
    fn a_header_with_other_columns_is_refused_unless_the_model_has_default_names() {
        let named = columns(&["a", "b"], "y", Some(&["a", "b", "y"]));
        assert!(map(&named, "a,x,y", Auto::Auto).unwrap_err().message.contains("no column `b`"));
        assert!(map(&named, "p,q,r", Auto::Auto).unwrap_err().message.contains("no column `a`"));
        assert!(map(&named, "1,2,3", Auto::Is(true)).is_err());
        let numbered = columns(&["c0", "c1"], "c2", Some(&["c0", "c1", "c2"]));
        assert_eq!(map(&numbered, "p,q,r", Auto::Auto).unwrap(), (true, vec![0, 1], Some(2)));
        assert_eq!(map(&numbered, "1,2,3", Auto::Is(true)).unwrap(), (true, vec![0, 1], Some(2)));
    }

    #[test]
    fn an_unused_header_is_a_warning_and_a_foreign_one_an_error() {
        let record = |text: &str| text.split(',').map(String::from).collect::<Vec<_>>();
        let numbered = columns(&["c0", "c1"], "c2", Some(&["c0", "c1", "c2"]));
        let warning =
            |first| numbered.map_first_record(&record(first), Auto::Auto, "rows.csv").unwrap().warning;
        assert!(warning("z,y,x").unwrap().starts_with("the header of rows.csv (z, y, x) is not used"));
        assert_eq!(warning("1,2,3"), None);
        let named = columns(&["a", "b"], "y", Some(&["a", "b", "y"]));
        let error = map(&named, "p,q,r,s", Auto::Auto).unwrap_err();
        assert_eq!(error.message, "rows.csv: its header names p, q, r, s, none of which the model knows");
        assert!(error.to_string().contains("trained on a, b"), "{error}");
        assert!(map(&named, "p,q,r,4", Auto::Auto).unwrap_err().message.contains("without names"));
    }

    #[test]
    fn suggestions_exclude_names_that_the_model_uses() {
        let named = columns(&["x", "y", "z"], "w", Some(&["x", "y", "z", "w"]));
        let guess = |wanted: &str, header: &str| {
            let names: Vec<String> = header.split(',').map(String::from).collect();
            named.suggestion(wanted, &names).map(String::from)
        };
        assert_eq!(guess("x", "Z,Y,X").as_deref(), Some("X"));
        assert_eq!(guess("z", "x,y,zz").as_deref(), Some("zz"));
        assert_eq!(guess("z", "x,y,w"), None, "the label");
        assert_eq!(guess("z", "x,y,q"), None, "another letter");
        let long = columns(&["height", "width"], "weight", Some(&["height", "width", "weight"]));
        let names = ["hight", "weight", "width"].map(String::from);
        assert_eq!(long.suggestion("height", &names), Some("hight"));
        assert_eq!(long.suggestion("height", &names[1..]), None);
    }
}
