//! From the fields of a record to the numbers of a row.

use super::categories::Categories;
use super::labels::Labels;
use super::problem::Problem;
use super::spelling::{Spelling, misspelled};
use super::unseen::Unseen;
use super::value::{is_missing, number, shown};
use crate::narrow::{DenseRows, WideTargets};
use thalweg_core::schema::{Column, Encoding, Schema};
use thalweg_core::spec::data::{DataSpec, Missing};

/// How each input column becomes numbers.
#[derive(Debug)]
pub(crate) struct Encoder {
    columns: Vec<Slot>,
    width: usize,
    unseen: Unseen,
}

#[derive(Debug)]
struct Slot {
    /// Where the column stands in a record.
    field: usize,
    name: String,
    kind: SlotKind,
}

/// How a value becomes numbers.
#[derive(Debug)]
pub(crate) enum SlotKind {
    Number { missing_allowed: bool },
    OneHot(Categories),
}

impl SlotKind {
    /// As the schema says; `missing_allowed` for numbers that will be imputed.
    pub(crate) fn new(encoding: &Encoding, missing_allowed: bool) -> SlotKind {
        match encoding {
            Encoding::Number { .. } => SlotKind::Number { missing_allowed },
            Encoding::OneHot { categories } => SlotKind::OneHot(Categories::new(categories)),
        }
    }
}

/// Whether numbers may be missing: as the job says, or the stored schema if it imputes them.
pub(crate) fn missing_allowed(columns: &[Column], spec: &DataSpec, known: Option<&Schema>) -> bool {
    let imputed = |column: &Column| matches!(column.encoding, Encoding::Number { imputed: Some(_) });
    match known {
        Some(_) => columns.iter().any(imputed),
        None => spec.missing != Missing::Error,
    }
}

impl Encoder {
    /// Columns and the fields where they stand; `missing_allowed` for numbers that will be imputed.
    pub(crate) fn new(columns: &[Column], fields: &[usize], missing_allowed: bool) -> Encoder {
        let slots = columns.iter().zip(fields).map(|(column, &field)| Slot {
            field,
            name: column.name.clone(),
            kind: SlotKind::new(&column.encoding, missing_allowed),
        });
        Encoder {
            columns: slots.collect(),
            width: columns.iter().map(|column| column.encoding.width()).sum(),
            unseen: Unseen::default(),
        }
    }

    /// Counts categories that are not in the schema together with others.
    pub(crate) fn noting(self, unseen: &Unseen) -> Encoder {
        Encoder { unseen: unseen.clone(), ..self }
    }

    /// Categories that are not in the schema, as far as rows were read.
    pub(crate) fn unseen(&self) -> &Unseen {
        &self.unseen
    }

    /// Numbers per row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Room for about so many rows.
    pub(crate) fn rows(&self, count: usize) -> DenseRows {
        let mut place = 0;
        let mut places = Vec::new();
        for slot in &self.columns {
            match &slot.kind {
                SlotKind::Number { .. } => {
                    places.push(place);
                    place += 1;
                }
                SlotKind::OneHot(categories) => place += categories.len(),
            }
        }
        DenseRows::new(self.width, places, count)
    }

    /// Appends the numbers of a record. `field` gives a field, trimmed; a missing number becomes NaN.
    pub(crate) fn row<'a>(
        &self,
        field: impl Fn(usize) -> &'a [u8],
        row: &mut Vec<f64>,
    ) -> Result<(), Problem> {
        for slot in &self.columns {
            let value = field(slot.field);
            match &slot.kind {
                SlotKind::Number { missing_allowed } => {
                    row.push(as_number(&slot.name, value, *missing_allowed)?)
                }
                SlotKind::OneHot(categories) => {
                    let start = row.len();
                    row.resize(start + categories.len(), 0.0);
                    row[start + categories.number(&slot.name, value, &self.unseen)?] = 1.0;
                }
            }
        }
        Ok(())
    }
}

fn as_number(column: &str, value: &[u8], missing_allowed: bool) -> Result<f64, Problem> {
    match number(value) {
        Some(number) if (number as f32).is_finite() => Ok(number),
        _ if is_missing(value) && missing_allowed => Ok(f64::NAN),
        _ if is_missing(value) => Err(Problem::missing_word(column, value)),
        Some(_) => Err(Problem::not_finite(column, &shown(value))),
        None => Err(match Spelling::of(value) {
            Some(spelling) => misspelled(column, value, spelling),
            None => Problem::not_a_number(column, &shown(value)),
        }),
    }
}

/// Appends the target that a label spells.
pub(crate) fn push_target(
    labels: &Labels,
    column: &str,
    value: &[u8],
    targets: &mut WideTargets,
) -> Result<(), Problem> {
    if matches!(labels, Labels::Unread(_)) {
        return Ok(());
    }
    let missing = |problem| if is_missing(value) { Problem::missing_label(column, value) } else { problem };
    match (labels, targets) {
        (Labels::Classes(classes), WideTargets::Classes(targets)) => {
            targets.push(classes.number(column, value).map_err(missing)?)
        }
        (_, WideTargets::Values(targets)) => targets.push(as_number(column, value, false).map_err(missing)?),
        (_, WideTargets::Classes(_)) => {
            return Err(Problem::not_a_number(column, &shown(value)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoder(missing_allowed: bool) -> Encoder {
        let age = Column { name: "age".into(), encoding: Encoding::Number { imputed: None } };
        let categories = vec!["oslo".into(), "rome".into()];
        let city = Column { name: "city".into(), encoding: Encoding::OneHot { categories } };
        Encoder::new(&[age, city], &[2, 0], missing_allowed)
    }

    fn row(encoder: &Encoder, fields: [&'static str; 3]) -> Result<Vec<f64>, Problem> {
        let mut row = Vec::new();
        encoder.row(|field| fields[field].as_bytes(), &mut row).map(|()| row)
    }

    #[test]
    fn numbers_and_categories_stand_in_the_order_of_the_columns() {
        assert_eq!(encoder(false).width(), 3);
        assert_eq!(row(&encoder(false), ["rome", "x", "-4.5"]).unwrap(), [-4.5, 0.0, 1.0]);
    }

    #[test]
    fn bad_values_are_told_apart() {
        let what = |age| row(&encoder(false), ["oslo", "", age]).unwrap_err().what;
        assert_eq!(what("abc"), "`abc` is not a number");
        assert_eq!(what(""), "the value is missing");
        assert_eq!(what("NA"), "`NA` stands for a missing value");
        assert_eq!(what("1,5"), "`1,5` is a number with a decimal comma, which is not read");
        assert!(what("1e300").contains("not a finite number"));
        assert!(what("-inf").contains("not a finite number"));
        assert!(row(&encoder(true), ["oslo", "", "NA"]).unwrap()[0].is_nan());
    }
}
