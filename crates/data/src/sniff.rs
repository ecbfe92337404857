//! A first look at a source, for a job that is yet to be written: columns, kinds, a likely label.

use crate::format::csv::sample::{Sample, holds_numbers};
use crate::format::{self, open_all, parquet};
use crate::locate::{FileKind, Located, locate};
use crate::raw::Raw;
use crate::table::categories::MOST_CATEGORIES;
use crate::table::labels::LabelTally;
use crate::table::value::{is_missing, shown};
use csv::ByteRecord;
use std::collections::HashSet;
use thalweg_core::schema::{Schema, Shape};
use thalweg_core::spec::data::{DataSpec, TaskChoice};
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Error, Result, Task};

/// Names under which the column to predict often goes.
const LABEL_NAMES: &[&str] = &["label", "target", "class", "y", "outcome", "output", "species", "category"];

/// Why a column of texts had better be left out.
const UNIQUE: &str = "different in almost every row";
const TOO_MANY: &str = "too many different values for categories";
const DATES: &str = "dates, each a category of its own";

/// Values shown of each column.
const EXAMPLES: usize = 3;

/// What was seen of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct Sniffed {
    /// What the source holds.
    pub form: Form,
    /// Rows, about if `rows_exact` is false.
    pub rows: u64,
    /// Whether the rows were counted or estimated from the size.
    pub rows_exact: bool,
    /// The task that suits the guessed label.
    pub task: Task,
}

/// What a source holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// Columns of a table.
    Table {
        /// All columns, the guessed label too.
        columns: Vec<SniffedColumn>,
        /// The guessed label, by place in `columns`.
        label: usize,
        /// What separates the columns (`,`, `tab`, `space`); nothing for Parquet.
        delimiter: Option<String>,
        /// Whether the first line names the columns.
        header: bool,
    },
    /// Images, sparse rows or a text, described by their schema.
    Other(Schema),
}

/// What was seen of a column in the first rows.
#[derive(Clone, Debug, PartialEq)]
pub struct SniffedColumn {
    /// Its name, or `c0`, `c1`, ...
    pub name: String,
    /// Whether its values are numbers; if not, categories.
    pub numeric: bool,
    /// Different values seen.
    pub distinct: usize,
    /// Missing values seen.
    pub missing: usize,
    /// Some values.
    pub examples: Vec<String>,
    /// Why it had better be left out, if it had.
    pub ignore: Option<&'static str>,
}

/// Takes a first look at a source.
pub fn sniff(source: &str) -> Result<Sniffed> {
    let spec = DataSpec { source: source.into(), ..Default::default() };
    match locate(source)? {
        Located::Files(FileKind::Table, paths) => sniff_table(&open_all(&paths, &spec)?),
        Located::Files(FileKind::Parquet, paths) => {
            let sample = parquet::sample(&paths, &spec)?;
            let (names, numeric, records) = (sample.names, sample.numeric, &sample.records);
            Table { names, numeric, records, delimiter: None, header: true }.summary(sample.rows, true)
        }
        _ => {
            let opened = format::open(&spec, None)?;
            let rows = opened.source.blocks().rows();
            Ok(Sniffed { task: opened.schema.task, form: Form::Other(opened.schema), rows, rows_exact: true })
        }
    }
}

fn sniff_table(files: &[Raw]) -> Result<Sniffed> {
    let first = &files[0];
    let sample = Sample::read(first, Auto::Auto)?;
    let header = sample.has_header(Auto::Auto, first)?;
    let names = sample.names(header);
    let records = sample.rows(header);
    let numeric = (0..names.len()).map(|column| holds_numbers(records, column)).collect();
    let table = Table { names, numeric, records, delimiter: Some(sample.delimiter.to_string()), header };
    let whole = sample.complete && files.len() == 1;
    let rows = match (whole, sample.offsets.last()) {
        (false, Some(&seen)) if seen > 0 => {
            let bytes: u64 = files.iter().map(Raw::len).sum();
            (bytes as f64 / seen as f64 * records.len() as f64) as u64
        }
        _ => records.len() as u64,
    };
    table.summary(rows, whole)
}

/// The first rows of a table.
struct Table<'a> {
    names: Vec<String>,
    numeric: Vec<bool>,
    records: &'a [ByteRecord],
    delimiter: Option<String>,
    header: bool,
}

impl Table<'_> {
    fn summary(self, rows: u64, rows_exact: bool) -> Result<Sniffed> {
        if self.records.is_empty() {
            return Err(Error::data("the source holds no rows").hint("check the file"));
        }
        let mut columns: Vec<SniffedColumn> =
            (0..self.names.len()).map(|column| self.column(column)).collect();
        let label = guess_label(&columns);
        columns[label].ignore = None;
        let task = self.task(label, self.records.len() as u64 == rows)?;
        let form = Form::Table { columns, label, delimiter: self.delimiter, header: self.header };
        Ok(Sniffed { form, rows, rows_exact, task })
    }

    fn column(&self, column: usize) -> SniffedColumn {
        let mut seen = HashSet::new();
        let mut examples = Vec::new();
        let mut missing = 0;
        for record in self.records {
            let value = record.get(column).unwrap_or_default();
            if is_missing(value) {
                missing += 1;
            } else if seen.insert(value) && examples.len() < EXAMPLES {
                examples.push(shown(value));
            }
        }
        let (distinct, count) = (seen.len(), self.records.len() - missing);
        let numeric = self.numeric[column];
        let ignore = match distinct {
            _ if numeric || distinct == 0 => None,
            _ if seen.iter().all(|value| is_date(value)) => Some(DATES),
            _ if count > 20 && distinct >= count - count / 10 => Some(UNIQUE),
            _ => (distinct > MOST_CATEGORIES).then_some(TOO_MANY),
        };
        SniffedColumn { name: self.names[column].clone(), numeric, distinct, missing, examples, ignore }
    }

    /// What training would take it for; a label it would refuse is refused here, if all rows were seen.
    fn task(&self, label: usize, all: bool) -> Result<Task> {
        let mut tally = LabelTally::new();
        let labels =
            self.records.iter().filter_map(|record| record.get(label)).filter(|value| !is_missing(value));
        labels.for_each(|value| tally.add(value, ()));
        let decided = tally.finish(TaskChoice::Auto, &self.names[label], |()| Ok("the data".into()));
        match decided {
            Ok(labels) => Ok(labels.task()),
            Err(error) if all => Err(error),
            Err(_) => Ok(Task::Classification),
        }
    }
}

/// The column to predict: one with a name that says so, or else the last one that is not free text.
fn guess_label(columns: &[SniffedColumn]) -> usize {
    let named =
        |column: &SniffedColumn| LABEL_NAMES.iter().any(|name| column.name.eq_ignore_ascii_case(name));
    let usable = |column: &SniffedColumn| column.ignore.is_none();
    columns
        .iter()
        .rposition(|column| named(column) && usable(column))
        .or_else(|| columns.iter().rposition(usable))
        .unwrap_or(columns.len() - 1)
}

/// `2011-01-31`, `31.1.2011`, `1/31/11`, each also with a time behind it.
fn is_date(value: &[u8]) -> bool {
    let day = value.split(|byte| matches!(byte, b' ' | b'T')).next().unwrap_or_default();
    [b'-', b'/', b'.'].iter().any(|separator| {
        let parts: Vec<&[u8]> = day.split(|byte| byte == separator).collect();
        let digits = parts.iter().all(|part| part.iter().all(u8::is_ascii_digit));
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        digits && matches!(lengths[..], [4, 1..=2, 1..=2] | [1..=2, 1..=2, 2 | 4])
    })
}

impl Sniffed {
    /// Numbers a row has, before categories are spelled out.
    pub fn width(&self) -> usize {
        match &self.form {
            Form::Table { columns, .. } => columns.len() - 1,
            Form::Other(schema) => match &schema.shape {
                Shape::Text { window, .. } => *window,
                _ => schema.width(),
            },
        }
    }
}
