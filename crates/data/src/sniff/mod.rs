//! A look at a source, for a job that is yet to be written: columns, kinds, a likely label. All rows are passed over
//! once, so that a sorted file shows all its classes; what is kept of them is bounded.

mod frame_index;
mod propose;
mod survey;
mod tally;

pub(crate) use frame_index::frame_index;

use crate::format::{self, open_all};
use crate::locate::{FileKind, Located, locate};
use crate::table::columns::Columns;
use crate::table::kind::Kind;
use crate::table::labels::LabelTally;
use crate::table::value::shown;
use survey::Survey;
use tally::ColumnTally;
use thalweg_core::schema::Schema;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::{Error, Result, Task};

/// What was seen of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct Sniffed {
    /// What the source holds.
    pub form: Form,
    /// Rows.
    pub rows: u64,
    /// The task that suits the label.
    pub task: Task,
}

/// What a source holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// Columns of a table.
    Table(TableForm),
    /// Images, sparse rows or a text, described by their schema.
    Other(Schema),
}

/// The columns of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableForm {
    /// All columns, the label too.
    pub columns: Vec<SniffedColumn>,
    /// The label, by place in `columns`.
    pub label: usize,
    /// Why it was taken for the label.
    pub why: String,
    /// What separates the columns (`,`, `tab`, `space`); nothing for Parquet.
    pub delimiter: Option<String>,
    /// Whether the first line names the columns.
    pub header: bool,
}

/// What was seen of a column.
#[derive(Clone, Debug, PartialEq)]
pub struct SniffedColumn {
    /// Its name, or `c0`, `c1`, ...
    pub name: String,
    /// Whether its values are numbers; if not, categories.
    pub numeric: bool,
    /// Different values, as far as they were counted.
    pub distinct: usize,
    /// Whether there are more different values than were counted.
    pub more: bool,
    /// Missing values.
    pub missing: u64,
    /// Words that stood for missing values, some.
    pub missing_words: Vec<String>,
    /// Some values.
    pub examples: Vec<String>,
    /// Why it had better be left out, if it had.
    pub ignore: Option<String>,
    /// What is worth a second look, if it is kept.
    pub doubt: Option<String>,
    /// Whether the job has to call it categorical: the first rows alone look like numbers.
    pub declare: bool,
}

impl Survey {
    /// Why a column of numbers had better be left out: training refuses it, or takes it for categories, where some of its
    /// values are texts. Columns in a spelling that is not read are refused as a whole.
    fn texts_among_numbers(&self, place: usize) -> Option<String> {
        let tally = &self.tallies[place];
        if self.typed || tally.kind() != Kind::Numbers {
            return None;
        }
        let text = shown(tally.text()?);
        Some(match tally.counts.values - tally.counts.numbers {
            1 => format!("`{text}` is not a number; the others are"),
            texts => format!("numbers and texts: `{text}` is not a number, nor are {} more", texts - 1),
        })
    }

    /// What is in a column, from counts over all rows.
    fn column(&self, place: usize, spec: &DataSpec) -> SniffedColumn {
        let (name, tally) = (&self.names[place], &self.tallies[place]);
        let (distinct, more) = tally.distinct();
        let asked = spec.categorical.contains(name);
        let numbers = if self.typed { self.number_like[place] } else { tally.kind() != Kind::Categories };
        SniffedColumn {
            name: name.clone(),
            numeric: numbers && !asked,
            distinct,
            more,
            missing: tally.missing,
            missing_words: tally.missing_words.iter().cloned().collect(),
            examples: tally.examples.clone(),
            ignore: None,
            doubt: None,
            declare: asked || self.number_like[place] && !numbers,
        }
    }
}

/// Looks at a source as a job with this section would read it. `progress` hears how many bytes are done, of how many.
pub fn sniff(spec: &DataSpec, progress: &mut dyn FnMut(u64, u64)) -> Result<Sniffed> {
    look(spec, progress).map_err(|error| format::naming(error, &spec.source))
}

fn look(spec: &DataSpec, progress: &mut dyn FnMut(u64, u64)) -> Result<Sniffed> {
    match locate(&spec.source)? {
        Located::Files(FileKind::Table, paths) => {
            let files = open_all(&paths, spec)?;
            let survey = Survey::of_csv(&files, spec, progress)?;
            let table = summary(&survey, spec)?;
            survey.check_numbers(&files[0], &table, spec)?;
            Ok(table)
        }
        Located::Files(FileKind::Parquet, paths) => {
            summary(&Survey::of_parquet(&paths, spec, progress)?, spec)
        }
        _ => {
            let opened = format::open(spec, None)?;
            let rows = opened.source.blocks().rows();
            Ok(Sniffed { task: opened.schema.task, form: Form::Other(opened.schema), rows })
        }
    }
}

/// The columns of a table, the label and what is to be left out.
fn summary(survey: &Survey, spec: &DataSpec) -> Result<Sniffed> {
    let Survey { names, tallies, .. } = survey;
    let named = survey.header;
    let mut columns: Vec<SniffedColumn> = (0..names.len()).map(|place| survey.column(place, spec)).collect();
    for (place, column) in columns.iter_mut().enumerate() {
        column.ignore = match spec.ignore.contains(&column.name) {
            true => Some("as asked for".into()),
            false => propose::reason_to_ignore(column, named, place, &tallies[place])
                .map(String::from)
                .or_else(|| survey.texts_among_numbers(place).filter(|_| column.numeric)),
        };
        column.doubt = propose::doubt(column, &tallies[place]).map(String::from);
    }
    let (label, why) = match &spec.label {
        None => propose::label(&columns, tallies),
        Some(_) => (Columns::choose(names, spec)?.label, "as asked for".into()),
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
    let delimiter = survey.delimiter.clone();
    let form = Form::Table(TableForm { columns, label, why, delimiter, header: survey.header });
    Ok(Sniffed { form, rows: survey.rows, task })
}

/// What training would take the label for; one that it would refuse is refused here.
fn task(label: &ColumnTally, name: &str, spec: &DataSpec) -> Result<Task> {
    let counts = label.counts;
    if counts.values == 0 {
        return Err(Error::data(format!("the label column `{name}` holds no value"))
            .hint("choose another column with --label"));
    }
    let tally = LabelTally::of_counts(label.values(), label.distinct().1, (), counts.values, counts.numbers);
    tally.finish(spec.task, name, |()| Ok(spec.source.clone())).map(|labels| labels.task())
}
