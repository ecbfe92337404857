//! The pass over all rows: blocks, labels and categories. Numbers are not looked at here.

use super::fields::FieldReader;
use super::header::Plan;
use super::place;
use crate::extent::{Extent, Extents};
use crate::raw::Raw;
use crate::table::categories::CategoryTally;
use crate::table::labels::{LabelTally, Labels};
use crate::table::problem::Problem;
use crate::table::value::{is_missing, present};
use serde::{Deserialize, Serialize};
use thalweg_core::schema::{Column, Encoding, Schema};
use thalweg_core::spec::data::{DataSpec, Missing};
use thalweg_core::{Error, Result, Task};

/// What the pass found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) extents: Vec<Extent>,
    pub(crate) task: Task,
    pub(crate) classes: Vec<String>,
    /// For each input, its categories; none for numbers.
    categories: Vec<Option<Vec<String>>>,
    /// What the user had better know.
    pub(crate) notices: Vec<String>,
}

impl Index {
    /// The input columns, with the categories found.
    pub(crate) fn columns(&self, plan: &Plan, missing: Missing) -> Vec<Column> {
        let imputed = (missing == Missing::Zero).then_some(0.0);
        let encoding = |categories: &Option<Vec<String>>| match categories {
            None => Encoding::Number { imputed },
            Some(categories) => Encoding::OneHot { categories: categories.clone() },
        };
        let named = plan.inputs.iter().zip(&self.categories);
        named
            .map(|(&field, found)| Column { name: plan.names[field].clone(), encoding: encoding(found) })
            .collect()
    }
}

/// A word for a missing value that may as well be a category.
const NONE: &[u8] = b"None";

/// A place in the files: file and offset.
type Place = (usize, u64);

/// Passes over all files. With a stored schema its classes and categories hold and nothing is gathered.
pub(crate) fn pass(files: &[Raw], plan: &Plan, spec: &DataSpec, known: Option<&Schema>) -> Result<Index> {
    let tally = |&categorical: &bool| (categorical && known.is_none()).then(CategoryTally::default);
    let mut pass = Pass {
        plan,
        labels: LabelTally::new(),
        categories: plan.categorical.iter().map(tally).collect(),
        none_words: vec![0; plan.inputs.len()],
        extents: Extents::default(),
    };
    for (number, file) in files.iter().enumerate() {
        pass.file(number, file)?;
    }
    let describe = |(file, offset): Place| place(&files[file], offset);
    let labels = match known {
        Some(schema) => Labels::known(schema.task, &schema.classes),
        None => pass.labels.finish(spec.task, &plan.names[plan.label], describe)?,
    };
    let missing_allowed = spec.missing != Missing::Error;
    let names = |tally: &Option<CategoryTally>| tally.as_ref().map(|tally| tally.names(missing_allowed));
    let categories = pass.categories.iter().map(names).collect();
    let notices =
        pass.none_words.iter().zip(&plan.inputs).filter(|(count, _)| missing_allowed && **count > 0);
    let notices = notices.map(|(count, &field)| none_notice(&plan.names[field], *count)).collect();
    let (task, classes) = (labels.task(), labels.names());
    Ok(Index { extents: pass.extents.finish(), task, classes, categories, notices })
}

struct Pass<'a> {
    plan: &'a Plan,
    labels: LabelTally<Place>,
    categories: Vec<Option<CategoryTally>>,
    /// For each input, how often a category was spelled `None`.
    none_words: Vec<u64>,
    extents: Extents,
}

impl Pass<'_> {
    fn file(&mut self, number: usize, file: &Raw) -> Result<()> {
        let plan = self.plan;
        let begin = plan.starts[number];
        let mut reader = FieldReader::new(file.reader(begin), plan.delimiter);
        self.extents.begin(number, begin);
        while let Some(record) = reader.next(file.name())? {
            let offset = begin + record.offset();
            if record.len() != plan.names.len() {
                return Err(ragged(&place(file, offset)?, plan.names.len(), record.len()));
            }
            for (input, &field) in plan.inputs.iter().enumerate() {
                let Some(tally) = &mut self.categories[input] else { continue };
                let value = record.field(field);
                self.none_words[input] += u64::from(value == NONE);
                tally
                    .add(&plan.names[field], present(value))
                    .or_else(|problem| Err(located(problem, file, offset)?))?;
            }
            let label = record.field(plan.label);
            if is_missing(label) {
                let problem = Problem::missing_label(&plan.names[plan.label], label);
                return Err(problem.at(&place(file, offset)?));
            }
            self.labels.add(label, (number, offset));
            self.extents.row(begin + reader.position());
        }
        self.extents.end(file.len());
        Ok(())
    }
}

fn none_notice(column: &str, count: u64) -> String {
    format!(
        "column `{column}`: `None` counts as a missing value ({count} rows), as in pandas; \
         spell it in another way if it is a category"
    )
}

fn located(problem: Problem, file: &Raw, offset: u64) -> Result<Error> {
    Ok(problem.at(&place(file, offset)?))
}

pub(crate) fn ragged(place: &str, expected: usize, got: usize) -> Error {
    Error::data(format!("{place} has {got} fields where the others have {expected}"))
        .hint("check the line for a missing or surplus separator or an open quote; data.delimiter says what separates")
}
