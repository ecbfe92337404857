//! Encodes the fields of a record as the numbers of a row.

use super::categories::Categories;
use super::labels::LabelEncoding;
use super::number_format::{NumberFormat, unsupported_number};
use super::unseen::UnseenCounts;
use super::value::{is_missing, parse_number, printable};
use super::value_error::ValueError;
use crate::offset_encoding::{RowBuilder, TargetBuilder};
use thalweg_core::schema::{Column, Encoding, Schema};
use thalweg_core::spec::data::{DataSpec, Missing};

#[derive(Debug)]
pub(crate) struct Encoder {
    columns: Vec<InputField>,
    width: usize,
    unseen: UnseenCounts,
}

#[derive(Debug)]
struct InputField {
    /// Index of the field in a record.
    field: usize,
    name: String,
    kind: ColumnEncoder,
}

#[derive(Debug)]
pub(crate) enum ColumnEncoder {
    Number { missing_allowed: bool },
    OneHot(Categories),
}

impl ColumnEncoder {
    /// `missing_allowed` applies to numbers, which are then imputed.
    pub(crate) fn new(encoding: &Encoding, missing_allowed: bool) -> ColumnEncoder {
        match encoding {
            Encoding::Number { .. } => ColumnEncoder::Number { missing_allowed },
            Encoding::OneHot { categories } => ColumnEncoder::OneHot(Categories::new(categories)),
        }
    }
}

/// Whether numbers may be missing: by the job, or by the stored schema if it imputes them.
pub(crate) fn missing_allowed(columns: &[Column], spec: &DataSpec, known: Option<&Schema>) -> bool {
    let imputed = |column: &Column| matches!(column.encoding, Encoding::Number { imputed: Some(_) });
    match known {
        Some(_) => columns.iter().any(imputed),
        None => spec.missing != Missing::Error,
    }
}

impl Encoder {
    /// `fields` holds the field of each column; `missing_allowed` applies to numbers, which are then imputed.
    pub(crate) fn new(columns: &[Column], fields: &[usize], missing_allowed: bool) -> Encoder {
        let inputs = columns.iter().zip(fields).map(|(column, &field)| InputField {
            field,
            name: column.name.clone(),
            kind: ColumnEncoder::new(&column.encoding, missing_allowed),
        });
        Encoder {
            columns: inputs.collect(),
            width: columns.iter().map(|column| column.encoding.width()).sum(),
            unseen: UnseenCounts::default(),
        }
    }

    /// Counts unknown categories into a shared counter.
    pub(crate) fn counting_into(self, unseen: &UnseenCounts) -> Encoder {
        Encoder { unseen: unseen.clone(), ..self }
    }

    pub(crate) fn unseen(&self) -> &UnseenCounts {
        &self.unseen
    }

    /// Numbers per row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// A builder with memory for `count` rows.
    pub(crate) fn rows(&self, count: usize) -> RowBuilder {
        let mut position = 0;
        let mut positions = Vec::new();
        for input in &self.columns {
            match &input.kind {
                ColumnEncoder::Number { .. } => {
                    positions.push(position);
                    position += 1;
                }
                ColumnEncoder::OneHot(categories) => position += categories.len(),
            }
        }
        RowBuilder::new(self.width, positions, count)
    }

    /// Appends the numbers of a record. `field` returns a trimmed field; a missing number becomes NaN.
    pub(crate) fn row<'a>(
        &self,
        field: impl Fn(usize) -> &'a [u8],
        row: &mut Vec<f64>,
    ) -> Result<(), ValueError> {
        for input in &self.columns {
            let value = field(input.field);
            match &input.kind {
                ColumnEncoder::Number { missing_allowed } => {
                    row.push(as_number(&input.name, value, *missing_allowed)?)
                }
                ColumnEncoder::OneHot(categories) => {
                    let start = row.len();
                    row.resize(start + categories.len(), 0.0);
                    row[start + categories.index(&input.name, value, &self.unseen)?] = 1.0;
                }
            }
        }
        Ok(())
    }
}

fn as_number(column: &str, value: &[u8], missing_allowed: bool) -> Result<f64, ValueError> {
    match parse_number(value) {
        Some(number) if (number as f32).is_finite() => Ok(number),
        _ if is_missing(value) && missing_allowed => Ok(f64::NAN),
        _ if is_missing(value) => Err(ValueError::missing_word(column, value)),
        Some(_) => Err(ValueError::not_finite(column, &printable(value))),
        None => Err(match NumberFormat::of(value) {
            Some(format) => unsupported_number(column, value, format),
            None => ValueError::not_a_number(column, &printable(value)),
        }),
    }
}

/// Appends the target of a label.
pub(crate) fn push_target(
    labels: &LabelEncoding,
    column: &str,
    value: &[u8],
    targets: &mut TargetBuilder,
) -> Result<(), ValueError> {
    if matches!(labels, LabelEncoding::Unread(_)) {
        return Ok(());
    }
    let missing =
        |problem| if is_missing(value) { ValueError::missing_label(column, value) } else { problem };
    match (labels, targets) {
        (LabelEncoding::Classes(classes), TargetBuilder::Classes(targets)) => {
            targets.push(classes.index(column, value).map_err(missing)?)
        }
        (_, TargetBuilder::Values(targets)) => {
            targets.push(as_number(column, value, false).map_err(missing)?)
        }
        (_, TargetBuilder::Classes(_)) => {
            return Err(ValueError::not_a_number(column, &printable(value)));
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

    fn row(encoder: &Encoder, fields: [&'static str; 3]) -> Result<Vec<f64>, ValueError> {
        let mut row = Vec::new();
        encoder.row(|field| fields[field].as_bytes(), &mut row).map(|()| row)
    }

    #[test]
    fn numbers_and_categories_are_in_column_order() {
        assert_eq!(encoder(false).width(), 3);
        assert_eq!(row(&encoder(false), ["rome", "x", "-4.5"]).unwrap(), [-4.5, 0.0, 1.0]);
    }

    #[test]
    fn invalid_values_have_distinct_errors() {
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
