//! Sparse rows: `label 3:1 11:0.5 # comment`, columns counted from 0 or 1, detected per source.
//!
//! A `qid:` field, the query group of a ranking, is ignored. Rows stay sparse from file to model: scaling
//! multiplies and never shifts.

use super::csv::location;
use super::{OpenedSource, RowSource, index_files, mismatch, shape_name};
use crate::block::{Block, BlockFeatures, BlockIndex};
use crate::extent::{Extent, ExtentBuilder, block_index};
use crate::file_bytes::FileBytes;
use crate::offset_encoding::{self, GapHistogram};
use crate::table::encoder::push_target;
use crate::table::labels::{LabelEncoding, LabelTally};
use crate::table::value::{is_missing, parse_number, printable};
use crate::table::value_error::ValueError;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use thalweg_core::schema::{RowShape, Scaling, Schema, TargetScaling};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::{Error, Result, Task};

/// Maximum column number. Each column is a model input with weights in the first layer, so one stray number
/// could request more memory than any machine has.
const MAX_COLUMN: u64 = 1 << 24;

/// Name of the label in messages.
const LABEL: &str = "label";

struct LibsvmSource {
    files: Vec<FileBytes>,
    checksums: Vec<u32>,
    extents: Vec<Extent>,
    blocks: Arc<BlockIndex>,
    labels: LabelEncoding,
    columns: u64,
    first: u64,
    row_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct LibsvmIndex {
    extents: Vec<Extent>,
    task: Task,
    classes: Vec<String>,
    smallest: u64,
    largest: u64,
    values: u64,
}

/// Indexes sparse files; with `labelled` false, labels are ignored and may be absent.
pub(crate) fn open(
    files: Vec<FileBytes>,
    spec: &DataSpec,
    known: Option<&Schema>,
    labelled: bool,
) -> Result<OpenedSource> {
    let kind = if labelled { "libsvm" } else { "libsvm without labels" };
    let (index, checksums) = index_files(kind, &files, spec, known, || pass(&files, spec, known, labelled))?;
    let (columns, first) = match known.map(|schema| &schema.shape) {
        Some(RowShape::Sparse { columns, first }) => (*columns as u64, *first as u64),
        Some(other) => return Err(mismatch(files[0].name(), "sparse rows", shape_name(other))),
        None => {
            let first = index.smallest.min(1);
            ((index.largest + 1).saturating_sub(first).max(1), first)
        }
    };
    let schema = known.cloned().unwrap_or_else(|| Schema {
        shape: RowShape::Sparse { columns: columns as usize, first: first as usize },
        task: index.task,
        label: None,
        classes: index.classes.clone(),
        scaling: Scaling::default(),
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: Vec::new(),
    });
    let blocks = block_index(&index.extents);
    let source = LibsvmSource {
        labels: match labelled {
            true => LabelEncoding::new(index.task, &index.classes),
            false => LabelEncoding::Unread(index.task),
        },
        columns,
        first,
        row_bytes: index.values * 8 / blocks.rows().max(1) + 16,
        blocks: Arc::new(blocks),
        extents: index.extents,
        files,
        checksums,
    };
    Ok(OpenedSource { source: Arc::new(source), schema, validation: None })
}

fn pass(files: &[FileBytes], spec: &DataSpec, known: Option<&Schema>, labelled: bool) -> Result<LibsvmIndex> {
    let mut labels = LabelTally::new();
    let mut extents = ExtentBuilder::default();
    let (mut smallest, mut largest, mut values) = (u64::MAX, 0, 0);
    for (number, file) in files.iter().enumerate() {
        let mut lines = LineReader::new(file.reader(0), labelled);
        extents.begin_file(number, 0);
        while let Some((offset, row)) = lines.next(file)? {
            labels.add(row.label, (number, offset));
            for pair in row.pairs() {
                let (column, _) = pair.or_else(|problem| Err(problem.at(&location(file, offset)?)))?;
                smallest = smallest.min(column);
                largest = largest.max(column);
                values += 1;
            }
            extents.end_row(lines.position);
        }
        extents.end_file(file.len());
    }
    let labels = match known {
        Some(schema) => LabelEncoding::new(schema.task, &schema.classes),
        None => {
            labels.finish(spec.task, LABEL, |(file, offset): (usize, u64)| location(&files[file], offset))?
        }
    };
    let (task, classes) = (labels.task(), labels.names());
    Ok(LibsvmIndex { extents: extents.finish(), task, classes, smallest, largest, values })
}

impl RowSource for LibsvmSource {
    fn blocks(&self) -> &Arc<BlockIndex> {
        &self.blocks
    }

    fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    fn decode(&self, block: usize) -> Result<Arc<Block>> {
        let extent = &self.extents[block];
        let file = &self.files[extent.file];
        let bytes = file.slice(extent.start..extent.end)?;
        let mut lines = LineReader::new(&bytes[..], !matches!(self.labels, LabelEncoding::Unread(_)));
        let mut rows = SparseRows::default();
        let mut count = 0;
        let mut targets = self.labels.targets(extent.rows as usize);
        while let Some((offset, row)) = lines.next(file)? {
            rows.push(&row, self.first, self.columns)
                .and_then(|()| push_target(&self.labels, LABEL, row.label, &mut targets))
                .or_else(|problem| Err(problem.at(&location(file, extent.start + offset)?)))?;
            count += 1;
        }
        if count != extent.rows {
            return Err(file.changed_error());
        }
        let (gaps, (targets, target_offset)) = (rows.gaps(), targets.finish());
        let SparseRows { starts, columns, values, .. } = rows;
        let features = BlockFeatures::Sparse { starts, columns, values };
        Ok(Arc::new(Block { target_offset, gaps, ..Block::new(features, targets) }))
    }
}

struct SparseRows {
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f32>,
    unsorted: Vec<(u32, f32)>,
    /// Values that single precision does not represent exactly.
    large: Vec<(u32, f64)>,
}

impl Default for SparseRows {
    fn default() -> Self {
        SparseRows {
            starts: vec![0],
            columns: Vec::new(),
            values: Vec::new(),
            unsorted: Vec::new(),
            large: Vec::new(),
        }
    }
}

impl SparseRows {
    fn gaps(&mut self) -> Vec<(u32, GapHistogram)> {
        self.large.sort_unstable_by_key(|&(column, _)| column);
        let columns = self.large.chunk_by(|one, other| one.0 == other.0);
        columns
            .map(|column| (column[0].0, GapHistogram::of(column.iter().map(|&(_, value)| value), 0.0)))
            .collect()
    }

    fn push(&mut self, row: &RowText<'_>, first: u64, columns: u64) -> Result<(), ValueError> {
        self.unsorted.clear();
        for pair in row.pairs() {
            let (column, text) = pair?;
            if column < first || column - first >= columns {
                return Err(unknown_column(column, first, columns));
            }
            let name = column.to_string();
            let value = match parse_number(text) {
                Some(value) if (value as f32).is_finite() => value,
                Some(_) => return Err(ValueError::not_finite(&name, &printable(text))),
                None => {
                    return Err(ValueError {
                        hint: "fix it".into(),
                        ..ValueError::not_a_number(&name, &printable(text))
                    });
                }
            };
            let column = (column - first) as u32;
            if offset_encoding::exceeds_f32(value) {
                self.large.push((column, value));
            }
            self.unsorted.push((column, value as f32));
        }
        if !self.unsorted.is_sorted_by_key(|&(column, _)| column) {
            self.unsorted.sort_by_key(|&(column, _)| column);
        }
        if let Some(pair) = self.unsorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(ValueError {
                column: (u64::from(pair[0].0) + first).to_string(),
                what: "the column occurs twice in the row".into(),
                hint: "keep one of the two values".into(),
                input_hint: None,
            });
        }
        self.columns.extend(self.unsorted.iter().map(|&(column, _)| column));
        self.values.extend(self.unsorted.iter().map(|&(_, value)| value));
        self.starts.push(self.values.len());
        Ok(())
    }
}

fn unknown_column(column: u64, first: u64, columns: u64) -> ValueError {
    ValueError {
        column: column.to_string(),
        what: format!("the model was trained on columns {first} to {}", first + columns - 1),
        hint: "use rows with the columns of the training rows".into(),
        input_hint: None,
    }
}

/// One line, split into label and pairs.
struct RowText<'a> {
    label: &'a [u8],
    rest: &'a [u8],
}

impl<'a> RowText<'a> {
    /// Column and value of each pair.
    fn pairs(&self) -> impl Iterator<Item = Result<(u64, &'a [u8]), ValueError>> + use<'a> {
        let fields = self.rest.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        fields.filter(|field| !field.starts_with(b"qid:")).map(pair)
    }
}

fn pair(field: &[u8]) -> Result<(u64, &[u8]), ValueError> {
    let split = memchr::memchr(b':', field).map(|colon| (&field[..colon], &field[colon + 1..]));
    let column = split.and_then(|(column, _)| std::str::from_utf8(column).ok()?.parse::<u64>().ok());
    match (column, split) {
        (Some(column), _) if column > MAX_COLUMN => Err(ValueError {
            column: column.to_string(),
            what: format!("the largest number a column can have is {MAX_COLUMN}"),
            hint: "the model has an input for every column up to the largest number: fix a stray number, \
                   or number the columns anew, for instance by a hash into fewer"
                .into(),
            input_hint: None,
        }),
        (Some(column), Some((_, value))) => Ok((column, value)),
        _ => Err(ValueError {
            column: printable(field),
            what: "expected a column's number, a colon and a value".into(),
            hint: "a row looks like `1 3:0.5 7:2`".into(),
            input_hint: None,
        }),
    }
}

/// Reads the lines that hold rows; comments and blank lines are skipped.
struct LineReader<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    position: u64,
    /// Whether each row must start with a label.
    labelled: bool,
}

impl<R: std::io::Read> LineReader<R> {
    fn new(reader: R, labelled: bool) -> LineReader<R> {
        LineReader {
            reader: BufReader::with_capacity(1 << 17, reader),
            line: Vec::new(),
            position: 0,
            labelled,
        }
    }

    /// The next row and the byte offset of its line.
    fn next(&mut self, file: &FileBytes) -> Result<Option<(u64, RowText<'_>)>> {
        let offset = loop {
            self.line.clear();
            let offset = self.position;
            let read = self.reader.read_until(b'\n', &mut self.line);
            let count = read.map_err(|error| Error::io(format!("cannot read {}", file.name()), &error))?;
            if count == 0 {
                return Ok(None);
            }
            self.position += count as u64;
            if let Some(comment) = memchr::memchr(b'#', &self.line) {
                self.line.truncate(comment);
            }
            if !self.line.trim_ascii().is_empty() {
                break offset;
            }
        };
        let text = self.line.trim_ascii();
        let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
        let (label, rest) = text.split_at(end);
        if !self.labelled {
            return Ok(Some((
                offset,
                RowText { label, rest: if label.contains(&b':') { text } else { rest } },
            )));
        }
        if is_missing(label) || label.contains(&b':') {
            return Err(ValueError::missing_label(LABEL, b"").at(&location(file, offset)?));
        }
        Ok(Some((offset, RowText { label, rest })))
    }
}
