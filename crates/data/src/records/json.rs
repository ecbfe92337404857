//! JSON lines: an object by the names of columns, an array in their order, or a text.

use super::form::{ArrayFields, ColumnForm, Form};
use crate::table::problem::Problem;
use serde_json::{Map, Value};
use std::collections::HashSet;
use thalweg_core::schema::Encoding;
use thalweg_core::spec::nearest::nearest;
use thalweg_core::{Batch, Error, Result};

/// Appends the row of a line.
pub(super) fn push(form: &mut Form, line: &str, row: u64, batch: &mut Batch) -> Result<()> {
    let value: Value = serde_json::from_str(line)
        .map_err(|error| Error::data(format!("input row {row} is not JSON: {error}")))?;
    match form {
        Form::Text { .. } => match value.get("text").unwrap_or(&value) {
            Value::String(text) => form.push_text(text, row, batch),
            _ => Err(shape(row, "{\"text\": \"...\"}")),
        },
        Form::Columns(form) => match (&value, value.get("features")) {
            (_, Some(Value::Array(values))) => push_array(form, values, row, batch),
            (Value::Array(values), _) => push_array(form, values, row, batch),
            (Value::Object(object), _) if form.sparse.is_some() => push_sparse(form, object, row, batch),
            (Value::Object(object), _) => push_object(form, object, row, batch),
            _ => Err(shape(row, "an object with the names of columns, or an array")),
        },
    }
}

fn push_array(form: &mut ColumnForm, values: &[Value], row: u64, batch: &mut Batch) -> Result<()> {
    if form.array.as_ref().is_none_or(|fields| fields.count != values.len()) {
        let (inputs, label) = form.places.by_count(values.len(), &format!("input row {row}"))?;
        form.array = Some(ArrayFields { count: values.len(), inputs, label });
    }
    let Some(fields) = &form.array else { return Ok(()) };
    push_values(form, fields.inputs.iter().map(|&field| &values[field]), row, batch)?;
    push_label(form, fields.label.map(|label| &values[label]), row, batch)
}

fn push_object(form: &ColumnForm, object: &Map<String, Value>, row: u64, batch: &mut Batch) -> Result<()> {
    check_names(form, object, row)?;
    let value = |name: &str| object.get(name).unwrap_or(&Value::Null);
    push_values(form, form.columns.iter().map(|column| value(&column.name)), row, batch)?;
    push_label(form, form.label.as_ref().and_then(|label| object.get(label)), row, batch)
}

/// The label, where labels are read; true and false are spelled as in a table of names.
fn push_label(form: &ColumnForm, label: Option<&Value>, row: u64, batch: &mut Batch) -> Result<()> {
    let words = Encoding::OneHot { categories: Vec::new() };
    let text = label.and_then(|label| spell(label, &words));
    form.push_label(text.as_ref().map(String::as_bytes), row, batch)
}

/// A name that is no column's is a mistake if a column of a similar name is not there, or if there is no column at all.
/// Other names may stand for anything: the label, a number of the row.
fn check_names(form: &ColumnForm, object: &Map<String, Value>, row: u64) -> Result<()> {
    let names = || form.columns.iter().map(|column| column.name.as_str());
    let absent: Vec<&str> = names().filter(|name| !object.contains_key(*name)).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let known: HashSet<&str> = names().chain(form.label.as_deref()).collect();
    let mut unknown = object.keys().filter(|name| !known.contains(name.as_str()));
    let strangers = absent.len() == form.columns.len();
    let meant = unknown.clone().find_map(|name| {
        nearest(name, absent.iter().copied()).map(|meant| format!("`{name}`; did you mean `{meant}`?"))
    });
    match meant.or_else(|| unknown.next().filter(|_| strangers).map(|name| format!("`{name}`"))) {
        Some(name) => Err(Error::data(format!("input row {row}: the model has no column {name}"))
            .hint(format!("its columns are {}", form.listed()))),
        None if strangers => Err(form.lacks(row, absent[0])),
        None => Ok(()),
    }
}

fn push_values<'a>(
    form: &ColumnForm,
    values: impl Iterator<Item = &'a Value>,
    row: u64,
    batch: &mut Batch,
) -> Result<()> {
    let mut texts = Vec::with_capacity(form.columns.len());
    for (value, column) in values.zip(&form.columns) {
        texts.push(spell(value, &column.encoding).ok_or_else(|| nested(&column.name).at_input(row))?);
    }
    form.push_in_order(|field| texts[field].as_bytes(), row, batch)
}

/// `{"3": 1.5}`: columns by the numbers they had in training.
fn push_sparse(form: &ColumnForm, object: &Map<String, Value>, row: u64, batch: &mut Batch) -> Result<()> {
    let first = form.sparse.unwrap_or_default();
    let mut pairs = Vec::with_capacity(object.len());
    for (name, value) in object {
        let column = name.parse::<u64>().ok().and_then(|column| column.checked_sub(first));
        let Some(column) = column.filter(|&column| column < form.columns.len() as u64) else {
            return Err(Error::data(format!("input row {row}: the model has no column `{name}`"))
                .hint(format!("its columns are {first} to {}", first + form.columns.len() as u64 - 1)));
        };
        let number = value.as_f64().filter(|number| (*number as f32).is_finite());
        let number = number.ok_or_else(|| Problem::not_a_number(name, &value.to_string()).at_input(row))?;
        pairs.push((column as u32, number as f32));
    }
    pairs.sort_by_key(|&(column, _)| column);
    form.push_sparse(pairs.into_iter(), batch)
}

/// A value as it would stand in a table; nothing for arrays and objects.
fn spell(value: &Value, encoding: &Encoding) -> Option<String> {
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

fn nested(column: &str) -> Problem {
    Problem { what: "expected a number or a text".into(), ..Problem::not_a_number(column, "") }
}

fn shape(row: u64, expected: &str) -> Error {
    Error::data(format!("input row {row}: expected {expected}"))
}
