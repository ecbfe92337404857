//! CSV: maps the fields of a record to columns.

use super::decoder::RecordDecoder;
use crate::format::csv::fields::CsvRecord;
use crate::table::encoder::Encoder;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Batch, Error, Result};

/// Mapping derived from the first record.
pub(super) struct FieldLayout {
    /// Whether the first record is a header.
    pub(super) header: bool,
    fields: usize,
    encoder: Option<Encoder>,
    /// Warning about an unused header.
    pub(super) warning: Option<String>,
    label: Option<usize>,
}

impl FieldLayout {
    pub(super) fn of(
        record: &CsvRecord<'_>,
        decoder: &RecordDecoder,
        header: Auto<bool>,
    ) -> Result<FieldLayout> {
        let RecordDecoder::Columns(decoder) = decoder else {
            let header = record.field(0) == b"text";
            return Ok(FieldLayout { header, fields: 1, encoder: None, warning: None, label: None });
        };
        let first: Vec<String> = record.texts().collect();
        let mapping = decoder.model.map_first_record(&first, header, "the input")?;
        Ok(FieldLayout {
            header: mapping.header,
            fields: first.len(),
            encoder: Some(decoder.encoder(&mapping.inputs)),
            warning: mapping.warning,
            label: mapping.label,
        })
    }

    pub(super) fn push(
        &self,
        record: &CsvRecord<'_>,
        decoder: &RecordDecoder,
        row: u64,
        batch: &mut Batch,
    ) -> Result<()> {
        if record.len() != self.fields {
            return Err(Error::data(format!(
                "input row {row} has {} fields where the others have {}",
                record.len(),
                self.fields
            )));
        }
        match (decoder, &self.encoder) {
            (RecordDecoder::Columns(decoder), Some(encoder)) => {
                decoder.push(encoder, |field| record.field(field), row, batch)?;
                decoder.push_label(self.label.map(|label| record.field(label)), row, batch)
            }
            _ => {
                let text = std::str::from_utf8(record.raw(0))
                    .map_err(|_| Error::data(format!("input row {row} is not UTF-8")))?;
                decoder.push_text(text, row, batch)
            }
        }
    }
}
