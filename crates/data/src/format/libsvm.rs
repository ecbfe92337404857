//! Sparse rows: `label 3:1 11:0.5 # comment`, columns counted from 0 or 1, whichever the file does.
//!
//! A `qid:` field, which groups the rows of a ranking, is passed over. Rows stay sparse from file to model: scaling
//! multiplies and never shifts.

use super::csv::place;
use super::{Opened, Source, indexed, mismatch, shape_name};
use crate::block::{Block, BlockFeatures, Blocks};
use crate::extent::{Extent, Extents, blocks};
use crate::narrow::{self, Gaps};
use crate::raw::Raw;
use crate::table::encoder::push_target;
use crate::table::labels::{LabelTally, Labels};
use crate::table::problem::Problem;
use crate::table::value::{is_missing, number, shown};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use thalweg_core::schema::{Scaling, Schema, Shape, TargetScaling};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::{Error, Result, Task};

/// The largest number of a column. Every column is an input of the model, whose first layer holds a row of weights for
/// it: one stray number must not ask for more memory than any machine has.
const LARGEST_COLUMN: u64 = 1 << 24;

/// What the label is called in messages.
const LABEL: &str = "label";

struct Libsvm {
    files: Vec<Raw>,
    checksums: Vec<u32>,
    extents: Vec<Extent>,
    blocks: Arc<Blocks>,
    labels: Labels,
    columns: u64,
    first: u64,
    row_bytes: u64,
}

/// What the pass over all rows found.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    extents: Vec<Extent>,
    task: Task,
    classes: Vec<String>,
    smallest: u64,
    largest: u64,
    values: u64,
}

/// Indexes sparse files; with a stored schema, labels may be passed over or not be there.
pub(crate) fn open(
    files: Vec<Raw>,
    spec: &DataSpec,
    known: Option<&Schema>,
    labelled: bool,
) -> Result<Opened> {
    let kind = if labelled { "libsvm" } else { "libsvm without labels" };
    let (index, checksums) = indexed(kind, &files, spec, known, || pass(&files, spec, known, labelled))?;
    let (columns, first) = match known.map(|schema| &schema.shape) {
        Some(Shape::Sparse { columns, first }) => (*columns as u64, *first as u64),
        Some(other) => return Err(mismatch(files[0].name(), "sparse rows", shape_name(other))),
        None => {
            let first = index.smallest.min(1);
            ((index.largest + 1).saturating_sub(first).max(1), first)
        }
    };
    let schema = known.cloned().unwrap_or_else(|| Schema {
        shape: Shape::Sparse { columns: columns as usize, first: first as usize },
        task: index.task,
        label: None,
        classes: index.classes.clone(),
        scaling: Scaling::default(),
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: Vec::new(),
    });
    let blocks = blocks(&index.extents);
    let source = Libsvm {
        labels: match labelled {
            true => Labels::known(index.task, &index.classes),
            false => Labels::Unread(index.task),
        },
        columns,
        first,
        row_bytes: index.values * 8 / blocks.rows().max(1) + 16,
        blocks: Arc::new(blocks),
        extents: index.extents,
        files,
        checksums,
    };
    Ok(Opened { source: Arc::new(source), schema, held: None })
}

fn pass(files: &[Raw], spec: &DataSpec, known: Option<&Schema>, labelled: bool) -> Result<Index> {
    let mut labels = LabelTally::new();
    let mut extents = Extents::default();
    let (mut smallest, mut largest, mut values) = (u64::MAX, 0, 0);
    for (number, file) in files.iter().enumerate() {
        let mut lines = Lines::new(file.reader(0), labelled);
        extents.begin(number, 0);
        while let Some((offset, row)) = lines.next(file)? {
            labels.add(row.label, (number, offset));
            for pair in row.pairs() {
                let (column, _) = pair.or_else(|problem| Err(problem.at(&place(file, offset)?)))?;
                smallest = smallest.min(column);
                largest = largest.max(column);
                values += 1;
            }
            extents.row(lines.position);
        }
        extents.end(file.len());
    }
    let labels = match known {
        Some(schema) => Labels::known(schema.task, &schema.classes),
        None => {
            labels.finish(spec.task, LABEL, |(file, offset): (usize, u64)| place(&files[file], offset))?
        }
    };
    let (task, classes) = (labels.task(), labels.names());
    Ok(Index { extents: extents.finish(), task, classes, smallest, largest, values })
}

impl Source for Libsvm {
    fn blocks(&self) -> &Arc<Blocks> {
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
        let mut lines = Lines::new(&bytes[..], !matches!(self.labels, Labels::Unread(_)));
        let mut rows = SparseRows::default();
        let mut count = 0;
        let mut targets = self.labels.targets(extent.rows as usize);
        while let Some((offset, row)) = lines.next(file)? {
            rows.push(&row, self.first, self.columns)
                .and_then(|()| push_target(&self.labels, LABEL, row.label, &mut targets))
                .or_else(|problem| Err(problem.at(&place(file, extent.start + offset)?)))?;
            count += 1;
        }
        if count != extent.rows {
            return Err(file.changed());
        }
        let (gaps, (targets, target_offset)) = (rows.gaps(), targets.finish());
        let SparseRows { starts, columns, values, .. } = rows;
        let features = BlockFeatures::Sparse { starts, columns, values };
        Ok(Arc::new(Block { target_offset, gaps, ..Block::new(features, targets) }))
    }
}

/// Rows under construction.
struct SparseRows {
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f32>,
    unsorted: Vec<(u32, f32)>,
    /// Numbers that single precision does not hold.
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
    /// How far apart the numbers of a column lie that single precision does not hold.
    fn gaps(&mut self) -> Vec<(u32, Gaps)> {
        self.large.sort_unstable_by_key(|&(column, _)| column);
        let columns = self.large.chunk_by(|one, other| one.0 == other.0);
        columns.map(|column| (column[0].0, Gaps::of(column.iter().map(|&(_, value)| value), 0.0))).collect()
    }

    fn push(&mut self, row: &Row<'_>, first: u64, columns: u64) -> Result<(), Problem> {
        self.unsorted.clear();
        for pair in row.pairs() {
            let (column, text) = pair?;
            if column < first || column - first >= columns {
                return Err(unknown_column(column, first, columns));
            }
            let name = column.to_string();
            let value = match number(text) {
                Some(value) if (value as f32).is_finite() => value,
                Some(_) => return Err(Problem::not_finite(&name, &shown(text))),
                None => {
                    return Err(Problem {
                        hint: "fix it".into(),
                        ..Problem::not_a_number(&name, &shown(text))
                    });
                }
            };
            let column = (column - first) as u32;
            if narrow::is_large(value) {
                self.large.push((column, value));
            }
            self.unsorted.push((column, value as f32));
        }
        if !self.unsorted.is_sorted_by_key(|&(column, _)| column) {
            self.unsorted.sort_by_key(|&(column, _)| column);
        }
        if let Some(pair) = self.unsorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Problem {
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

fn unknown_column(column: u64, first: u64, columns: u64) -> Problem {
    Problem {
        column: column.to_string(),
        what: format!("the model was trained on columns {first} to {}", first + columns - 1),
        hint: "use rows with the columns of the training rows".into(),
        input_hint: None,
    }
}

/// One row as it is written.
struct Row<'a> {
    label: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Row<'a> {
    /// Column and value of each pair.
    fn pairs(&self) -> impl Iterator<Item = Result<(u64, &'a [u8]), Problem>> + use<'a> {
        let fields = self.rest.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        fields.filter(|field| !field.starts_with(b"qid:")).map(pair)
    }
}

fn pair(field: &[u8]) -> Result<(u64, &[u8]), Problem> {
    let split = memchr::memchr(b':', field).map(|colon| (&field[..colon], &field[colon + 1..]));
    let column = split.and_then(|(column, _)| std::str::from_utf8(column).ok()?.parse::<u64>().ok());
    match (column, split) {
        (Some(column), _) if column > LARGEST_COLUMN => Err(Problem {
            column: column.to_string(),
            what: format!("the largest number a column can have is {LARGEST_COLUMN}"),
            hint: "the model has an input for every column up to the largest number: fix a stray number, \
                   or number the columns anew, for instance by a hash into fewer"
                .into(),
            input_hint: None,
        }),
        (Some(column), Some((_, value))) => Ok((column, value)),
        _ => Err(Problem {
            column: shown(field),
            what: "expected a column's number, a colon and a value".into(),
            hint: "a row looks like `1 3:0.5 7:2`".into(),
            input_hint: None,
        }),
    }
}

/// Lines that hold rows: without comments and blanks.
struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    position: u64,
    /// Whether each row must begin with a label.
    labelled: bool,
}

impl<R: std::io::Read> Lines<R> {
    fn new(reader: R, labelled: bool) -> Lines<R> {
        Lines { reader: BufReader::with_capacity(1 << 17, reader), line: Vec::new(), position: 0, labelled }
    }

    /// The next row and where its line begins.
    fn next(&mut self, file: &Raw) -> Result<Option<(u64, Row<'_>)>> {
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
            return Ok(Some((offset, Row { label, rest: if label.contains(&b':') { text } else { rest } })));
        }
        if is_missing(label) || label.contains(&b':') {
            return Err(Problem::missing_label(LABEL, b"").at(&place(file, offset)?));
        }
        Ok(Some((offset, Row { label, rest })))
    }
}
