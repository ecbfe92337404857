//! The plan of a table: delimiter, names, which field is what, and where the rows of each file begin.

use super::sample::{Sample, holds_numbers};
use crate::raw::Raw;
use crate::table::columns::Columns;
use thalweg_core::schema::{Schema, Shape};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Error, Result};

/// How the files of a table are to be read.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) delimiter: Delimiter,
    /// Names of all fields.
    pub(crate) names: Vec<String>,
    /// The field to predict.
    pub(crate) label: usize,
    /// The fields to read.
    pub(crate) inputs: Vec<usize>,
    /// For each of `inputs`, whether it holds categories.
    pub(crate) categorical: Vec<bool>,
    /// Where the rows of each file begin.
    pub(crate) starts: Vec<u64>,
}

/// Looks at the beginning of each file.
pub(crate) fn plan(files: &[Raw], spec: &DataSpec, known: Option<&Schema>) -> Result<Plan> {
    let first = &files[0];
    let sample = Sample::read(first, spec.delimiter)?;
    if sample.records.is_empty() {
        return Err(Error::data(format!("{} is empty", first.name())).hint("check data.source and the file"));
    }
    let header = match known {
        Some(schema) if names_columns(&sample, schema) => true,
        _ => sample.has_header(spec.header, first)?,
    };
    let names = sample.names(header);
    if sample.rows(header).is_empty() {
        return Err(Error::data(format!("{} holds a header and no rows", first.name()))
            .hint("add rows, or set data.header = false if the line is a row"));
    }
    let columns = match known {
        None => Columns::choose(&names, spec)?,
        Some(schema) => Columns::stored(&names, schema, first.name(), header)?,
    };
    let rows = sample.rows(header);
    let looks_like_names = |column: usize| known.is_none() && !holds_numbers(rows, column);
    let categorical = |&column: &usize| columns.categorical.contains(&column) || looks_like_names(column);
    let categorical = columns.inputs.iter().map(categorical).collect();
    let mut starts = vec![rows_begin(&sample, header)];
    for file in &files[1..] {
        starts.push(later_file(file, first, &names, header, spec)?);
    }
    let Columns { label, inputs, .. } = columns;
    Ok(Plan { delimiter: sample.delimiter, names, label, inputs, categorical, starts })
}

/// Whether the first record holds the names of a stored schema.
fn names_columns(sample: &Sample, schema: &Schema) -> bool {
    let Shape::Table { columns } = &schema.shape else { return false };
    let names = sample.names(true);
    columns.iter().all(|column| names.contains(&column.name))
}

fn rows_begin(sample: &Sample, header: bool) -> u64 {
    sample.offsets[usize::from(header)]
}

/// Where the rows of another file begin: it must have the same columns, and a header only if it is the same.
fn later_file(file: &Raw, first: &Raw, names: &[String], header: bool, spec: &DataSpec) -> Result<u64> {
    let sample = Sample::read(file, spec.delimiter)?;
    let Some(record) = sample.records.first() else { return Ok(file.len()) };
    if record.len() != names.len() {
        return Err(Error::data(format!(
            "{} has {} columns where {} has {}",
            file.name(),
            record.len(),
            first.name(),
            names.len()
        ))
        .hint("all files of a source need the same columns in the same order"));
    }
    let own = sample.names(true);
    let same = header && own == names;
    let looks_named =
        header && !same && (spec.header == Auto::Is(true) || sample.has_header(Auto::Auto, file)?);
    if looks_named {
        let differing = (0..names.len()).find(|&column| own[column] != names[column]).unwrap_or(0);
        return Err(Error::data(format!(
            "column {differing} is called `{}` in {} but `{}` in {}",
            own[differing],
            file.name(),
            names[differing],
            first.name()
        ))
        .hint("all files of a source need the same columns in the same order"));
    }
    if same && sample.records.len() == 1 {
        return Ok(file.len());
    }
    Ok(rows_begin(&sample, same))
}
