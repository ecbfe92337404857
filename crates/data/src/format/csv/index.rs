//! The pass over all rows: blocks, labels and categories. Numbers are not looked at here.

use super::fields::FieldReader;
use super::header::Plan;
use super::place;
use crate::block::{BLOCK_BYTES, BLOCK_ROWS};
use crate::raw::Raw;
use crate::table::categories::CategoryTally;
use crate::table::labels::{LabelTally, Labels};
use crate::table::problem::Problem;
use crate::table::value::is_missing;
use thalweg_core::schema::{Column, Encoding, Schema};
use thalweg_core::spec::data::{DataSpec, Missing};
use thalweg_core::{Error, Result};

/// Where a block stands.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) file: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) rows: u64,
}

/// What the pass found.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) extents: Vec<Extent>,
    pub(crate) labels: Labels,
    categories: Vec<Option<CategoryTally>>,
}

impl Index {
    /// The input columns, with the categories found.
    pub(crate) fn columns(&self, plan: &Plan, spec: &DataSpec) -> Vec<Column> {
        let imputed = (spec.missing == Missing::Zero).then_some(0.0);
        let encoding = |tally: &Option<CategoryTally>| match tally {
            None => Encoding::Number { imputed },
            Some(tally) => Encoding::OneHot { categories: tally.names(spec.missing != Missing::Error) },
        };
        let named = plan.inputs.iter().zip(&self.categories);
        named
            .map(|(&field, tally)| Column { name: plan.names[field].clone(), encoding: encoding(tally) })
            .collect()
    }
}

/// A place in the files: file and offset.
type Place = (usize, u64);

/// Passes over all files. With a stored schema its classes and categories hold and nothing is gathered.
pub(crate) fn pass(files: &[Raw], plan: &Plan, spec: &DataSpec, known: Option<&Schema>) -> Result<Index> {
    let tally = |&categorical: &bool| (categorical && known.is_none()).then(CategoryTally::default);
    let mut pass = Pass {
        files,
        plan,
        labels: LabelTally::new(),
        categories: plan.categorical.iter().map(tally).collect(),
        extents: Vec::new(),
    };
    for (number, file) in files.iter().enumerate() {
        pass.file(number, file)?;
    }
    let describe = |(file, offset): Place| place(&files[file], offset);
    let labels = match known {
        Some(schema) => Labels::known(schema.task, &schema.classes),
        None => pass.labels.finish(spec.task, &plan.names[plan.label], describe)?,
    };
    Ok(Index { extents: pass.extents, labels, categories: pass.categories })
}

struct Pass<'a> {
    files: &'a [Raw],
    plan: &'a Plan,
    labels: LabelTally<Place>,
    categories: Vec<Option<CategoryTally>>,
    extents: Vec<Extent>,
}

impl Pass<'_> {
    fn file(&mut self, number: usize, file: &Raw) -> Result<()> {
        let plan = self.plan;
        let begin = plan.starts[number];
        let mut reader = FieldReader::new(file.reader(begin), plan.delimiter);
        let (mut rows, mut start) = (0, begin);
        loop {
            let Some(record) = reader.next(file.name())? else { break };
            let offset = begin + record.offset();
            if record.len() != plan.names.len() {
                return Err(ragged(&place(file, offset)?, plan.names.len(), record.len()));
            }
            for (tally, &field) in self.categories.iter_mut().zip(&plan.inputs) {
                if let Some(tally) = tally {
                    tally
                        .add(&plan.names[field], record.field(field))
                        .or_else(|problem| Err(located(problem, file, offset)?))?;
                }
            }
            let label = record.field(plan.label);
            if is_missing(label) {
                return Err(Problem::missing_label(&plan.names[plan.label]).at(&place(file, offset)?));
            }
            self.labels.add(label, (number, offset));
            rows += 1;
            let end = begin + reader.position();
            if rows == BLOCK_ROWS || end - start >= BLOCK_BYTES {
                self.extents.push(Extent { file: number, start, end, rows });
                (rows, start) = (0, end);
            }
        }
        if rows > 0 {
            self.extents.push(Extent { file: number, start, end: self.files[number].len(), rows });
        }
        Ok(())
    }
}

fn located(problem: Problem, file: &Raw, offset: u64) -> Result<Error> {
    Ok(problem.at(&place(file, offset)?))
}

fn ragged(place: &str, expected: usize, got: usize) -> Error {
    Error::data(format!("{place} has {got} fields where the others have {expected}"))
        .hint("check the line for a missing or surplus separator or an open quote; data.delimiter says what separates")
}
