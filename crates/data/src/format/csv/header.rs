//! The plan of a table: delimiter, names, which field is what, and where the rows of each file begin.

use super::kinds::FirstRows;
use super::sample::Sample;
use crate::raw::Raw;
use crate::sniff::frame_index;
use crate::table::columns::Columns;
use crate::table::placement::{ModelColumns, Placement};
use thalweg_core::schema::Schema;
use thalweg_core::spec::data::{DataSpec, Missing};
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
    /// What the user had better know.
    pub(crate) notices: Vec<String>,
}

/// Looks at the beginning of each file.
pub(crate) fn plan(files: &[Raw], spec: &DataSpec, known: Option<&Schema>) -> Result<Plan> {
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
            let columns = Columns::choose(&names, spec)?;
            (header, names, columns, None)
        }
        Some(schema) => stored(&sample, spec, schema, first)?,
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
    let mut starts = vec![rows_begin(&sample, header)];
    for file in &files[1..] {
        starts.push(later_file(file, first, &names, header, sample.delimiter, spec)?);
    }
    let Columns { label, inputs, .. } = columns;
    let counts_rows = match header && known.is_none() {
        true => frame_index(&names, sample.rows(header)),
        false => Vec::new(),
    };
    let notices = counts_rows.iter().filter(|place| inputs.contains(place));
    let notices = notices.map(|&place| index_notice(first, &names[place], place)).chain(warning).collect();
    Ok(Plan { delimiter: sample.delimiter, names, label, inputs, categorical, starts, notices })
}

/// A column of row numbers is read like any other.
fn index_notice(file: &Raw, name: &str, place: usize) -> String {
    format!(
        "{}: column {place} has no name and numbers the rows, as data frames do (pandas: to_csv without index=False); \
         data.ignore = [\"{name}\"] leaves it out",
        file.name()
    )
}

/// The columns of a stored schema, where they stand in this file.
fn stored(
    sample: &Sample,
    spec: &DataSpec,
    schema: &Schema,
    file: &Raw,
) -> Result<(bool, Vec<String>, Columns, Option<String>)> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let record = match spec.header {
        // A first line that is passed over may have another number of fields.
        Auto::Is(true) => sample.names(true),
        _ => sample.records[0].iter().map(text).collect(),
    };
    let model = ModelColumns::of_table(schema, file.name())?;
    let placement = model.place(&record, spec.header, file.name())?;
    check_rows(sample, placement.header, file)?;
    let label = placement.labelled(schema, file.name())?;
    let Placement { header, names, inputs, warning, .. } = placement;
    Ok((header, names, Columns { label, inputs, categorical: Vec::new() }, warning))
}

fn check_rows(sample: &Sample, header: bool, file: &Raw) -> Result<()> {
    if sample.rows(header).is_empty() {
        return Err(Error::data(format!("{} holds a header and no rows", file.name()))
            .hint("add rows, or set data.header = false if the line is a row"));
    }
    Ok(())
}

pub(crate) fn rows_begin(sample: &Sample, header: bool) -> u64 {
    sample.offsets[usize::from(header)]
}

/// Where the rows of another file begin: it must have the same columns, and a header only if it is the same.
pub(crate) fn later_file(
    file: &Raw,
    first: &Raw,
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
    Ok(rows_begin(&sample, same))
}
