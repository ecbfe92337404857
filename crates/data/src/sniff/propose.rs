//! Proposes the label and the columns to leave out. Pure functions of the counts.

use super::SniffedColumn;
use super::tally::ColumnTally;
use crate::table::categories::MAX_CATEGORIES;

/// Common names of label columns.
const LABEL_NAMES: &[&str] = &[
    "label",
    "labels",
    "target",
    "class",
    "classes",
    "y",
    "outcome",
    "output",
    "response",
    "species",
    "category",
    "diagnosis",
    "survived",
];

/// Minimum number of rows for a pattern to count.
const ENOUGH_ROWS: u64 = 20;

/// Reasons to leave a column out.
pub(super) const INDEX: &str =
    "the row numbers of a data frame (pandas: to_csv(index=False) leaves them out)";
const NUMBERED: &str = "numbers the rows";
const IDENTIFIER: &str = "a different whole number in every row, like an identifier";
const UNIQUE: &str = "different in almost every row";
const TOO_MANY: &str = "too many different values for categories";
const DATES: &str = "dates, each a category of its own";
const NONE: &str = "`None` counts as missing, as in pandas; spell it in another way if it is a category";
const CONSTANT: &str = "the same in every row";

/// Why the column should be left out; `None` to keep it.
pub(super) fn reason_to_ignore(
    column: &SniffedColumn,
    named: bool,
    index: usize,
    tally: &ColumnTally,
) -> Option<&'static str> {
    let SniffedColumn { name, distinct, more, .. } = column;
    if !column.numeric {
        return match *distinct {
            0 => None,
            _ if tally.all_dates() => Some(DATES),
            _ if tally.nearly_unique() => Some(UNIQUE),
            _ => (*more || *distinct > MAX_CATEGORIES).then_some(TOO_MANY),
        };
    }
    if is_frame_index(name, named, index, tally) {
        return Some(INDEX);
    }
    let enough = tally.counts.values > ENOUGH_ROWS;
    match () {
        () if enough && tally.consecutive() => Some(NUMBERED),
        () if enough && tally.all_different_whole() && is_identifier_name(name) => Some(IDENTIFIER),
        () => None,
    }
}

/// What to check about a column that is kept.
pub(super) fn doubt(column: &SniffedColumn, tally: &ColumnTally) -> Option<&'static str> {
    match () {
        () if !column.numeric && tally.missing_words.contains("None") => Some(NONE),
        () if column.distinct == 1 && !column.more && tally.missing == 0 => Some(CONSTANT),
        () if tally.counts.values > ENOUGH_ROWS && tally.all_different_whole() => Some(IDENTIFIER),
        () => None,
    }
}

/// Whether the column is an unnamed data frame index: consecutive numbers from 0 or 1.
pub(crate) fn is_frame_index(name: &str, named: bool, index: usize, tally: &ColumnTally) -> bool {
    let unnamed = named && (name == format!("c{index}") || name.starts_with("Unnamed: "));
    unnamed && tally.counts.values > 1 && tally.consecutive() && matches!(tally.smallest(), 0.0 | 1.0)
}

fn is_identifier_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let known = ["id", "ids", "uid", "uuid", "guid", "key", "index", "idx", "no", "nr", "number", "rownames"];
    words.last().is_some_and(|word| known.contains(word)) || name.ends_with("Id") || name.ends_with("ID")
}

/// The likely label, and the reason.
pub(super) fn label(columns: &[SniffedColumn], tallies: &[ColumnTally]) -> (usize, String) {
    let usable = |&index: &usize| columns[index].ignore.is_none();
    let named =
        |&index: &usize| LABEL_NAMES.iter().any(|name| columns[index].name.eq_ignore_ascii_case(name));
    let kept: Vec<usize> = (0..columns.len()).filter(usable).collect();
    if let Some(&index) = kept.iter().rfind(|index| named(index)) {
        return (index, "by its name".into());
    }
    let (Some(&first), Some(&last)) = (kept.first(), kept.last()) else {
        return (columns.len() - 1, "the last column".into());
    };
    let texts: Vec<usize> = kept.iter().copied().filter(|&index| !columns[index].numeric).collect();
    if let [only] = texts[..]
        && first != last
        && (only == first || only == last)
    {
        return (only, "the only column of texts".into());
    }
    if first != last && texts.is_empty() && is_binary(&tallies[first]) && !is_binary(&tallies[last]) {
        return (first, "the first column, of two different values".into());
    }
    (last, "the last column".into())
}

/// 0 and 1, or -1 and 1.
fn is_binary(tally: &ColumnTally) -> bool {
    let value = |text: &[u8]| {
        crate::table::value::parse_number(text).is_some_and(|value| matches!(value, -1.0 | 0.0 | 1.0))
    };
    tally.distinct() == (2, false) && tally.values().all(value)
}

/// Columns that leak the label: each of their values occurs with one label, and each label with one value.
pub(super) fn leaks(tallies: &[ColumnTally], label: usize) -> Vec<usize> {
    let (distinct, more) = tallies[label].distinct();
    let rows = tallies[label].counts.values;
    // If most labels are distinct, so are most values of any column.
    if more || distinct < 2 || rows <= ENOUGH_ROWS || distinct as u64 * 2 > rows {
        return Vec::new();
    }
    (0..tallies.len())
        .filter(|&index| index != label && tallies[index].is_bijective_with(&tallies[label]))
        .collect()
}
