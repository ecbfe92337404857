//! The index pass over labels and categories; numeric columns are not read.

use super::RowRange;
use super::column::{ColumnType, ParquetFile, damaged};
use crate::block::{BLOCK_BYTES, BLOCK_ROWS};
use crate::table::categories::CategoryCollector;
use crate::table::column_mapping::{ColumnMapping, ModelColumns};
use crate::table::column_roles::ColumnRoles;
use crate::table::labels::{LabelEncoding, LabelTally};
use crate::table::value_error::ValueError;
use thalweg_core::schema::{Column, Encoding, Schema};
use thalweg_core::spec::data::{DataSpec, Missing};
use thalweg_core::spec::setting::ColumnRef;
use thalweg_core::{Error, Result};

/// Maximum rows per block. Opening a column costs more than in text formats, so blocks are larger.
const MAX_BLOCK_ROWS: usize = 4 * BLOCK_ROWS as usize;

pub(super) struct ParquetRoles {
    /// `None` for prediction.
    pub(super) label: Option<usize>,
    pub(super) inputs: Vec<usize>,
    /// Whether the categories of each input must be collected.
    pub(super) categorical: Vec<bool>,
}

impl ParquetRoles {
    /// Roles from a stored schema, which already has the categories; prediction needs no label.
    pub(super) fn from_schema(file: &ParquetFile, schema: &Schema, labelled: bool) -> Result<ParquetRoles> {
        let model = ModelColumns::of_table(schema, &file.name)?;
        let mapping = model.map_named(&file.names, &file.name)?;
        let label = if labelled { Some(mapping.label_field(schema, &file.name)?) } else { None };
        let ColumnMapping { inputs, .. } = mapping;
        Ok(ParquetRoles { label, categorical: vec![false; inputs.len()], inputs })
    }
}

pub(super) struct ParquetIndex {
    pub(super) ranges: Vec<RowRange>,
    pub(super) labels: LabelEncoding,
    pub(super) columns: Vec<Column>,
}

/// Roles from the job, completed by the column types.
pub(super) fn choose(file: &ParquetFile, spec: &DataSpec) -> Result<ParquetRoles> {
    let columns = ColumnRoles::choose(&file.names, &without_row_names(file, spec))?;
    let mut categorical = Vec::new();
    for &input in columns.inputs.iter().chain([&columns.label]) {
        if let ColumnType::Other(what) = file.types[input] {
            let name = &file.names[input];
            return Err(Error::data(format!(
                "{}, column `{name}` holds {what}, which cannot be read",
                file.name
            ))
            .hint(format!("leave it out with data.ignore = [\"{name}\"]")));
        }
        categorical.push(file.types[input] == ColumnType::Text || columns.categorical.contains(&input));
    }
    categorical.pop();
    Ok(ParquetRoles { label: Some(columns.label), inputs: columns.inputs, categorical })
}

/// Excludes pandas index columns, which are stored last, unless the job names them.
fn without_row_names(file: &ParquetFile, spec: &DataSpec) -> DataSpec {
    let mut spec = spec.clone();
    let named = |wanted| (0..file.names.len()).filter(move |&leaf| file.holds_row_names(leaf) == wanted);
    spec.ignore.extend(named(true).map(|leaf| file.names[leaf].clone()));
    if spec.label.is_none() {
        spec.label = named(false).next_back().map(|leaf| ColumnRef::Index(leaf as i64));
    }
    spec
}

pub(super) fn pass(
    files: &[ParquetFile],
    roles: &ParquetRoles,
    spec: &DataSpec,
    known: Option<&Schema>,
) -> Result<ParquetIndex> {
    let first = &files[0];
    let label_name = roles.label.map_or("", |label| &first.names[label]);
    // Without a label, any column is read to verify the number of rows.
    let counted = roles.label.unwrap_or(roles.inputs[0]);
    let mut labels = LabelTally::new();
    let mut ranges = Vec::new();
    let mut text = Vec::new();
    for (number, file) in files.iter().enumerate() {
        for (group, &rows) in file.groups.iter().enumerate() {
            if rows == 0 {
                continue;
            }
            file.read(group, counted, 0..rows, |row, value| {
                if roles.label.is_none() {
                    return Ok(());
                }
                let Some(label) = value.present(&mut text) else {
                    return Err(ValueError::missing_label(label_name, b"").at(&file.location(group, row)));
                };
                labels.add(label, (number, group, row));
                Ok(())
            })?;
            // The rows were read, so the row count holds for this column at least.
            ranges.extend(split_group(number, group, rows, roles.inputs.len()));
        }
    }
    let labels = match known {
        Some(schema) if roles.label.is_none() => LabelEncoding::Unread(schema.task),
        Some(schema) => LabelEncoding::new(schema.task, &schema.classes),
        None => labels.finish(spec.task, label_name, |(file, group, row): (usize, usize, usize)| {
            Ok(files[file].location(group, row))
        })?,
    };
    let columns = match known {
        Some(_) => Vec::new(),
        None => collect_columns(files, roles, spec)?,
    };
    Ok(ParquetIndex { ranges, labels, columns })
}

fn split_group(file: usize, group: usize, rows: usize, columns: usize) -> impl Iterator<Item = RowRange> {
    let size = (BLOCK_BYTES as usize * 4 / (4 * columns.max(1))).clamp(1, MAX_BLOCK_ROWS);
    (0..rows).step_by(size).map(move |first| RowRange { file, group, first, rows: size.min(rows - first) })
}

fn collect_columns(files: &[ParquetFile], roles: &ParquetRoles, spec: &DataSpec) -> Result<Vec<Column>> {
    let imputed = (spec.missing == Missing::Zero).then_some(0.0);
    let mut columns = Vec::new();
    for (&input, &categorical) in roles.inputs.iter().zip(&roles.categorical) {
        let name = files[0].names[input].clone();
        let encoding = match categorical {
            false => Encoding::Number { imputed },
            true => Encoding::OneHot {
                categories: collect_categories(files, input, spec.missing != Missing::Error)?,
            },
        };
        columns.push(Column { name, encoding });
    }
    Ok(columns)
}

fn collect_categories(files: &[ParquetFile], column: usize, missing_allowed: bool) -> Result<Vec<String>> {
    let mut tally = CategoryCollector::default();
    let mut text = Vec::new();
    for file in files {
        if file.types[column] != files[0].types[column] {
            return Err(damaged(
                &file.name,
                &format!("column `{}` has another type than in {}", file.names[column], files[0].name),
            ));
        }
        for (group, &rows) in file.groups.iter().enumerate() {
            file.read(group, column, 0..rows, |row, value| {
                let added = tally.add(&file.names[column], value.present(&mut text));
                added.map_err(|problem| problem.at(&file.location(group, row)))
            })?;
        }
    }
    Ok(tally.names(missing_allowed))
}
