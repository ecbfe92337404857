//! The plan of a table: delimiter, names, which field is what, and where the rows of each file begin.

use super::sample::{Sample, holds_numbers};
use crate::format::mismatch;
use crate::raw::Raw;
use crate::table::columns::Columns;
use thalweg_core::schema::{Encoding, Schema, Shape};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::nearest::nearest;
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
    let (label, inputs, categorical) = match known {
        None => chosen(&names, &sample, header, spec)?,
        Some(schema) => stored(&names, schema, first, header)?,
    };
    let mut starts = vec![rows_begin(&sample, header)];
    for file in &files[1..] {
        starts.push(later_file(file, first, &names, header, spec)?);
    }
    Ok(Plan { delimiter: sample.delimiter, names, label, inputs, categorical, starts })
}

type Roles = (usize, Vec<usize>, Vec<bool>);

/// What the job says, and for the rest what the columns look like.
fn chosen(names: &[String], sample: &Sample, header: bool, spec: &DataSpec) -> Result<Roles> {
    let columns = Columns::choose(names, spec)?;
    let rows = sample.rows(header);
    let categorical = |column: &usize| columns.categorical.contains(column) || !holds_numbers(rows, *column);
    let kinds = columns.inputs.iter().map(categorical).collect();
    Ok((columns.label, columns.inputs, kinds))
}

/// The columns of a stored schema, found by name.
fn stored(names: &[String], schema: &Schema, file: &Raw, header: bool) -> Result<Roles> {
    let Shape::Table { columns } = &schema.shape else {
        return Err(mismatch(file.name(), "a table", shape_name(&schema.shape)));
    };
    let find = |wanted: &str| {
        names.iter().position(|name| name == wanted).ok_or_else(|| {
            let error = Error::data(format!(
                "{} has no column `{wanted}`, which the model was trained with",
                file.name()
            ));
            match nearest(wanted, names.iter().map(String::as_str)) {
                Some(name) => error.hint(format!("there is a column `{name}`; rename it if it is the same")),
                None if !header => {
                    error.hint("the file seems to have no header; add one, or set data.header = true")
                }
                None => error.hint(format!("its columns are {}", names.join(", "))),
            }
        })
    };
    let inputs = columns.iter().map(|column| find(&column.name)).collect::<Result<_>>()?;
    let label = match &schema.label {
        Some(label) => find(label)?,
        None => names.len() - 1,
    };
    let categorical =
        columns.iter().map(|column| matches!(column.encoding, Encoding::OneHot { .. })).collect();
    Ok((label, inputs, categorical))
}

/// What rows of a shape are called in messages.
pub(crate) fn shape_name(shape: &Shape) -> &'static str {
    match shape {
        Shape::Table { .. } => "a table",
        Shape::Image { .. } => "images",
        Shape::Sparse { .. } => "sparse rows",
        Shape::Text { .. } => "a text",
    }
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
