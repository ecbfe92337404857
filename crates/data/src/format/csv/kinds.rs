//! Decides which columns hold categories, and checks the values of numeric columns in the first rows.

use super::location;
use super::sample::Sample;
use crate::file_bytes::FileBytes;
use crate::table::column_kind::{ColumnKind, column_kind};
use crate::table::column_roles::ColumnRoles;
use crate::table::number_format::{NumberFormat, unsupported_number};
use crate::table::value::{parse_number, present, printable};
use crate::table::value_error::ValueError;
use thalweg_core::Result;
use thalweg_core::spec::data::{DataSpec, TaskChoice};

/// Maximum invalid cells listed in a message.
const MAX_LISTED: usize = 4;

pub(crate) struct FirstRows<'a> {
    pub(crate) sample: &'a Sample,
    pub(crate) header: bool,
    pub(crate) names: &'a [String],
    pub(crate) file: &'a FileBytes,
}

impl FirstRows<'_> {
    /// Whether each input holds categories. An invalid cell in a numeric column is an error: a typo must not
    /// turn the column into categories.
    pub(crate) fn categorical(&self, columns: &ColumnRoles, spec: &DataSpec) -> Result<Vec<bool>> {
        if spec.task != TaskChoice::Classification {
            self.check_number_format(columns.label, Some("data.task = \"classification\""))?;
        }
        columns
            .inputs
            .iter()
            .map(|&column| Ok(columns.categorical.contains(&column) || self.check(column)?))
            .collect()
    }

    /// Returns an error for missing values in numeric columns.
    pub(crate) fn check_missing(&self, columns: &ColumnRoles, categorical: &[bool]) -> Result<()> {
        let numbers = columns.inputs.iter().zip(categorical).filter(|(_, categorical)| !**categorical);
        for (&column, _) in numbers {
            let missing = self.cells(column).enumerate().find(|(_, cell)| present(cell).is_none());
            if let Some((row, cell)) = missing {
                return Err(ValueError::missing_word(&self.names[column], cell).at(&self.location(row)?));
            }
        }
        Ok(())
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &[u8]> + Clone {
        self.sample.rows(self.header).iter().filter_map(move |row| row.get(column))
    }

    fn check(&self, column: usize) -> Result<bool> {
        match self.check_number_format(column, None)? {
            ColumnKind::Numbers => self.check_cells(column).map(|()| false),
            kind => Ok(kind == ColumnKind::Categories),
        }
    }

    /// The kind of a column; numbers in an unsupported format are an error.
    fn check_number_format(&self, column: usize, instead: Option<&str>) -> Result<ColumnKind> {
        let kind = column_kind(self.cells(column));
        if kind != ColumnKind::UnsupportedNumbers {
            return Ok(kind);
        }
        // `1,234` is ambiguous; a cell with fewer decimals resolves it.
        let cells = || self.cells(column).enumerate();
        let with_format = |(row, cell)| NumberFormat::of(cell).map(|format| (row, cell, format));
        let decimal =
            cells().filter_map(with_format).find(|(.., format)| *format == NumberFormat::DecimalComma);
        let Some((row, cell, format)) = decimal.or_else(|| cells().find_map(with_format)) else {
            return Ok(kind);
        };
        let mut problem = unsupported_number(&self.names[column], cell, format);
        if let Some(instead) = instead {
            problem.hint = format!("{}; or set {instead} if the labels are names", format.advice());
        }
        Err(problem.at(&self.location(row)?))
    }

    /// Returns an error for cells of a numeric column that are not numbers.
    fn check_cells(&self, column: usize) -> Result<()> {
        let bad = self.cells(column).enumerate().filter_map(|(row, cell)| Some((row, present(cell)?)));
        let mut bad = bad.filter(|(_, cell)| parse_number(cell).is_none());
        let Some((row, cell)) = bad.next() else { return Ok(()) };
        let others: Vec<_> = bad.collect();
        let name = &self.names[column];
        let mut problem = match NumberFormat::of(cell) {
            Some(format) => unsupported_number(name, cell, format),
            None => ValueError::not_a_number(name, &printable(cell)),
        };
        if !others.is_empty() {
            let mut named = Vec::new();
            for &(row, cell) in others.iter().take(MAX_LISTED) {
                named.push(format!("`{}` ({})", printable(cell), self.line(row)?));
            }
            let more = if others.len() > MAX_LISTED { ", ..." } else { "" };
            let count = self.sample.rows(self.header).len();
            problem.what += &format!(
                ", nor {} more of the first {count} values: {}{more}",
                if others.len() == 1 { "is 1".into() } else { format!("are {}", others.len()) },
                named.join(", ")
            );
        }
        Err(problem.at(&self.location(row)?))
    }

    fn offset(&self, row: usize) -> u64 {
        self.sample.offsets[row + usize::from(self.header)]
    }

    fn location(&self, row: usize) -> Result<String> {
        location(self.file, self.offset(row))
    }

    fn line(&self, row: usize) -> Result<String> {
        Ok(format!("line {}", self.file.line(self.offset(row))?))
    }
}
