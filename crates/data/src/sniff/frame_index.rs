//! Detects the index column that pandas writes by default.

use super::propose::is_frame_index;
use super::tally::{ColumnTally, TallyLimits};
use crate::table::value::present;
use csv::ByteRecord;

/// Columns without a name that number the given rows.
pub(crate) fn frame_index(names: &[String], rows: &[ByteRecord]) -> Vec<usize> {
    let unnamed =
        |index: &usize| names[*index] == format!("c{index}") || names[*index].starts_with("Unnamed: ");
    let numbers_rows = |&index: &usize| {
        let mut tally = ColumnTally::new(TallyLimits::for_columns(1));
        rows.iter().filter_map(|row| present(row.get(index)?)).for_each(|value| tally.add(value));
        is_frame_index(&names[index], true, index, &tally)
    };
    (0..names.len()).filter(unnamed).filter(numbers_rows).collect()
}
