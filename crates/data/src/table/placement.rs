//! Which field of a table is which column of a trained model.
//!
//! A header finds columns by name, in any order and among others. Without one the fields must be the columns of the
//! training in their order: all of them, or without the label, or without the columns that were left out, or without both.
//! A number of fields that fits two of these is refused, for the rows would be read wrongly and without a word.

use super::columns::{names_of_header, numbered_names};
use super::value::{is_missing, number};
use crate::format::{mismatch, shape_name};
use std::collections::{HashMap, HashSet};
use thalweg_core::schema::{Column, Encoding, Schema, Shape};
use thalweg_core::spec::nearest::nearest;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Error, Result};

/// Names shown in a message, at most.
const SHOWN: usize = 12;

/// The columns of a trained model and where they stood in its source.
#[derive(Debug)]
pub(crate) struct ModelColumns {
    inputs: Vec<String>,
    /// Whether each of them holds numbers.
    numeric: Vec<bool>,
    label: Option<String>,
    /// All columns of the source in order; unknown for some older models.
    source: Option<Vec<String>>,
}

/// Where the columns of a model stand in a table.
#[derive(Debug, PartialEq)]
pub(crate) struct Placement {
    /// Whether the first record names the columns.
    pub(crate) header: bool,
    /// Names of all fields.
    pub(crate) names: Vec<String>,
    /// The field of each input.
    pub(crate) inputs: Vec<usize>,
    /// The field of the label, if it is there.
    pub(crate) label: Option<usize>,
    /// What is to be told: that a header is there and its names are not used.
    pub(crate) warning: Option<String>,
}

impl Placement {
    /// The field of the label, without which nothing can be measured.
    pub(crate) fn labelled(&self, schema: &Schema, table: &str) -> Result<usize> {
        self.label.ok_or_else(|| {
            let label = schema.label.as_deref().unwrap_or("label");
            Error::data(format!("{table} has no column `{label}`, the label of the model"))
                .hint("add it to measure the model; `thalweg predict` answers rows without a label")
        })
    }
}

impl ModelColumns {
    /// Those of a schema; for images and sparse rows the given columns stand for the numbers of a row.
    pub(crate) fn new(columns: &[Column], schema: &Schema) -> ModelColumns {
        let inputs: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let source = match &schema.shape {
            Shape::Table { .. } if schema.source_columns.is_empty() => {
                source_by_numbers(&inputs, &schema.label)
            }
            Shape::Table { .. } => Some(schema.source_columns.clone()),
            _ => Some(inputs.clone()),
        };
        let numeric = columns.iter().map(|column| matches!(column.encoding, Encoding::Number { .. }));
        ModelColumns { numeric: numeric.collect(), inputs, label: schema.label.clone(), source }
    }

    /// Those of a schema of tables; `table` is what holds one and should fit.
    pub(crate) fn of_table(schema: &Schema, table: &str) -> Result<ModelColumns> {
        match &schema.shape {
            Shape::Table { columns } => Ok(ModelColumns::new(columns, schema)),
            other => Err(mismatch(table, "a table", shape_name(other))),
        }
    }

    /// Finds the columns in a table by its first record. `table` is what the table is called in messages.
    pub(crate) fn place(&self, first: &[String], header: Auto<bool>, table: &str) -> Result<Placement> {
        if header != Auto::Is(false) {
            let names = names_of_header(first.iter().cloned());
            match self.by_name(names) {
                Ok(placement) => return Ok(placement),
                // One that matches half of the names is a header with other columns.
                Err((found, missing)) if found * 2 >= self.inputs.len() && is_word(&self.inputs[missing]) => {
                    return Err(self.absent(missing, first, table));
                }
                Err((_, missing)) if header == Auto::Is(true) && self.numbered() == 0 => {
                    return Err(self.absent(missing, first, table));
                }
                Err(_) => {}
            }
        }
        let kept = self.kept(first.len(), table).map_err(|error| {
            let is_header =
                header != Auto::Is(false) && self.numbered() == 0 && first.iter().all(|name| is_name(name));
            if is_header { self.foreign(first, table) } else { error }
        })?;
        let (inputs, label) = self.find(&kept);
        let inputs: Vec<usize> = inputs.into_iter().flatten().collect();
        let named = match header {
            Auto::Is(answer) => answer,
            Auto::Auto => self.looks_like_names(first, &inputs),
        };
        if named && self.numbered() == 0 {
            return Err(self.absent(0, first, table));
        }
        let names = if named { names_of_header(first.iter().cloned()) } else { kept };
        let warning = named.then(|| unused_header(&names, table));
        Ok(Placement { header: named, names, inputs, label, warning })
    }

    /// Finds the columns among names that are known to be names.
    pub(crate) fn place_named(&self, names: &[String], table: &str) -> Result<Placement> {
        self.by_name(names.to_vec()).map_err(|(_, missing)| self.absent(missing, names, table))
    }

    /// The fields of a record without names, in the order of the model's inputs, and that of the label.
    pub(crate) fn by_count(&self, count: usize, what: &str) -> Result<(Vec<usize>, Option<usize>)> {
        let (inputs, label) = self.find(&self.kept(count, what)?);
        Ok((inputs.into_iter().flatten().collect(), label))
    }

    /// By the names of a header; otherwise how many inputs were found, and the first that was not.
    fn by_name(&self, names: Vec<String>) -> Result<Placement, (usize, usize)> {
        let (found, label) = self.find(&names);
        if let Some(missing) = found.iter().position(Option::is_none) {
            return Err((found.iter().flatten().count(), missing));
        }
        let inputs = found.into_iter().flatten().collect();
        Ok(Placement { header: true, names, inputs, label, warning: None })
    }

    /// Where each input and the label stand among these names.
    fn find(&self, names: &[String]) -> (Vec<Option<usize>>, Option<usize>) {
        let places: HashMap<&str, usize> =
            names.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
        let find = |name: &String| places.get(name.as_str()).copied();
        (self.inputs.iter().map(find).collect(), self.label.as_ref().and_then(find))
    }

    /// The columns of the training that `count` fields stand for, in order.
    fn kept(&self, count: usize, table: &str) -> Result<Vec<String>> {
        let Some(source) = &self.source else {
            return if count == self.inputs.len() {
                Ok(self.inputs.clone())
            } else {
                Err(self.unknown(count, table))
            };
        };
        let inputs: HashSet<&String> = self.inputs.iter().collect();
        let mut fitting: Vec<Vec<String>> = Vec::new();
        for (label, ignored) in [(true, true), (false, true), (true, false), (false, false)] {
            let wanted = |name: &&String| match (Some(*name) == self.label.as_ref(), inputs.contains(name)) {
                (true, _) => label,
                (_, input) => input || ignored,
            };
            let kept: Vec<String> = source.iter().filter(wanted).cloned().collect();
            if kept.len() == count && !fitting.contains(&kept) {
                fitting.push(kept);
            }
        }
        match fitting.len() {
            1 => Ok(fitting.remove(0)),
            0 => Err(self.refused(count, source, table)),
            _ => Err(ambiguous(count, &fitting, table)),
        }
    }

    /// Whether a record that stands where a row could stand names columns instead: words where there should be numbers.
    fn looks_like_names(&self, first: &[String], inputs: &[usize]) -> bool {
        let numeric = inputs.iter().zip(&self.numeric).filter(|(_, numeric)| **numeric);
        let mut fields = numeric.map(|(&field, _)| first[field].as_bytes()).peekable();
        fields.peek().is_some() && fields.all(|field| !is_missing(field) && number(field).is_none())
    }

    /// How many inputs are called by their number, as in a training without a header.
    fn numbered(&self) -> usize {
        self.inputs.iter().filter(|name| place_of(name).is_some()).count()
    }

    fn refused(&self, count: usize, source: &[String], table: &str) -> Error {
        let label = self.label.as_deref().map(|label| format!(" (label `{label}`)")).unwrap_or_default();
        let width = self.inputs.len();
        Error::data(format!(
            "{table} has {count} columns without names, but the model was trained on {width}: {}",
            listed(&self.inputs)
        ))
        .hint(format!(
            "give the columns of the training in their order, {}{label}, with or without the label and those that were \
             left out; or a header with the names; data.delimiter says what separates",
            listed(source)
        ))
    }

    fn unknown(&self, count: usize, table: &str) -> Error {
        let width = self.inputs.len();
        Error::data(format!(
            "{table} has {count} columns without names, but the model was trained on {width}, and its file does not say \
             where the others stood"
        ))
        .hint(format!("give {}, or a header with these names", listed(&self.inputs)))
    }

    /// The answer to a header of other columns.
    fn foreign(&self, names: &[String], table: &str) -> Error {
        let shared = names.iter().any(|name| self.inputs.contains(name));
        let known = if shared { "few of which" } else { "none of which" };
        Error::data(format!("{table}: its header names {}, {known} the model knows", listed(names)))
            .hint(format!("the model was trained on {}", listed(&self.inputs)))
    }

    /// The name in a header that probably stands for a missing input: the same in other letters, else one that is close.
    /// Names that the model uses already are not meant.
    fn meant<'a>(&self, wanted: &str, names: &'a [String]) -> Option<&'a str> {
        let used = |name: &&str| self.inputs.iter().chain(&self.label).any(|own| own == name);
        let free = || names.iter().map(String::as_str).filter(|name| !used(name));
        let same = |name: &&str| name.trim().to_lowercase() == wanted.to_lowercase();
        // Any two names of one letter would be close.
        let telling = |name: &&str| wanted.chars().count() > 1 || name.starts_with(wanted);
        let close = || nearest(wanted, free().filter(telling));
        free().find(same).or_else(close)
    }

    fn absent(&self, missing: usize, names: &[String], table: &str) -> Error {
        let wanted = &self.inputs[missing];
        let error =
            Error::data(format!("{table} has no column `{wanted}`, which the model was trained with"));
        match self.meant(wanted, names) {
            Some(name) => error.hint(format!("there is a column `{name}`; rename it if it is the same")),
            None => error.hint(format!("its header names {}", listed(names))),
        }
    }
}

/// Several readings fit: none is taken.
fn ambiguous(count: usize, fitting: &[Vec<String>], table: &str) -> Error {
    let readings: Vec<String> = fitting.iter().map(|names| listed(names)).collect();
    Error::data(format!("{table} has {count} columns without names: they may be {}", readings.join(" or ")))
        .hint("add a header with the names of the columns")
}

fn unused_header(names: &[String], table: &str) -> String {
    format!(
        "the header of {table} ({}) is not used: the model was trained without column names, so columns count by position",
        listed(names)
    )
}

/// `c0, c1, ...` without the gaps, for a model that was trained without a header and does not list its source.
fn source_by_numbers(inputs: &[String], label: &Option<String>) -> Option<Vec<String>> {
    let places: Option<Vec<usize>> = inputs.iter().chain(label).map(|name| place_of(name)).collect();
    places.and_then(|places| places.into_iter().max()).map(|last| numbered_names(last + 1))
}

/// The place of a column that is called by it.
fn place_of(name: &str) -> Option<usize> {
    name.strip_prefix('c').and_then(|place| place.parse().ok()).filter(|&place: &usize| place < 1 << 24)
}

/// Whether a name cannot be a value of a row of numbers.
fn is_word(name: &str) -> bool {
    number(name.as_bytes()).is_none()
}

/// Whether a field of a first record can be the name of a column.
fn is_name(field: &str) -> bool {
    !is_missing(field.as_bytes()) && is_word(field)
}

/// Names, the first of many.
pub(crate) fn listed(names: &[String]) -> String {
    match names.last() {
        Some(last) if names.len() > SHOWN => format!("{}, ... {last}", names[..SHOWN].join(", ")),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(inputs: &[&str], label: &str, source: Option<&[&str]>) -> ModelColumns {
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let (inputs, label) = (owned(inputs), Some(label.to_string()));
        let source = source.map_or_else(|| source_by_numbers(&inputs, &label), |source| Some(owned(source)));
        ModelColumns { numeric: vec![true; inputs.len()], inputs, label, source }
    }

    fn place(
        columns: &ModelColumns,
        first: &str,
        header: Auto<bool>,
    ) -> Result<(bool, Vec<usize>, Option<usize>)> {
        let first: Vec<String> = first.split(',').map(String::from).collect();
        columns.place(&first, header, "rows.csv").map(|found| (found.header, found.inputs, found.label))
    }

    #[test]
    fn fields_without_names_stand_where_they_stood_in_training() {
        for (source, label, with, inputs) in [
            (["y", "a", "b"], "y", Some(0), [1, 2]),
            (["a", "y", "b"], "y", Some(1), [0, 2]),
            (["a", "b", "y"], "y", Some(2), [0, 1]),
        ] {
            let columns = columns(&["a", "b"], label, Some(&source));
            assert_eq!(place(&columns, "1,2,3", Auto::Auto).unwrap(), (false, inputs.to_vec(), with));
            assert_eq!(place(&columns, "1,2", Auto::Auto).unwrap(), (false, vec![0, 1], None));
            assert_eq!(place(&columns, "b,a", Auto::Auto).unwrap(), (true, vec![1, 0], None));
        }
    }

    #[test]
    fn columns_left_out_may_be_there_or_not_and_what_fits_twice_is_refused() {
        let two = columns(&["a", "b"], "y", Some(&["id", "y", "a", "note", "b"]));
        assert_eq!(place(&two, "7,0,1,x,2", Auto::Auto).unwrap(), (false, vec![2, 4], Some(1)));
        assert_eq!(
            place(&two, "7,1,x,2", Auto::Auto).unwrap(),
            (false, vec![1, 3], None),
            "without the label"
        );
        assert_eq!(place(&two, "0,1,2", Auto::Auto).unwrap(), (false, vec![1, 2], Some(0)));
        assert_eq!(place(&two, "1,2", Auto::Auto).unwrap(), (false, vec![0, 1], None));
        let message = place(&two, "1,2,3,4,5,6", Auto::Auto).unwrap_err().message;
        assert!(
            message.contains("6 columns without names, but the model was trained on 2: a, b"),
            "{message}"
        );
        let one = columns(&["a", "b"], "y", Some(&["id", "a", "b", "y"]));
        let error = place(&one, "1,2,3", Auto::Auto).unwrap_err();
        assert!(error.message.contains("they may be id, a, b or a, b, y"), "{error}");
        assert_eq!(place(&one, "9,1,2,0", Auto::Auto).unwrap().1, [1, 2]);
    }

    #[test]
    fn a_model_that_does_not_tell_its_source_takes_its_inputs_alone() {
        let named = columns(&["a", "b"], "y", None);
        assert!(named.source.is_none());
        assert_eq!(place(&named, "1,2", Auto::Auto).unwrap().1, [0, 1]);
        let message = place(&named, "1,2,3", Auto::Auto).unwrap_err().message;
        assert!(message.contains("does not say where the others stood"), "{message}");
        let numbered = columns(&["c1", "c3"], "c0", None);
        assert_eq!(place(&numbered, "0,1,2,3", Auto::Auto).unwrap(), (false, vec![1, 3], Some(0)));
    }

    #[test]
    fn a_header_is_believed_as_far_as_it_goes() {
        let named = columns(&["a", "b"], "y", Some(&["a", "b", "y"]));
        assert!(place(&named, "a,x,y", Auto::Auto).unwrap_err().message.contains("no column `b`"));
        assert!(place(&named, "p,q,r", Auto::Auto).unwrap_err().message.contains("no column `a`"));
        assert!(place(&named, "1,2,3", Auto::Is(true)).is_err());
        let numbered = columns(&["c0", "c1"], "c2", Some(&["c0", "c1", "c2"]));
        assert_eq!(place(&numbered, "p,q,r", Auto::Auto).unwrap(), (true, vec![0, 1], Some(2)));
        assert_eq!(place(&numbered, "1,2,3", Auto::Is(true)).unwrap(), (true, vec![0, 1], Some(2)));
    }

    #[test]
    fn a_header_that_is_not_used_or_fits_nothing_is_named() {
        let record = |text: &str| text.split(',').map(String::from).collect::<Vec<_>>();
        let numbered = columns(&["c0", "c1"], "c2", Some(&["c0", "c1", "c2"]));
        let warning = |first| numbered.place(&record(first), Auto::Auto, "rows.csv").unwrap().warning;
        assert!(warning("z,y,x").unwrap().starts_with("the header of rows.csv (z, y, x) is not used"));
        assert_eq!(warning("1,2,3"), None);
        let named = columns(&["a", "b"], "y", Some(&["a", "b", "y"]));
        let error = place(&named, "p,q,r,s", Auto::Auto).unwrap_err();
        assert_eq!(error.message, "rows.csv: its header names p, q, r, s, none of which the model knows");
        assert!(error.to_string().contains("trained on a, b"), "{error}");
        assert!(place(&named, "p,q,r,4", Auto::Auto).unwrap_err().message.contains("without names"));
    }

    #[test]
    fn a_missing_name_is_guessed_among_those_that_the_model_does_not_use() {
        let named = columns(&["x", "y", "z"], "w", Some(&["x", "y", "z", "w"]));
        let guess = |wanted: &str, header: &str| {
            let names: Vec<String> = header.split(',').map(String::from).collect();
            named.meant(wanted, &names).map(String::from)
        };
        assert_eq!(guess("x", "Z,Y,X").as_deref(), Some("X"));
        assert_eq!(guess("z", "x,y,zz").as_deref(), Some("zz"));
        assert_eq!(guess("z", "x,y,w"), None, "the label");
        assert_eq!(guess("z", "x,y,q"), None, "another letter");
        let long = columns(&["height", "width"], "weight", Some(&["height", "width", "weight"]));
        let names = ["hight", "weight", "width"].map(String::from);
        assert_eq!(long.meant("height", &names), Some("hight"));
        assert_eq!(long.meant("height", &names[1..]), None);
    }
}
