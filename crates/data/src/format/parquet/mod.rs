//! Parquet: columns of numbers and text, row groups cut into blocks.
//!
//! Files are read through the column API. A file may be damaged or malicious: a row count is only trusted
//! after the rows were read, and a decoder panic becomes an error with the file name.

mod column;
mod index;
mod size_checks;
mod thrift;

use super::{OpenedSource, RowSource};
use crate::block::{Block, BlockIndex};
use crate::offset_encoding::ColumnBuilder;
use crate::table::encoder::{ColumnEncoder, missing_allowed, push_target};
use crate::table::labels::LabelEncoding;
use crate::table::unseen::{UnseenCategory, UnseenCounts};
use crate::table::value_error::ValueError;
use column::CellValue;
pub(crate) use column::ParquetFile;
use std::path::PathBuf;
use std::sync::Arc;
use thalweg_core::schema::{Column, RowShape, Scaling, Schema, TargetScaling};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::{Error, Result};

struct ParquetSource {
    files: Vec<ParquetFile>,
    checksums: Vec<u32>,
    ranges: Vec<RowRange>,
    blocks: Arc<BlockIndex>,
    columns: Vec<InputColumn>,
    width: usize,
    label: Option<usize>,
    label_name: String,
    labels: LabelEncoding,
    unseen: UnseenCounts,
}

/// The rows of a block: a range within a row group.
#[derive(Clone, Debug)]
struct RowRange {
    file: usize,
    group: usize,
    first: usize,
    rows: usize,
}

/// An input column, and the position of its first number in a row.
struct InputColumn {
    leaf: usize,
    name: String,
    position: usize,
    kind: ColumnEncoder,
}

/// Indexes Parquet files; with `labelled` false, the label is ignored and may be absent.
pub(crate) fn open(
    paths: &[PathBuf],
    spec: &DataSpec,
    known: Option<&Schema>,
    labelled: bool,
) -> Result<OpenedSource> {
    let files = open_files(paths, spec)?;
    let checksums = files.iter().map(|file| file.checksum(spec)).collect::<Result<_>>()?;
    let roles = match known {
        None => index::choose(&files[0], spec)?,
        Some(schema) => index::ParquetRoles::from_schema(&files[0], schema, labelled)?,
    };
    let index = index::pass(&files, &roles, spec, known)?;
    let columns = match known.map(|schema| &schema.shape) {
        Some(RowShape::Table { columns }) => columns.clone(),
        _ => index.columns,
    };
    let label_name = roles.label.map(|label| files[0].names[label].clone()).unwrap_or_default();
    let schema = known.cloned().unwrap_or_else(|| Schema {
        shape: RowShape::Table { columns: columns.clone() },
        task: index.labels.task(),
        label: Some(label_name.clone()),
        classes: index.labels.names(),
        scaling: Scaling::default(),
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: files[0].names.clone(),
    });
    let missing_allowed = missing_allowed(&columns, spec, known);
    let source = ParquetSource {
        blocks: Arc::new(BlockIndex::from_sizes(index.ranges.iter().map(|range| range.rows as u64))),
        ranges: index.ranges,
        columns: input_columns(&columns, &roles.inputs, missing_allowed),
        width: schema.width(),
        label: roles.label,
        label_name,
        labels: index.labels,
        unseen: UnseenCounts::default(),
        files,
        checksums,
    };
    if known.is_none() && !source.ranges.is_empty() {
        // Reports errors in the first rows before workers start.
        source.decode(0)?;
    }
    Ok(OpenedSource { source: Arc::new(source), schema, validation: None })
}

/// Opens files, which must have the same columns.
pub(crate) fn open_files(paths: &[PathBuf], spec: &DataSpec) -> Result<Vec<ParquetFile>> {
    let files = paths.iter().map(|path| ParquetFile::open(path, spec)).collect::<Result<Vec<_>>>()?;
    same_columns(&files)?;
    Ok(files)
}

fn input_columns(columns: &[Column], leaves: &[usize], missing_allowed: bool) -> Vec<InputColumn> {
    let mut position = 0;
    let input = |(column, &leaf): (&Column, &usize)| {
        let kind = ColumnEncoder::new(&column.encoding, missing_allowed);
        let input = InputColumn { leaf, name: column.name.clone(), position, kind };
        position += column.encoding.width();
        input
    };
    columns.iter().zip(leaves).map(input).collect()
}

fn same_columns(files: &[ParquetFile]) -> Result<()> {
    let first = &files[0];
    for file in &files[1..] {
        if file.names.len() != first.names.len() {
            let (count, others) = (file.names.len(), first.names.len());
            return Err(Error::data(format!(
                "{} has {count} columns where {} has {others}",
                file.name, first.name
            ))
            .hint("all files of a source need the same columns in the same order"));
        }
        let differing = (0..first.names.len()).find(|&column| file.names[column] != first.names[column]);
        if let Some(column) = differing {
            let (own, other) = (&file.names[column], &first.names[column]);
            return Err(Error::data(format!(
                "column {column} is called `{own}` in {} but `{other}` in {}",
                file.name, first.name
            ))
            .hint("all files of a source need the same columns in the same order"));
        }
    }
    Ok(())
}

impl RowSource for ParquetSource {
    fn blocks(&self) -> &Arc<BlockIndex> {
        &self.blocks
    }

    fn row_bytes(&self) -> u64 {
        self.width as u64 * 4 + 8
    }

    fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    fn unseen_categories(&self) -> Vec<UnseenCategory> {
        self.unseen.list()
    }

    fn decode(&self, block: usize) -> Result<Arc<Block>> {
        let range = &self.ranges[block];
        let file = &self.files[range.file];
        let rows = range.first..range.first + range.rows;
        let location = |row: usize| file.location(range.group, range.first + row);
        let mut builder = ColumnBuilder::new(range.rows, self.width);
        let mut numbers = Vec::new();
        for input in &self.columns {
            numbers.clear();
            file.read(range.group, input.leaf, rows.clone(), |row, value| match &input.kind {
                ColumnEncoder::OneHot(categories) => {
                    let index = categories.index(&input.name, value.as_text(&mut Vec::new()), &self.unseen);
                    let index = index.map_err(|problem| problem.at(&location(row)))?;
                    builder.set(row, input.position + index, 1.0);
                    Ok(())
                }
                ColumnEncoder::Number { missing_allowed } => {
                    let number = input.number(value, *missing_allowed);
                    numbers.push(number.map_err(|problem| problem.at(&location(row)))?);
                    Ok(())
                }
            })?;
            if matches!(input.kind, ColumnEncoder::Number { .. }) {
                builder.column(input.position, &numbers);
            }
        }
        let mut targets = self.labels.targets(range.rows);
        if let Some(label) = self.label {
            let mut text = Vec::new();
            file.read(range.group, label, rows, |row, value| {
                push_target(&self.labels, &self.label_name, value.as_text(&mut text), &mut targets)
                    .map_err(|problem| problem.at(&location(row)))
            })?;
        }
        Ok(Arc::new(Block::from_encoded(builder.rows, targets)))
    }
}

impl InputColumn {
    /// NaN for a missing value.
    fn number(&self, value: CellValue<'_>, missing_allowed: bool) -> Result<f64, ValueError> {
        match value {
            CellValue::Missing if missing_allowed => Ok(f64::NAN),
            CellValue::Missing => Err(ValueError::missing(&self.name)),
            CellValue::Number(value) if (value as f32).is_finite() => Ok(value),
            CellValue::Number(value) => Err(ValueError::not_finite(&self.name, &value.to_string())),
            CellValue::Text(text) => {
                Err(ValueError::not_a_number(&self.name, &crate::table::value::printable(text)))
            }
        }
    }
}
