//! JSON lines: an object with column names, an array in column order, or a text.

use super::decoder::{ArrayFields, ColumnDecoder, RecordDecoder};
use crate::table::value_error::ValueError;
use serde_json::{Map, Value};
use std::collections::HashSet;
use thalweg_core::schema::Encoding;
use thalweg_core::spec::nearest::nearest;
use thalweg_core::{Batch, Error, Result};

/// Appends the row of a line.
pub(super) fn push(decoder: &mut RecordDecoder, line: &str, row: u64, batch: &mut Batch) -> Result<()> {
    let value: Value = serde_json::from_str(line)
        .map_err(|error| Error::data(format!("input row {row} is not JSON: {error}")))?;
    match decoder {
        RecordDecoder::Text { .. } => match value.get("text").unwrap_or(&value) {
            Value::String(text) => decoder.push_text(text, row, batch),
            _ => Err(expected(row, "{\"text\": \"...\"}")),
        },
        RecordDecoder::Columns(decoder) => match (&value, value.get("features")) {
            (_, Some(Value::Array(values))) => push_array(decoder, values, row, batch),
            (Value::Array(values), _) => push_array(decoder, values, row, batch),
            (Value::Object(object), _) if decoder.sparse.is_some() => {
                push_sparse(decoder, object, row, batch)
            }
            (Value::Object(object), _) => push_object(decoder, object, row, batch),
            _ => Err(expected(row, "an object with the names of columns, or an array")),
        },
    }
}

fn push_array(decoder: &mut ColumnDecoder, values: &[Value], row: u64, batch: &mut Batch) -> Result<()> {
    if decoder.array.as_ref().is_none_or(|fields| fields.count != values.len()) {
        let (inputs, label) = decoder.model.map_by_count(values.len(), &format!("input row {row}"))?;
        decoder.array = Some(ArrayFields { count: values.len(), inputs, label });
    }
    let Some(fields) = &decoder.array else { return Ok(()) };
    push_values(decoder, fields.inputs.iter().map(|&field| &values[field]), row, batch)?;
    push_label(decoder, fields.label.map(|label| &values[label]), row, batch)
}

fn push_object(
    decoder: &ColumnDecoder,
    object: &Map<String, Value>,
    row: u64,
    batch: &mut Batch,
) -> Result<()> {
    check_names(decoder, object, row)?;
    let value = |name: &str| object.get(name).unwrap_or(&Value::Null);
    push_values(decoder, decoder.columns.iter().map(|column| value(&column.name)), row, batch)?;
    push_label(decoder, decoder.label.as_ref().and_then(|label| object.get(label)), row, batch)
}

/// Appends the label, if labels are read; booleans are formatted as `true` and `false`.
fn push_label(decoder: &ColumnDecoder, label: Option<&Value>, row: u64, batch: &mut Batch) -> Result<()> {
    let words = Encoding::OneHot { categories: Vec::new() };
    let text = label.and_then(|label| as_text(label, &words));
    decoder.push_label(text.as_ref().map(String::as_bytes), row, batch)
}

/// An unknown name is an error if a column with a similar name is absent, or if all columns are absent. Other
/// unknown names are allowed, such as the label or a row id.
fn check_names(decoder: &ColumnDecoder, object: &Map<String, Value>, row: u64) -> Result<()> {
    let names = || decoder.columns.iter().map(|column| column.name.as_str());
    let absent: Vec<&str> = names().filter(|name| !object.contains_key(*name)).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let known: HashSet<&str> = names().chain(decoder.label.as_deref()).collect();
    let mut unknown = object.keys().filter(|name| !known.contains(name.as_str()));
    let all_absent = absent.len() == decoder.columns.len();
    let meant = unknown.clone().find_map(|name| {
        nearest(name, absent.iter().copied()).map(|meant| format!("`{name}`; did you mean `{meant}`?"))
    });
    match meant.or_else(|| unknown.next().filter(|_| all_absent).map(|name| format!("`{name}`"))) {
        Some(name) => Err(Error::data(format!("input row {row}: the model has no column {name}"))
            .hint(format!("its columns are {}", decoder.column_list()))),
        None if all_absent => Err(decoder.missing_value(row, absent[0])),
        None => Ok(()),
    }
}

fn push_values<'a>(
    decoder: &ColumnDecoder,
    values: impl Iterator<Item = &'a Value>,
    row: u64,
    batch: &mut Batch,
) -> Result<()> {
    let mut texts = Vec::with_capacity(decoder.columns.len());
    for (value, column) in values.zip(&decoder.columns) {
        texts.push(as_text(value, &column.encoding).ok_or_else(|| nested_value(&column.name).at_input(row))?);
    }
    decoder.push_in_order(|field| texts[field].as_bytes(), row, batch)
}

/// `{"3": 1.5}`: columns by the numbers used in training.
fn push_sparse(
    decoder: &ColumnDecoder,
    object: &Map<String, Value>,
    row: u64,
    batch: &mut Batch,
) -> Result<()> {
    let first = decoder.sparse.unwrap_or_default();
    let mut pairs = Vec::with_capacity(object.len());
    for (name, value) in object {
        let column = name.parse::<u64>().ok().and_then(|column| column.checked_sub(first));
        let Some(column) = column.filter(|&column| column < decoder.columns.len() as u64) else {
            return Err(Error::data(format!("input row {row}: the model has no column `{name}`"))
                .hint(format!("its columns are {first} to {}", first + decoder.columns.len() as u64 - 1)));
        };
        let number = value.as_f64().filter(|number| (*number as f32).is_finite());
        let number =
            number.ok_or_else(|| ValueError::not_a_number(name, &value.to_string()).at_input(row))?;
        pairs.push((column as u32, number as f32));
    }
    pairs.sort_by_key(|&(column, _)| column);
    decoder.push_sparse(pairs.into_iter(), batch)
}

/// The value formatted as in a CSV file; `None` for arrays and objects.
fn as_text(value: &Value, encoding: &Encoding) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Bool(flag) => Some(match encoding {
            Encoding::OneHot { .. } => flag.to_string(),
            Encoding::Number { .. } => u8::from(*flag).to_string(),
        }),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.trim().into()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

fn nested_value(column: &str) -> ValueError {
    ValueError { what: "expected a number or a text".into(), ..ValueError::not_a_number(column, "") }
}

fn expected(row: u64, expected: &str) -> Error {
    Error::data(format!("input row {row}: expected {expected}"))
}
