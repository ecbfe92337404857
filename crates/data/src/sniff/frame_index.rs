//! The column of row numbers that data frames write when they are told nothing else.

use super::propose::is_frame_index;
use super::tally::{Bound, ColumnTally};
use crate::table::value::present;
use csv::ByteRecord;

/// The unnamed columns that number the given rows.
pub(crate) fn frame_index(names: &[String], rows: &[ByteRecord]) -> Vec<usize> {
    let unnamed =
        |place: &usize| names[*place] == format!("c{place}") || names[*place].starts_with("Unnamed: ");
    let counts_rows = |&place: &usize| {
        let mut tally = ColumnTally::new(Bound::for_columns(1));
        rows.iter().filter_map(|row| present(row.get(place)?)).for_each(|value| tally.add(value));
        is_frame_index(&names[place], true, place, &tally)
    };
    (0..names.len()).filter(unnamed).filter(counts_rows).collect()
}
