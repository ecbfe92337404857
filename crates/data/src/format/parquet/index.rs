//! The pass over labels and categories; columns of numbers are not touched.

use super::Part;
use super::column::{Kind, ParquetFile, damaged};
use crate::block::{BLOCK_BYTES, BLOCK_ROWS};
use crate::table::categories::CategoryTally;
use crate::table::columns::Columns;
use crate::table::labels::{LabelTally, Labels};
use crate::table::placement::{ModelColumns, Placement};
use crate::table::problem::Problem;
use thalweg_core::schema::{Column, Encoding, Schema};
use thalweg_core::spec::data::{DataSpec, Missing};
use thalweg_core::spec::setting::ColumnRef;
use thalweg_core::{Error, Result};

/// Rows of a block at most: opening a column costs more here than in a text, so blocks are larger.
const PART_ROWS: usize = 4 * BLOCK_ROWS as usize;

/// Which column is what.
pub(super) struct Roles {
    /// Nothing for rows to be predicted.
    pub(super) label: Option<usize>,
    pub(super) inputs: Vec<usize>,
    /// For each input, whether its categories are to be gathered.
    pub(super) categorical: Vec<bool>,
}

impl Roles {
    /// Those of a stored schema, which has the categories already; rows to be predicted need no label.
    pub(super) fn stored(file: &ParquetFile, schema: &Schema, labelled: bool) -> Result<Roles> {
        let model = ModelColumns::of_table(schema, &file.name)?;
        let placement = model.place_named(&file.names, &file.name)?;
        let label = if labelled { Some(placement.labelled(schema, &file.name)?) } else { None };
        let Placement { inputs, .. } = placement;
        Ok(Roles { label, categorical: vec![false; inputs.len()], inputs })
    }
}

/// What the pass found.
pub(super) struct Index {
    pub(super) parts: Vec<Part>,
    pub(super) labels: Labels,
    pub(super) columns: Vec<Column>,
}

/// What the job says about the columns, and for the rest their types.
pub(super) fn choose(file: &ParquetFile, spec: &DataSpec) -> Result<Roles> {
    let columns = Columns::choose(&file.names, &without_row_names(file, spec))?;
    let mut categorical = Vec::new();
    for &input in columns.inputs.iter().chain([&columns.label]) {
        if let Kind::Other(what) = file.kinds[input] {
            let name = &file.names[input];
            return Err(Error::data(format!(
                "{}, column `{name}` holds {what}, which cannot be read",
                file.name
            ))
            .hint(format!("leave it out with data.ignore = [\"{name}\"]")));
        }
        categorical.push(file.kinds[input] == Kind::Text || columns.categorical.contains(&input));
    }
    categorical.pop();
    Ok(Roles { label: Some(columns.label), inputs: columns.inputs, categorical })
}

/// Data frames store the names of rows as a last column: it is not data unless the job names it.
fn without_row_names(file: &ParquetFile, spec: &DataSpec) -> DataSpec {
    let mut spec = spec.clone();
    let named = |wanted| (0..file.names.len()).filter(move |&leaf| file.holds_row_names(leaf) == wanted);
    spec.ignore.extend(named(true).map(|leaf| file.names[leaf].clone()));
    if spec.label.is_none() {
        spec.label = named(false).next_back().map(|leaf| ColumnRef::Index(leaf as i64));
    }
    spec
}

/// Passes over the label and the categories of all files.
pub(super) fn pass(
    files: &[ParquetFile],
    roles: &Roles,
    spec: &DataSpec,
    known: Option<&Schema>,
) -> Result<Index> {
    let first = &files[0];
    let label_name = roles.label.map_or("", |label| &first.names[label]);
    // Without a label, any column tells how many rows there are.
    let counted = roles.label.unwrap_or(roles.inputs[0]);
    let mut labels = LabelTally::new();
    let mut parts = Vec::new();
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
                    return Err(Problem::missing_label(label_name, b"").at(&file.place(group, row)));
                };
                labels.add(label, (number, group, row));
                Ok(())
            })?;
            // The rows were counted: the claim holds, for this column at least.
            parts.extend(cut(number, group, rows, roles.inputs.len()));
        }
    }
    let labels = match known {
        Some(schema) if roles.label.is_none() => Labels::Unread(schema.task),
        Some(schema) => Labels::known(schema.task, &schema.classes),
        None => labels.finish(spec.task, label_name, |(file, group, row): (usize, usize, usize)| {
            Ok(files[file].place(group, row))
        })?,
    };
    let columns = match known {
        Some(_) => Vec::new(),
        None => gather(files, roles, spec)?,
    };
    Ok(Index { parts, labels, columns })
}

fn cut(file: usize, group: usize, rows: usize, columns: usize) -> impl Iterator<Item = Part> {
    let size = (BLOCK_BYTES as usize * 4 / (4 * columns.max(1))).clamp(1, PART_ROWS);
    (0..rows).step_by(size).map(move |first| Part { file, group, first, rows: size.min(rows - first) })
}

fn gather(files: &[ParquetFile], roles: &Roles, spec: &DataSpec) -> Result<Vec<Column>> {
    let imputed = (spec.missing == Missing::Zero).then_some(0.0);
    let mut columns = Vec::new();
    for (&input, &categorical) in roles.inputs.iter().zip(&roles.categorical) {
        let name = files[0].names[input].clone();
        let encoding = match categorical {
            false => Encoding::Number { imputed },
            true => {
                Encoding::OneHot { categories: categories(files, input, spec.missing != Missing::Error)? }
            }
        };
        columns.push(Column { name, encoding });
    }
    Ok(columns)
}

fn categories(files: &[ParquetFile], column: usize, missing_allowed: bool) -> Result<Vec<String>> {
    let mut tally = CategoryTally::default();
    let mut text = Vec::new();
    for file in files {
        if file.kinds[column] != files[0].kinds[column] {
            return Err(damaged(
                &file.name,
                &format!("column `{}` has another type than in {}", file.names[column], files[0].name),
            ));
        }
        for (group, &rows) in file.groups.iter().enumerate() {
            file.read(group, column, 0..rows, |row, value| {
                let added = tally.add(&file.names[column], value.present(&mut text));
                added.map_err(|problem| problem.at(&file.place(group, row)))
            })?;
        }
    }
    Ok(tally.names(missing_allowed))
}
