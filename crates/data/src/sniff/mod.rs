//! Summarises a source for `init`: columns, kinds, a likely label. All rows are read once, so that a sorted
//! file shows all its classes; memory is bounded.

mod frame_index;
mod propose;
mod table_scan;
mod tally;

pub(crate) use frame_index::frame_index;

use crate::format::{self, open_text_files};
use crate::locate::{FileKind, SourceLocation, locate};
use crate::table::column_kind::ColumnKind;
use crate::table::column_roles::ColumnRoles;
use crate::table::labels::LabelTally;
use crate::table::value::printable;
use table_scan::TableScan;
use tally::ColumnTally;
use thalweg_core::schema::Schema;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::{Error, Result, Task};

/// Summary of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct Sniffed {
    /// Columns or schema.
    pub form: Form,
    /// Number of rows.
    pub rows: u64,
    /// The task that fits the label.
    pub task: Task,
}

/// A table, or rows described by a schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// A table.
    Table(TableForm),
    /// Images, sparse rows or text, described by their schema.
    Other(Schema),
}

/// Summary of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableForm {
    /// All columns, including the label.
    pub columns: Vec<SniffedColumn>,
    /// Index of the label in `columns`.
    pub label: usize,
    /// Why this column was chosen as the label.
    pub why: String,
    /// The delimiter (`,`, `tab`, `space`); `None` for Parquet.
    pub delimiter: Option<String>,
    /// Whether the first line is a header.
    pub header: bool,
}

/// Summary of a column.
#[derive(Clone, Debug, PartialEq)]
pub struct SniffedColumn {
    /// Its name, or `c0`, `c1`, ...
    pub name: String,
    /// Whether it holds numbers; otherwise categories.
    pub numeric: bool,
    /// Distinct values counted, up to a limit.
    pub distinct: usize,
    /// Whether there are more distinct values than were counted.
    pub more: bool,
    /// Missing values.
    pub missing: u64,
    /// Some of the words that represent missing values.
    pub missing_words: Vec<String>,
    /// Some values.
    pub examples: Vec<String>,
    /// Why the column should be left out, if it should.
    pub ignore: Option<String>,
    /// What to check about the column, if it is kept.
    pub doubt: Option<String>,
    /// Whether the job must list it as categorical, because the first rows look like numbers.
    pub declare: bool,
}

impl TableScan {
    /// Why a numeric column should be left out: some values are text, so training would refuse it or read it
    /// as categories. Unsupported number formats are a separate error.
    fn texts_among_numbers(&self, index: usize) -> Option<String> {
        let tally = &self.tallies[index];
        if self.typed || tally.kind() != ColumnKind::Numbers {
            return None;
        }
        let text = printable(tally.text()?);
        Some(match tally.counts.values - tally.counts.numbers {
            1 => format!("`{text}` is not a number; the others are"),
            texts => format!("numbers and texts: `{text}` is not a number, nor are {} more", texts - 1),
        })
    }

    /// Summary of a column from counts over all rows.
    fn column(&self, index: usize, spec: &DataSpec) -> SniffedColumn {
        let (name, tally) = (&self.names[index], &self.tallies[index]);
        let (distinct, more) = tally.distinct();
        let requested = spec.categorical.contains(name);
        let numbers =
            if self.typed { self.number_like[index] } else { tally.kind() != ColumnKind::Categories };
        SniffedColumn {
            name: name.clone(),
            numeric: numbers && !requested,
            distinct,
            more,
            missing: tally.missing,
            missing_words: tally.missing_words.iter().cloned().collect(),
            examples: tally.examples.clone(),
            ignore: None,
            doubt: None,
            declare: requested || self.number_like[index] && !numbers,
        }
    }
}

/// Summarises a source as a job with this section would read it. `progress` receives the bytes done and the
/// total.
pub fn sniff(spec: &DataSpec, progress: &mut dyn FnMut(u64, u64)) -> Result<Sniffed> {
    sniff_source(spec, progress).map_err(|error| format::with_source_name(error, &spec.source))
}

fn sniff_source(spec: &DataSpec, progress: &mut dyn FnMut(u64, u64)) -> Result<Sniffed> {
    match locate(&spec.source)? {
        SourceLocation::Files(FileKind::Table, paths) => {
            let files = open_text_files(&paths, spec)?;
            let scan = TableScan::of_csv(&files, spec, progress)?;
            let table = summary(&scan, spec)?;
            scan.check_numbers(&files[0], &table, spec)?;
            Ok(table)
        }
        SourceLocation::Files(FileKind::Parquet, paths) => {
            summary(&TableScan::of_parquet(&paths, spec, progress)?, spec)
        }
        _ => {
            let opened = format::open(spec, None)?;
            let rows = opened.source.blocks().rows();
            Ok(Sniffed { task: opened.schema.task, form: Form::Other(opened.schema), rows })
        }
    }
}

/// Chooses the label and the columns to leave out.
fn summary(scan: &TableScan, spec: &DataSpec) -> Result<Sniffed> {
    let TableScan { names, tallies, .. } = scan;
    let named = scan.header;
    let mut columns: Vec<SniffedColumn> = (0..names.len()).map(|index| scan.column(index, spec)).collect();
    for (index, column) in columns.iter_mut().enumerate() {
        column.ignore = match spec.ignore.contains(&column.name) {
            true => Some("as asked for".into()),
            false => propose::reason_to_ignore(column, named, index, &tallies[index])
                .map(String::from)
                .or_else(|| scan.texts_among_numbers(index).filter(|_| column.numeric)),
        };
        column.doubt = propose::doubt(column, &tallies[index]).map(String::from);
    }
    let (label, why) = match &spec.label {
        None => propose::label(&columns, tallies),
        Some(_) => (ColumnRoles::choose(names, spec)?.label, "as asked for".into()),
    };
    for leak in propose::leaks(tallies, label) {
        columns[leak]
            .ignore
            .get_or_insert_with(|| format!("gives `{}` away: each determines the other", names[label]));
    }
    let target = &mut columns[label];
    (target.ignore, target.declare) = (None, false);
    target.doubt = (target.missing > 0)
        .then(|| format!("{} rows have no label: fill it in or remove them", target.missing));
    let task = task(&tallies[label], &names[label], spec)?;
    let delimiter = scan.delimiter.clone();
    let form = Form::Table(TableForm { columns, label, why, delimiter, header: scan.header });
    Ok(Sniffed { form, rows: scan.rows, task })
}

/// The task that training would choose; a label that training would refuse is refused here.
fn task(label: &ColumnTally, name: &str, spec: &DataSpec) -> Result<Task> {
    let counts = label.counts;
    if counts.values == 0 {
        return Err(Error::data(format!("the label column `{name}` holds no value"))
            .hint("choose another column with --label"));
    }
    let tally = LabelTally::of_counts(label.values(), label.distinct().1, (), counts.values, counts.numbers);
    tally.finish(spec.task, name, |()| Ok(spec.source.clone())).map(|labels| labels.task())
}
