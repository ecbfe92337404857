//! The layout of a table: delimiter, column names and roles, and the offset of the first row in each file.

use super::kinds::FirstRows;
use super::sample::Sample;
use crate::file_bytes::FileBytes;
use crate::sniff::frame_index;
use crate::table::column_mapping::{ColumnMapping, ModelColumns};
use crate::table::column_roles::ColumnRoles;
use thalweg_core::schema::Schema;
use thalweg_core::spec::data::{DataSpec, Missing};
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Error, Result};

#[derive(Debug)]
pub(crate) struct TableLayout {
    pub(crate) delimiter: Delimiter,
    /// Names of all fields.
    pub(crate) names: Vec<String>,
    pub(crate) label: usize,
    pub(crate) inputs: Vec<usize>,
    /// Whether each of `inputs` holds categories.
    pub(crate) categorical: Vec<bool>,
    /// Byte offset of the first row of each file.
    pub(crate) starts: Vec<u64>,
    /// Messages for the user.
    pub(crate) notices: Vec<String>,
}

/// Detects the layout from the first rows of each file.
pub(crate) fn detect(files: &[FileBytes], spec: &DataSpec, known: Option<&Schema>) -> Result<TableLayout> {
    let first = &files[0];
    let sample = Sample::read(first, spec.delimiter)?;
    if sample.records.is_empty() {
        return Err(Error::data(format!("{} is empty", first.name())).hint("check data.source and the file"));
    }
    let (header, names, columns, warning) = match known {
        None => {
            let header = sample.has_header(spec.header, first)?;
            let names = sample.names(header);
            check_rows(&sample, header, first)?;
            let columns = ColumnRoles::choose(&names, spec)?;
            (header, names, columns, None)
        }
        Some(schema) => from_schema(&sample, spec, schema, first)?,
    };
    let categorical = match known {
        None => {
            let first = FirstRows { sample: &sample, header, names: &names, file: first };
            let categorical = first.categorical(&columns, spec)?;
            if spec.missing == Missing::Error {
                first.check_missing(&columns, &categorical)?;
            }
            categorical
        }
        Some(_) => columns.inputs.iter().map(|input| columns.categorical.contains(input)).collect(),
    };
    let mut starts = vec![first_row(&sample, header)];
    for file in &files[1..] {
        starts.push(first_row_of_later_file(file, first, &names, header, sample.delimiter, spec)?);
    }
    let ColumnRoles { label, inputs, .. } = columns;
    let index_columns = match header && known.is_none() {
        true => frame_index(&names, sample.rows(header)),
        false => Vec::new(),
    };
    let notices = index_columns.iter().filter(|index| inputs.contains(index));
    let notices = notices.map(|&index| index_notice(first, &names[index], index)).chain(warning).collect();
    Ok(TableLayout { delimiter: sample.delimiter, names, label, inputs, categorical, starts, notices })
}

/// Only a notice: the column is used like any other.
fn index_notice(file: &FileBytes, name: &str, index: usize) -> String {
    format!(
        "{}: column {index} has no name and numbers the rows, as data frames do (pandas: to_csv without index=False); \
         data.ignore = [\"{name}\"] leaves it out",
        file.name()
    )
}

/// Maps the columns of a stored schema to the fields of this file.
fn from_schema(
    sample: &Sample,
    spec: &DataSpec,
    schema: &Schema,
    file: &FileBytes,
) -> Result<(bool, Vec<String>, ColumnRoles, Option<String>)> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let record = match spec.header {
        // A skipped first line may have a different number of fields.
        Auto::Is(true) => sample.names(true),
        _ => sample.records[0].iter().map(text).collect(),
    };
    let model = ModelColumns::of_table(schema, file.name())?;
    let mapping = model.map_first_record(&record, spec.header, file.name())?;
    check_rows(sample, mapping.header, file)?;
    let label = mapping.label_field(schema, file.name())?;
    let ColumnMapping { header, names, inputs, warning, .. } = mapping;
    Ok((header, names, ColumnRoles { label, inputs, categorical: Vec::new() }, warning))
}

fn check_rows(sample: &Sample, header: bool, file: &FileBytes) -> Result<()> {
    if sample.rows(header).is_empty() {
        return Err(Error::data(format!("{} holds a header and no rows", file.name()))
            .hint("add rows, or set data.header = false if the line is a row"));
    }
    Ok(())
}

pub(crate) fn first_row(sample: &Sample, header: bool) -> u64 {
    sample.offsets[usize::from(header)]
}

/// Byte offset of the first row of a later file: it must have the same columns, and the same header or none.
pub(crate) fn first_row_of_later_file(
    file: &FileBytes,
    first: &FileBytes,
    names: &[String],
    header: bool,
    delimiter: Delimiter,
    spec: &DataSpec,
) -> Result<u64> {
    let sample = Sample::read(file, Auto::Is(delimiter))?;
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
    Ok(first_row(&sample, same))
}
