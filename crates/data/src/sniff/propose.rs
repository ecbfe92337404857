//! Which column is likely the label, and which had better be left out. Pure decisions on what was counted.

use super::SniffedColumn;
use super::tally::ColumnTally;
use crate::table::categories::MOST_CATEGORIES;

/// Names under which the column to predict often goes.
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

/// Rows from which on patterns are believed.
const ENOUGH_ROWS: u64 = 20;

/// Why a column had better be left out.
pub(super) const INDEX: &str =
    "the row numbers of a data frame (pandas: to_csv(index=False) leaves them out)";
const NUMBERED: &str = "numbers the rows";
const IDENTIFIER: &str = "a different whole number in every row, like an identifier";
const UNIQUE: &str = "different in almost every row";
const TOO_MANY: &str = "too many different values for categories";
const DATES: &str = "dates, each a category of its own";
const NONE: &str = "`None` counts as missing, as in pandas; spell it in another way if it is a category";
const CONSTANT: &str = "the same in every row";

/// Why the column is to be left out, if it is.
pub(super) fn reason_to_ignore(
    column: &SniffedColumn,
    named: bool,
    place: usize,
    tally: &ColumnTally,
) -> Option<&'static str> {
    let SniffedColumn { name, distinct, more, .. } = column;
    if !column.numeric {
        return match *distinct {
            0 => None,
            _ if tally.all_dates() => Some(DATES),
            _ if tally.nearly_unique() => Some(UNIQUE),
            _ => (*more || *distinct > MOST_CATEGORIES).then_some(TOO_MANY),
        };
    }
    if is_frame_index(name, named, place, tally) {
        return Some(INDEX);
    }
    let enough = tally.counts.values > ENOUGH_ROWS;
    match () {
        () if enough && tally.consecutive() => Some(NUMBERED),
        () if enough && tally.all_different_whole() && is_identifier_name(name) => Some(IDENTIFIER),
        () => None,
    }
}

/// What is worth a second look in a column that is kept.
pub(super) fn doubt(column: &SniffedColumn, tally: &ColumnTally) -> Option<&'static str> {
    match () {
        () if !column.numeric && tally.missing_words.contains("None") => Some(NONE),
        () if column.distinct == 1 && !column.more && tally.missing == 0 => Some(CONSTANT),
        () if tally.counts.values > ENOUGH_ROWS && tally.all_different_whole() => Some(IDENTIFIER),
        () => None,
    }
}

/// The first column, without a name, that counts the rows.
pub(crate) fn is_frame_index(name: &str, named: bool, place: usize, tally: &ColumnTally) -> bool {
    let unnamed = named && (name == format!("c{place}") || name.starts_with("Unnamed: "));
    unnamed && tally.counts.values > 1 && tally.consecutive() && matches!(tally.smallest(), 0.0 | 1.0)
}

fn is_identifier_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let known = ["id", "ids", "uid", "uuid", "guid", "key", "index", "idx", "no", "nr", "number", "rownames"];
    words.last().is_some_and(|word| known.contains(word)) || name.ends_with("Id") || name.ends_with("ID")
}

/// The likely label, and why.
pub(super) fn label(columns: &[SniffedColumn], tallies: &[ColumnTally]) -> (usize, String) {
    let usable = |&place: &usize| columns[place].ignore.is_none();
    let named =
        |&place: &usize| LABEL_NAMES.iter().any(|name| columns[place].name.eq_ignore_ascii_case(name));
    let kept: Vec<usize> = (0..columns.len()).filter(usable).collect();
    if let Some(&place) = kept.iter().rfind(|place| named(place)) {
        return (place, "by its name".into());
    }
    let (Some(&first), Some(&last)) = (kept.first(), kept.last()) else {
        return (columns.len() - 1, "the last column".into());
    };
    let texts: Vec<usize> = kept.iter().copied().filter(|&place| !columns[place].numeric).collect();
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
        crate::table::value::number(text).is_some_and(|value| matches!(value, -1.0 | 0.0 | 1.0))
    };
    tally.distinct() == (2, false) && tally.values().all(value)
}

/// Columns from which the label can be read off: each of their values goes with one label, and the other way round.
pub(super) fn leaks(tallies: &[ColumnTally], label: usize) -> Vec<usize> {
    let (distinct, more) = tallies[label].distinct();
    let rows = tallies[label].counts.values;
    // Where most labels are different, so are most values of any column.
    if more || distinct < 2 || rows <= ENOUGH_ROWS || distinct as u64 * 2 > rows {
        return Vec::new();
    }
    (0..tallies.len()).filter(|&place| place != label && tallies[place].mirrors(&tallies[label])).collect()
}
