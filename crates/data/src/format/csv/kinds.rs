//! Which columns of a table hold categories. Columns of numbers are checked cell by cell in the first rows.

use super::place;
use super::sample::Sample;
use crate::raw::Raw;
use crate::table::columns::Columns;
use crate::table::kind::{Kind, kind_of};
use crate::table::problem::Problem;
use crate::table::spelling::{Spelling, misspelled};
use crate::table::value::{number, present, shown};
use thalweg_core::Result;
use thalweg_core::spec::data::{DataSpec, TaskChoice};

/// Cells that are named when several cannot be read.
const NAMED: usize = 4;

/// The first rows of a file, and the names of its columns.
pub(crate) struct FirstRows<'a> {
    pub(crate) sample: &'a Sample,
    pub(crate) header: bool,
    pub(crate) names: &'a [String],
    pub(crate) file: &'a Raw,
}

impl FirstRows<'_> {
    /// For each input, whether it holds categories. A cell that is no number in a column of numbers is refused: a
    /// mistake must not turn the column into categories.
    pub(crate) fn categorical(&self, columns: &Columns, spec: &DataSpec) -> Result<Vec<bool>> {
        if spec.task != TaskChoice::Classification {
            self.check_spelling(columns.label, Some("data.task = \"classification\""))?;
        }
        columns
            .inputs
            .iter()
            .map(|&column| Ok(columns.categorical.contains(&column) || self.check(column)?))
            .collect()
    }

    /// Refuses missing values in columns of numbers.
    pub(crate) fn check_missing(&self, columns: &Columns, categorical: &[bool]) -> Result<()> {
        let numbers = columns.inputs.iter().zip(categorical).filter(|(_, categorical)| !**categorical);
        for (&column, _) in numbers {
            let missing = self.cells(column).enumerate().find(|(_, cell)| present(cell).is_none());
            if let Some((row, cell)) = missing {
                return Err(Problem::missing_word(&self.names[column], cell).at(&self.place(row)?));
            }
        }
        Ok(())
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &[u8]> + Clone {
        self.sample.rows(self.header).iter().filter_map(move |row| row.get(column))
    }

    fn check(&self, column: usize) -> Result<bool> {
        match self.check_spelling(column, None)? {
            Kind::Numbers => self.check_cells(column).map(|()| false),
            kind => Ok(kind == Kind::Categories),
        }
    }

    /// The kind of a column; numbers in a spelling that is not read are refused.
    fn check_spelling(&self, column: usize, instead: Option<&str>) -> Result<Kind> {
        let kind = kind_of(self.cells(column));
        if kind != Kind::Misspelled {
            return Ok(kind);
        }
        // `1,234` may be either; a shorter group of decimals settles it.
        let cells = || self.cells(column).enumerate();
        let spelled = |(row, cell)| Spelling::of(cell).map(|spelling| (row, cell, spelling));
        let decimal = cells().filter_map(spelled).find(|(.., spelling)| *spelling == Spelling::DecimalComma);
        let Some((row, cell, spelling)) = decimal.or_else(|| cells().find_map(spelled)) else {
            return Ok(kind);
        };
        let mut problem = misspelled(&self.names[column], cell, spelling);
        if let Some(instead) = instead {
            problem.hint = format!("{}; or set {instead} if the labels are names", spelling.advice());
        }
        Err(problem.at(&self.place(row)?))
    }

    /// Refuses cells of a column of numbers that are none.
    fn check_cells(&self, column: usize) -> Result<()> {
        let bad = self.cells(column).enumerate().filter_map(|(row, cell)| Some((row, present(cell)?)));
        let mut bad = bad.filter(|(_, cell)| number(cell).is_none());
        let Some((row, cell)) = bad.next() else { return Ok(()) };
        let others: Vec<_> = bad.collect();
        let name = &self.names[column];
        let mut problem = match Spelling::of(cell) {
            Some(spelling) => misspelled(name, cell, spelling),
            None => Problem::not_a_number(name, &shown(cell)),
        };
        if !others.is_empty() {
            let mut named = Vec::new();
            for &(row, cell) in others.iter().take(NAMED) {
                named.push(format!("`{}` ({})", shown(cell), self.line(row)?));
            }
            let more = if others.len() > NAMED { ", ..." } else { "" };
            let count = self.sample.rows(self.header).len();
            problem.what += &format!(
                ", nor {} more of the first {count} values: {}{more}",
                if others.len() == 1 { "is 1".into() } else { format!("are {}", others.len()) },
                named.join(", ")
            );
        }
        Err(problem.at(&self.place(row)?))
    }

    fn offset(&self, row: usize) -> u64 {
        self.sample.offsets[row + usize::from(self.header)]
    }

    fn place(&self, row: usize) -> Result<String> {
        place(self.file, self.offset(row))
    }

    fn line(&self, row: usize) -> Result<String> {
        Ok(format!("line {}", self.file.line(self.offset(row))?))
    }
}
