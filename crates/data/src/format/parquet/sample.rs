//! The first rows of Parquet files as texts, for a first look.

use super::column::{Kind, ParquetFile};
use super::same_columns;
use crate::format::csv::sample::SAMPLE_ROWS;
use csv::ByteRecord;
use std::path::PathBuf;
use thalweg_core::Result;
use thalweg_core::spec::data::DataSpec;

/// The first rows.
pub(crate) struct Sample {
    pub(crate) names: Vec<String>,
    /// For each column, whether it holds numbers.
    pub(crate) numeric: Vec<bool>,
    pub(crate) records: Vec<ByteRecord>,
    /// Rows of all files, as they claim.
    pub(crate) rows: u64,
}

/// Reads the first rows; columns that cannot be read are left out.
pub(crate) fn sample(paths: &[PathBuf], spec: &DataSpec) -> Result<Sample> {
    let files = paths.iter().map(|path| ParquetFile::open(path, spec)).collect::<Result<Vec<_>>>()?;
    same_columns(&files)?;
    let first = &files[0];
    let readable =
        |&leaf: &usize| !matches!(first.kinds[leaf], Kind::Other(_)) && !first.holds_row_names(leaf);
    let kept: Vec<usize> = (0..first.names.len()).filter(readable).collect();
    let mut records = Vec::new();
    if let Some(group) = first.groups.iter().position(|&rows| rows > 0) {
        let rows = first.groups[group].min(SAMPLE_ROWS);
        records = vec![ByteRecord::new(); rows];
        let mut text = Vec::new();
        for &leaf in &kept {
            first.read(group, leaf, 0..rows, |row, value| {
                records[row].push_field(value.spell(&mut text));
                Ok(())
            })?;
        }
    }
    let names = kept.iter().map(|&leaf| first.names[leaf].clone()).collect();
    let numeric = kept.iter().map(|&leaf| first.kinds[leaf] != Kind::Text).collect();
    let rows =
        files.iter().flat_map(|file| &file.groups).fold(0u64, |sum, &rows| sum.saturating_add(rows as u64));
    Ok(Sample { names, numeric, records, rows })
}
