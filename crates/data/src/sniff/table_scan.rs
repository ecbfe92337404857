//! The pass over all rows of a table that collects counts per column.

use super::tally::{ColumnTally, TallyLimits};
use super::{Form, Sniffed};
use crate::content::no_rows;
use crate::file_bytes::FileBytes;
use crate::format::csv::fields::FieldReader;
use crate::format::csv::index::ragged;
use crate::format::csv::kinds::FirstRows;
use crate::format::csv::layout::{first_row, first_row_of_later_file};
use crate::format::csv::location;
use crate::format::csv::sample::Sample;
use crate::format::parquet::{ParquetFile, open_files};
use crate::table::column_kind::{ColumnKind, column_kind};
use crate::table::column_roles::ColumnRoles;
use crate::table::value::present;
use std::path::PathBuf;
use thalweg_core::Result;
use thalweg_core::spec::data::DataSpec;

/// Rows between two calls of `progress`.
const PROGRESS_ROWS: u64 = 1 << 12;

pub(super) struct TableScan {
    pub(super) names: Vec<String>,
    pub(super) tallies: Vec<ColumnTally>,
    /// Whether the first rows of each column hold numbers; training decides by these rows.
    pub(super) number_like: Vec<bool>,
    /// Whether columns have types of their own, which then decide.
    pub(super) typed: bool,
    pub(super) rows: u64,
    pub(super) delimiter: Option<String>,
    pub(super) header: bool,
    /// The first rows; `None` for Parquet.
    sample: Option<Sample>,
}

impl TableScan {
    pub(super) fn of_csv(
        files: &[FileBytes],
        spec: &DataSpec,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<TableScan> {
        let first = &files[0];
        let sample = Sample::read(first, spec.delimiter)?;
        let header = sample.has_header(spec.header, first)?;
        let names = sample.names(header);
        if sample.rows(header).is_empty() {
            return Err(no_rows(first.name(), header));
        }
        let bound = TallyLimits::for_columns(names.len());
        let mut tallies: Vec<ColumnTally> = names.iter().map(|_| ColumnTally::new(bound)).collect();
        let total = files.iter().map(FileBytes::len).sum();
        let (mut rows, mut done) = (0, 0);
        for (number, file) in files.iter().enumerate() {
            let begin = match number {
                0 => first_row(&sample, header),
                _ => first_row_of_later_file(file, first, &names, header, sample.delimiter, spec)?,
            };
            let mut reader = FieldReader::new(file.reader(begin), sample.delimiter);
            while let Some(record) = reader.next(file.name())? {
                if record.len() != names.len() {
                    let location = location(file, begin + record.offset())?;
                    return Err(ragged(&location, names.len(), record.len()));
                }
                for (column, tally) in tallies.iter_mut().enumerate() {
                    let field = record.field(column);
                    match present(field) {
                        Some(value) => tally.add(value),
                        None => tally.add_missing(field),
                    }
                }
                rows += 1;
                if rows % PROGRESS_ROWS == 0 {
                    progress(done + begin + reader.position(), total);
                }
            }
            done += file.len();
        }
        let kind = |column| column_kind(sample.rows(header).iter().filter_map(move |row| row.get(column)));
        let number_like = (0..names.len()).map(|column| kind(column) != ColumnKind::Categories).collect();
        let delimiter = Some(sample.delimiter.to_string());
        Ok(TableScan {
            names,
            tallies,
            number_like,
            typed: false,
            rows,
            delimiter,
            header,
            sample: Some(sample),
        })
    }

    /// Scans Parquet files; columns of unsupported types are left out.
    pub(super) fn of_parquet(
        paths: &[PathBuf],
        spec: &DataSpec,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<TableScan> {
        let files = open_files(paths, spec)?;
        let first = &files[0];
        let kept: Vec<usize> = (0..first.names.len()).filter(|&leaf| first.is_table_column(leaf)).collect();
        let names: Vec<String> = kept.iter().map(|&leaf| first.names[leaf].clone()).collect();
        let rows = files
            .iter()
            .flat_map(|file| &file.groups)
            .fold(0u64, |sum, &rows| sum.saturating_add(rows as u64));
        if rows == 0 || names.is_empty() {
            return Err(no_rows(&first.name, true));
        }
        let bound = TallyLimits::for_columns(names.len());
        let mut tallies: Vec<ColumnTally> = names.iter().map(|_| ColumnTally::new(bound)).collect();
        let groups: u64 = files.iter().map(|file| file.groups.len() as u64).sum();
        let (mut done, total) = (0, groups * kept.len() as u64);
        for file in &files {
            for group in 0..file.groups.len() {
                for (tally, &leaf) in tallies.iter_mut().zip(&kept) {
                    count_group(file, group, leaf, tally)?;
                    done += 1;
                    progress(done, total);
                }
            }
        }
        let number_like = kept.iter().map(|&leaf| first.holds_numbers(leaf)).collect();
        Ok(TableScan {
            names,
            tallies,
            number_like,
            typed: true,
            rows,
            delimiter: None,
            header: true,
            sample: None,
        })
    }

    /// Returns the error that training would return for numbers in unsupported formats, in the label and the
    /// kept columns.
    pub(super) fn check_numbers(&self, file: &FileBytes, sniffed: &Sniffed, spec: &DataSpec) -> Result<()> {
        let (Some(sample), Form::Table(table)) = (&self.sample, &sniffed.form) else { return Ok(()) };
        let columns = &table.columns;
        let kept = |&index: &usize| index != table.label && columns[index].ignore.is_none();
        let inputs: Vec<usize> = (0..columns.len()).filter(kept).collect();
        let categorical = (0..columns.len()).filter(|&index| !columns[index].numeric).collect();
        let columns = ColumnRoles { label: table.label, inputs, categorical };
        let first = FirstRows { sample, header: self.header, names: &self.names, file };
        first.categorical(&columns, spec).map(drop)
    }
}

fn count_group(file: &ParquetFile, group: usize, leaf: usize, tally: &mut ColumnTally) -> Result<()> {
    let mut text = Vec::new();
    file.read(group, leaf, 0..file.groups[group], |_, value| {
        match value.present(&mut text) {
            Some(value) => tally.add(value),
            None => tally.add_missing(b""),
        }
        Ok(())
    })
}
