//! Rows to predict: CSV or JSON lines from any reader, encoded by the stored schema.
//!
//! The fields of a CSV record or a JSON array are mapped to columns by `table::column_mapping`: by the names
//! of a header, or by position. A JSON line is an object with column names, an array, or `{"features":
//! [...]}`. Pixels are named `p0`, `p1`, ..., sparse columns by their number, and a text is `{"text": "..."}`
//! or a line.

mod bounded_reader;
mod decoder;
mod field_layout;
mod json;

use crate::content::no_rows;
use crate::format::csv::dialect;
use crate::format::csv::fields::{CsvRecord, FieldReader};
use crate::table::unseen::UnseenCategory;
use bounded_reader::BoundedReader;
use decoder::RecordDecoder;
use field_layout::FieldLayout;
use std::io::BufRead;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Batch, Error, Result, Schema};

/// ASCII unit separator, which does not occur in text: each line is one field.
const NO_DELIMITER: u8 = 0x1f;

/// Reads rows to predict, batch by batch.
pub struct Records<R> {
    input: RecordInput<R>,
    decoder: RecordDecoder,
    empty: Batch,
    row: u64,
}

enum RecordInput<R> {
    Csv { reader: FieldReader<BoundedReader<R>>, header: Auto<bool>, layout: Option<FieldLayout> },
    Json { reader: BoundedReader<R>, line: Vec<u8> },
}

impl<R: BufRead> Records<R> {
    /// Rows as CSV; delimiter and header are as in the job, or detected from the first bytes.
    pub fn csv(mut reader: R, schema: &Schema, spec: &DataSpec) -> Result<Records<R>> {
        let decoder = RecordDecoder::of(schema);
        let (delimiter, start) = if decoder.is_text() {
            (Delimiter::Byte(NO_DELIMITER), 0)
        } else {
            let beginning = reader.fill_buf().map_err(|error| unreadable(&error))?;
            dialect::detect(beginning, spec.delimiter)
        };
        reader.consume(start);
        let reader = FieldReader::new(BoundedReader::new(reader), delimiter);
        let input = RecordInput::Csv { reader, header: spec.header, layout: None };
        Ok(Records { input, decoder, empty: empty(schema), row: 0 })
    }

    /// Rows as JSON, one per line.
    pub fn json(reader: R, schema: &Schema) -> Records<R> {
        let input = RecordInput::Json { reader: BoundedReader::new(reader), line: Vec::new() };
        Records { input, decoder: RecordDecoder::of(schema), empty: empty(schema), row: 0 }
    }

    /// Reads labels as targets too; a row without a label is an error.
    pub fn labelled(mut self, schema: &Schema) -> Result<Records<R>> {
        self.decoder.read_labels(schema)?;
        Ok(self)
    }

    /// An empty batch of the right shape.
    pub fn empty_batch(&self) -> Batch {
        self.empty.clone()
    }

    /// Replaces the content of a batch by up to `max` next rows; false if there are no more. Row ids count
    /// from 0 in input order; targets stay empty unless labels are read.
    pub fn next_batch(&mut self, max: usize, batch: &mut Batch) -> Result<bool> {
        batch.clear();
        batch.width = self.empty.width;
        while batch.len() < max.max(1) {
            if !self.next_row(batch)? {
                break;
            }
            batch.rows.push(self.row);
            self.row += 1;
        }
        Ok(!batch.is_empty())
    }

    /// Error for an input without rows.
    pub fn no_rows(&self, name: &str) -> Error {
        let header = matches!(&self.input, RecordInput::Csv { layout: Some(layout), .. } if layout.header);
        no_rows(name, header)
    }

    /// Categories that did not occur in training, in the rows read so far.
    pub fn unseen_categories(&self) -> Vec<UnseenCategory> {
        match &self.decoder {
            RecordDecoder::Columns(decoder) => decoder.unseen.list(),
            RecordDecoder::Text { .. } => Vec::new(),
        }
    }

    /// A warning about how the rows are read; known after the first row.
    pub fn warning(&self) -> Option<&str> {
        match &self.input {
            RecordInput::Csv { layout: Some(layout), .. } => layout.warning.as_deref(),
            _ => None,
        }
    }

    fn next_row(&mut self, batch: &mut Batch) -> Result<bool> {
        let number = self.row + 1;
        match &mut self.input {
            RecordInput::Json { reader, line } => loop {
                reader.begin_row();
                if !reader.line(line).map_err(|error| reader.row_error(number, unreadable(&error)))? {
                    return Ok(false);
                }
                let line = std::str::from_utf8(line).map_err(|_| not_utf8(number))?;
                if !line.trim().is_empty() {
                    return json::push(&mut self.decoder, line, number, batch).map(|()| true);
                }
            },
            RecordInput::Csv { reader, header, layout } => {
                let Some(record) = next_record(reader, number)? else { return Ok(false) };
                let known = match layout {
                    Some(layout) => layout,
                    None => {
                        let found = FieldLayout::of(&record, &self.decoder, *header)?;
                        let header = found.header;
                        let found = layout.insert(found);
                        if header {
                            // The first record is a header, so the next one is the row.
                            let Some(record) = next_record(reader, number)? else { return Ok(false) };
                            return found.push(&record, &self.decoder, number, batch).map(|()| true);
                        }
                        found
                    }
                };
                known.push(&record, &self.decoder, number, batch).map(|()| true)
            }
        }
    }
}

fn empty(schema: &Schema) -> Batch {
    Batch::empty(schema.width(), schema.empty_features(), schema.empty_targets())
}

fn next_record<R: BufRead>(
    reader: &mut FieldReader<BoundedReader<R>>,
    row: u64,
) -> Result<Option<CsvRecord<'_>>> {
    reader.source().begin_row();
    if let Err(error) = reader.advance("the input") {
        return Err(reader.source().row_error(row, error));
    }
    Ok(reader.record())
}

fn not_utf8(row: u64) -> Error {
    Error::data(format!("input row {row} is not UTF-8"))
        .hint("convert it, for instance with iconv -f latin1 -t utf8")
}

fn unreadable(error: &std::io::Error) -> Error {
    Error::io("cannot read the input", error)
}
