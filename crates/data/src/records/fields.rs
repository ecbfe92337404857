//! CSV: which field of a record is which column.

use super::form::Form;
use crate::format::csv::fields::Record;
use crate::table::encoder::Encoder;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Batch, Error, Result};

/// The order of fields, found from the first record.
pub(super) struct Order {
    /// Whether the first record names the columns.
    pub(super) header: bool,
    fields: usize,
    encoder: Option<Encoder>,
    /// What is to be told about the header.
    pub(super) warning: Option<String>,
    label: Option<usize>,
}

impl Order {
    /// Looks at the first record.
    pub(super) fn of(record: &Record<'_>, form: &Form, header: Auto<bool>) -> Result<Order> {
        let Form::Columns(form) = form else {
            let header = record.field(0) == b"text";
            return Ok(Order { header, fields: 1, encoder: None, warning: None, label: None });
        };
        let first: Vec<String> = record.texts().collect();
        let placement = form.places.place(&first, header, "the input")?;
        Ok(Order {
            header: placement.header,
            fields: first.len(),
            encoder: Some(form.encoder(&placement.inputs)),
            warning: placement.warning,
            label: placement.label,
        })
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
                form.push(encoder, |field| record.field(field), row, batch)?;
                form.push_label(self.label.map(|label| record.field(label)), row, batch)
            }
            _ => {
                let text = std::str::from_utf8(record.raw(0))
                    .map_err(|_| Error::data(format!("input row {row} is not UTF-8")))?;
                form.push_text(text, row, batch)
            }
        }
    }
}
