//! Parquet: columns of numbers and texts, row groups cut into blocks.
//!
//! Read through the column interface. A file may be damaged or hostile: sizes it claims are believed only after the
//! rows were counted, and whatever the decoder throws becomes an error with the file's name.

mod claims;
mod column;
mod index;
mod thrift;

use super::{Opened, Source};
use crate::block::{Block, Blocks};
use crate::narrow::Narrowing;
use crate::table::encoder::{SlotKind, missing_allowed, push_target};
use crate::table::labels::Labels;
use crate::table::problem::Problem;
use crate::table::unseen::{Unseen, UnseenCategory};
pub(crate) use column::ParquetFile;
use column::Value;
use std::path::PathBuf;
use std::sync::Arc;
use thalweg_core::schema::{Column, Scaling, Schema, Shape, TargetScaling};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::{Error, Result};

struct Parquet {
    files: Vec<ParquetFile>,
    checksums: Vec<u32>,
    parts: Vec<Part>,
    blocks: Arc<Blocks>,
    columns: Vec<Slot>,
    width: usize,
    label: Option<usize>,
    label_name: String,
    labels: Labels,
    unseen: Unseen,
}

/// The rows of a block: a stretch of a row group.
#[derive(Clone, Debug)]
struct Part {
    file: usize,
    group: usize,
    first: usize,
    rows: usize,
}

/// An input column and where its numbers stand in a row.
struct Slot {
    leaf: usize,
    name: String,
    place: usize,
    kind: SlotKind,
}

/// Indexes Parquet files; with a stored schema they may be read without their label.
pub(crate) fn open(
    paths: &[PathBuf],
    spec: &DataSpec,
    known: Option<&Schema>,
    labelled: bool,
) -> Result<Opened> {
    let files = open_files(paths, spec)?;
    let checksums = files.iter().map(|file| file.checksum(spec)).collect::<Result<_>>()?;
    let roles = match known {
        None => index::choose(&files[0], spec)?,
        Some(schema) => index::Roles::stored(&files[0], schema, labelled)?,
    };
    let index = index::pass(&files, &roles, spec, known)?;
    let columns = match known.map(|schema| &schema.shape) {
        Some(Shape::Table { columns }) => columns.clone(),
        _ => index.columns,
    };
    let label_name = roles.label.map(|label| files[0].names[label].clone()).unwrap_or_default();
    let schema = known.cloned().unwrap_or_else(|| Schema {
        shape: Shape::Table { columns: columns.clone() },
        task: index.labels.task(),
        label: Some(label_name.clone()),
        classes: index.labels.names(),
        scaling: Scaling::default(),
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: files[0].names.clone(),
    });
    let missing_allowed = missing_allowed(&columns, spec, known);
    let source = Parquet {
        blocks: Arc::new(Blocks::of_sizes(index.parts.iter().map(|part| part.rows as u64))),
        parts: index.parts,
        columns: slots(&columns, &roles.inputs, missing_allowed),
        width: schema.width(),
        label: roles.label,
        label_name,
        labels: index.labels,
        unseen: Unseen::default(),
        files,
        checksums,
    };
    if known.is_none() && !source.parts.is_empty() {
        // What is wrong with the first rows is told before workers start.
        source.decode(0)?;
    }
    Ok(Opened { source: Arc::new(source), schema, held: None })
}

/// Opens files that have the same columns.
pub(crate) fn open_files(paths: &[PathBuf], spec: &DataSpec) -> Result<Vec<ParquetFile>> {
    let files = paths.iter().map(|path| ParquetFile::open(path, spec)).collect::<Result<Vec<_>>>()?;
    same_columns(&files)?;
    Ok(files)
}

fn slots(columns: &[Column], leaves: &[usize], missing_allowed: bool) -> Vec<Slot> {
    let mut place = 0;
    let slot = |(column, &leaf): (&Column, &usize)| {
        let kind = SlotKind::new(&column.encoding, missing_allowed);
        let slot = Slot { leaf, name: column.name.clone(), place, kind };
        place += column.encoding.width();
        slot
    };
    columns.iter().zip(leaves).map(slot).collect()
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

impl Source for Parquet {
    fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    fn row_bytes(&self) -> u64 {
        self.width as u64 * 4 + 8
    }

    fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    fn unseen(&self) -> Vec<UnseenCategory> {
        self.unseen.list()
    }

    fn decode(&self, block: usize) -> Result<Arc<Block>> {
        let part = &self.parts[block];
        let file = &self.files[part.file];
        let rows = part.first..part.first + part.rows;
        let place = |row: usize| file.place(part.group, part.first + row);
        let mut narrowed = Narrowing::new(part.rows, self.width);
        let mut numbers = Vec::new();
        for slot in &self.columns {
            numbers.clear();
            file.read(part.group, slot.leaf, rows.clone(), |row, value| match &slot.kind {
                SlotKind::OneHot(categories) => {
                    let number = categories.number(&slot.name, value.spell(&mut Vec::new()), &self.unseen);
                    let number = number.map_err(|problem| problem.at(&place(row)))?;
                    narrowed.set(row, slot.place + number, 1.0);
                    Ok(())
                }
                SlotKind::Number { missing_allowed } => {
                    let number = slot.number(value, *missing_allowed);
                    numbers.push(number.map_err(|problem| problem.at(&place(row)))?);
                    Ok(())
                }
            })?;
            if matches!(slot.kind, SlotKind::Number { .. }) {
                narrowed.column(slot.place, &numbers);
            }
        }
        let mut targets = self.labels.targets(part.rows);
        if let Some(label) = self.label {
            let mut text = Vec::new();
            file.read(part.group, label, rows, |row, value| {
                push_target(&self.labels, &self.label_name, value.spell(&mut text), &mut targets)
                    .map_err(|problem| problem.at(&place(row)))
            })?;
        }
        Ok(Arc::new(Block::of_table(narrowed.rows, targets)))
    }
}

impl Slot {
    /// The number that a value is; NaN for a missing one.
    fn number(&self, value: Value<'_>, missing_allowed: bool) -> Result<f64, Problem> {
        match value {
            Value::Missing if missing_allowed => Ok(f64::NAN),
            Value::Missing => Err(Problem::missing(&self.name)),
            Value::Number(value) if (value as f32).is_finite() => Ok(value),
            Value::Number(value) => Err(Problem::not_finite(&self.name, &value.to_string())),
            Value::Text(text) => Err(Problem::not_a_number(&self.name, &crate::table::value::shown(text))),
        }
    }
}
