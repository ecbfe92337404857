//! CSV: which field of a record is which column.

use super::form::{ColumnForm, Form};
use crate::format::csv::fields::Record;
use crate::table::encoder::Encoder;
use std::collections::HashMap;
use thalweg_core::{Batch, Error, Result};

/// The order of fields, found from the first record.
pub(super) struct Order {
    /// Whether the first record names the columns.
    pub(super) header: bool,
    fields: usize,
    encoder: Option<Encoder>,
}

impl Order {
    /// Looks at the first record.
    pub(super) fn of(record: &Record<'_>, form: &Form) -> Result<Order> {
        let Form::Columns(form) = form else {
            let header = record.field(0) == b"text";
            return Ok(Order { header, fields: 1, encoder: None });
        };
        let names: Vec<String> =
            record.texts().map(|name| name.trim_start_matches('\u{feff}').to_string()).collect();
        let places: HashMap<&str, usize> =
            names.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
        let found: Vec<Option<usize>> =
            form.columns.iter().map(|column| places.get(column.name.as_str()).copied()).collect();
        let count = found.iter().flatten().count();
        let header = count == found.len();
        if !header && count * 2 >= found.len() && form.sparse.is_none() {
            let missing = found.iter().position(Option::is_none).unwrap_or(0);
            return Err(Error::data(format!("the input has no column `{}`", form.columns[missing].name))
                .hint(format!("its header names {}", names.join(", "))));
        }
        let fields = match header {
            true => found.into_iter().flatten().collect(),
            false => by_place(form, names.len())?,
        };
        Ok(Order { header, fields: names.len(), encoder: Some(form.encoder(&fields)) })
    }

    /// Appends a record.
    pub(super) fn push(&self, record: &Record<'_>, form: &Form, row: u64, batch: &mut Batch) -> Result<()> {
        if record.len() != self.fields {
            return Err(Error::data(format!(
                "input row {row} has {} fields where the others have {}",
                record.len(),
                self.fields
            )));
        }
        match (form, &self.encoder) {
            (Form::Columns(form), Some(encoder)) => {
                form.push(encoder, |field| record.field(field), row, batch)
            }
            _ => {
                let text = std::str::from_utf8(record.raw(0))
                    .map_err(|_| Error::data(format!("input row {row} is not UTF-8")))?;
                form.push_text(text, row, batch)
            }
        }
    }
}

/// Without a header: the columns in the order of training, with or without the label.
fn by_place(form: &ColumnForm, count: usize) -> Result<Vec<usize>> {
    let width = form.columns.len();
    if count == width {
        return Ok((0..width).collect());
    }
    // Columns that never had names are called by their place.
    let place = |name: &str| name.strip_prefix('c').and_then(|place| place.parse::<usize>().ok());
    let places: Option<Vec<usize>> = form.columns.iter().map(|column| place(&column.name)).collect();
    let label = form.label.as_deref();
    match (places, label.and_then(place)) {
        (Some(places), Some(label)) if places.iter().all(|&place| place < count) && label < count => {
            Ok(places)
        }
        (None, _) if count == width + 1 && label.is_some() => Ok((0..width).collect()),
        _ => Err(Error::data(format!("the input has {count} columns, but the model was trained on {width}"))
            .hint(format!(
                "its columns are {}; a header with these names may give them in any order",
                form.listed()
            ))),
    }
}
