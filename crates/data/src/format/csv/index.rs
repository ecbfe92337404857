//! The index pass over all rows: blocks, labels and categories. Numbers are not parsed here.

use super::fields::FieldReader;
use super::layout::TableLayout;
use super::location;
use crate::extent::{Extent, ExtentBuilder};
use crate::file_bytes::FileBytes;
use crate::table::categories::CategoryCollector;
use crate::table::labels::{LabelEncoding, LabelTally};
use crate::table::value::{is_missing, present};
use crate::table::value_error::ValueError;
use serde::{Deserialize, Serialize};
use thalweg_core::schema::{Column, Encoding, Schema};
use thalweg_core::spec::data::{DataSpec, Missing};
use thalweg_core::{Error, Result, Task};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CsvIndex {
    pub(crate) extents: Vec<Extent>,
    pub(crate) task: Task,
    pub(crate) classes: Vec<String>,
    /// Categories of each input; `None` for numbers.
    categories: Vec<Option<Vec<String>>>,
    /// Messages for the user.
    pub(crate) notices: Vec<String>,
}

impl CsvIndex {
    /// The input columns, with the categories found.
    pub(crate) fn columns(&self, layout: &TableLayout, missing: Missing) -> Vec<Column> {
        let imputed = (missing == Missing::Zero).then_some(0.0);
        let encoding = |categories: &Option<Vec<String>>| match categories {
            None => Encoding::Number { imputed },
            Some(categories) => Encoding::OneHot { categories: categories.clone() },
        };
        let named = layout.inputs.iter().zip(&self.categories);
        named
            .map(|(&field, found)| Column { name: layout.names[field].clone(), encoding: encoding(found) })
            .collect()
    }
}

/// A word for a missing value that may also be meant as a category.
const NONE: &[u8] = b"None";

/// File number and byte offset.
type RecordPosition = (usize, u64);

/// Passes over all files. With a stored schema, its classes and categories are used and none are collected.
pub(crate) fn pass(
    files: &[FileBytes],
    layout: &TableLayout,
    spec: &DataSpec,
    known: Option<&Schema>,
) -> Result<CsvIndex> {
    let tally = |&categorical: &bool| (categorical && known.is_none()).then(CategoryCollector::default);
    let mut pass = IndexPass {
        layout,
        labels: LabelTally::new(),
        categories: layout.categorical.iter().map(tally).collect(),
        none_words: vec![0; layout.inputs.len()],
        extents: ExtentBuilder::default(),
    };
    for (number, file) in files.iter().enumerate() {
        pass.file(number, file)?;
    }
    let describe = |(file, offset): RecordPosition| location(&files[file], offset);
    let labels = match known {
        Some(schema) => LabelEncoding::new(schema.task, &schema.classes),
        None => pass.labels.finish(spec.task, &layout.names[layout.label], describe)?,
    };
    let missing_allowed = spec.missing != Missing::Error;
    let names = |tally: &Option<CategoryCollector>| tally.as_ref().map(|tally| tally.names(missing_allowed));
    let categories = pass.categories.iter().map(names).collect();
    let notices =
        pass.none_words.iter().zip(&layout.inputs).filter(|(count, _)| missing_allowed && **count > 0);
    let notices = notices.map(|(count, &field)| none_notice(&layout.names[field], *count)).collect();
    let (task, classes) = (labels.task(), labels.names());
    Ok(CsvIndex { extents: pass.extents.finish(), task, classes, categories, notices })
}

struct IndexPass<'a> {
    layout: &'a TableLayout,
    labels: LabelTally<RecordPosition>,
    categories: Vec<Option<CategoryCollector>>,
    /// Rows with the category `None`, per input.
    none_words: Vec<u64>,
    extents: ExtentBuilder,
}

impl IndexPass<'_> {
    fn file(&mut self, number: usize, file: &FileBytes) -> Result<()> {
        let layout = self.layout;
        let begin = layout.starts[number];
        let mut reader = FieldReader::new(file.reader(begin), layout.delimiter);
        self.extents.begin_file(number, begin);
        while let Some(record) = reader.next(file.name())? {
            let offset = begin + record.offset();
            if record.len() != layout.names.len() {
                return Err(ragged(&location(file, offset)?, layout.names.len(), record.len()));
            }
            for (input, &field) in layout.inputs.iter().enumerate() {
                let Some(tally) = &mut self.categories[input] else { continue };
                let value = record.field(field);
                self.none_words[input] += u64::from(value == NONE);
                tally
                    .add(&layout.names[field], present(value))
                    .or_else(|problem| Err(at_location(problem, file, offset)?))?;
            }
            let label = record.field(layout.label);
            if is_missing(label) {
                let problem = ValueError::missing_label(&layout.names[layout.label], label);
                return Err(problem.at(&location(file, offset)?));
            }
            self.labels.add(label, (number, offset));
            self.extents.end_row(begin + reader.position());
        }
        self.extents.end_file(file.len());
        Ok(())
    }
}

fn none_notice(column: &str, count: u64) -> String {
    format!(
        "column `{column}`: `None` counts as a missing value ({count} rows), as in pandas; \
         spell it in another way if it is a category"
    )
}

fn at_location(problem: ValueError, file: &FileBytes, offset: u64) -> Result<Error> {
    Ok(problem.at(&location(file, offset)?))
}

pub(crate) fn ragged(location: &str, expected: usize, got: usize) -> Error {
    Error::data(format!("{location} has {got} fields where the others have {expected}"))
        .hint("check the line for a missing or surplus separator or an open quote; data.delimiter sets the separator")
}
