//! Rows to be predicted: CSV or JSON lines from any reader, encoded as the stored schema says.
//!
//! Which field of a CSV record or of a JSON array is which column is found as in `table::placement`:
//! by the names of a header, or by place. In JSON a line is an object with the names of columns, an array, or
//! `{"features": [...]}`. Pixels are called `p0`, `p1`, ..., sparse columns by their number, and a text comes as
//! `{"text": "..."}` or as a line.

mod bounded;
mod fields;
mod form;
mod json;

use crate::content::no_rows;
use crate::format::csv::dialect;
use crate::format::csv::fields::{FieldReader, Record};
use crate::table::unseen::UnseenCategory;
use bounded::Bounded;
use fields::Order;
use form::Form;
use std::io::BufRead;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Batch, Error, Result, Schema};

/// Separates nothing that occurs in texts: a line is one field.
const NO_DELIMITER: u8 = 0x1f;

/// Reads rows to be predicted, batch by batch.
pub struct Records<R> {
    input: Input<R>,
    form: Form,
    empty: Batch,
    row: u64,
}

enum Input<R> {
    Csv { reader: FieldReader<Bounded<R>>, header: Auto<bool>, order: Option<Order> },
    Json { reader: Bounded<R>, line: Vec<u8> },
}

impl<R: BufRead> Records<R> {
    /// Rows as CSV, with the delimiter and the header that a job says or that the first bytes show.
    pub fn csv(mut reader: R, schema: &Schema, spec: &DataSpec) -> Result<Records<R>> {
        let form = Form::of(schema);
        let (delimiter, start) = if form.is_text() {
            (Delimiter::Byte(NO_DELIMITER), 0)
        } else {
            let beginning = reader.fill_buf().map_err(|error| unreadable(&error))?;
            dialect::begin(beginning, spec.delimiter)
        };
        reader.consume(start);
        let reader = FieldReader::new(Bounded::new(reader), delimiter);
        let input = Input::Csv { reader, header: spec.header, order: None };
        Ok(Records { input, form, empty: empty(schema), row: 0 })
    }

    /// Rows as JSON, one per line.
    pub fn json(reader: R, schema: &Schema) -> Records<R> {
        let input = Input::Json { reader: Bounded::new(reader), line: Vec::new() };
        Records { input, form: Form::of(schema), empty: empty(schema), row: 0 }
    }

    /// The same rows with their labels as targets; a row without one is an error.
    pub fn labelled(mut self, schema: &Schema) -> Result<Records<R>> {
        self.form.read_labels(schema)?;
        Ok(self)
    }

    /// A batch without rows, of the form these rows have.
    pub fn empty_batch(&self) -> Batch {
        self.empty.clone()
    }

    /// Replaces the rows of a batch by the next ones, at most `max`; false if there are no more. Rows are numbered from
    /// 0 in the order of the input; targets stay empty unless labels are read.
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

    /// The error for an input of this name in which no row was found.
    pub fn no_rows(&self, name: &str) -> Error {
        let header = matches!(&self.input, Input::Csv { order: Some(order), .. } if order.header);
        no_rows(name, header)
    }

    /// Categories that did not occur in training, in the rows read so far.
    pub fn unseen_categories(&self) -> Vec<UnseenCategory> {
        match &self.form {
            Form::Columns(form) => form.unseen.list(),
            Form::Text { .. } => Vec::new(),
        }
    }

    /// What the user had better know about how the rows are read, once the first of them was.
    pub fn warning(&self) -> Option<&str> {
        match &self.input {
            Input::Csv { order: Some(order), .. } => order.warning.as_deref(),
            _ => None,
        }
    }

    fn next_row(&mut self, batch: &mut Batch) -> Result<bool> {
        let number = self.row + 1;
        match &mut self.input {
            Input::Json { reader, line } => loop {
                reader.begin_row();
                if !reader.line(line).map_err(|error| reader.explain(number, unreadable(&error)))? {
                    return Ok(false);
                }
                let line = std::str::from_utf8(line).map_err(|_| not_utf8(number))?;
                if !line.trim().is_empty() {
                    return json::push(&mut self.form, line, number, batch).map(|()| true);
                }
            },
            Input::Csv { reader, header, order } => {
                let Some(record) = next_record(reader, number)? else { return Ok(false) };
                let known = match order {
                    Some(order) => order,
                    None => {
                        let found = Order::of(&record, &self.form, *header)?;
                        let header = found.header;
                        let found = order.insert(found);
                        if header {
                            // The names are no row: go on with the next record.
                            let Some(record) = next_record(reader, number)? else { return Ok(false) };
                            return found.push(&record, &self.form, number, batch).map(|()| true);
                        }
                        found
                    }
                };
                known.push(&record, &self.form, number, batch).map(|()| true)
            }
        }
    }
}

fn empty(schema: &Schema) -> Batch {
    Batch::empty(schema.width(), schema.empty_features(), schema.empty_targets())
}

fn next_record<R: BufRead>(reader: &mut FieldReader<Bounded<R>>, row: u64) -> Result<Option<Record<'_>>> {
    reader.source().begin_row();
    if let Err(error) = reader.advance("the input") {
        return Err(reader.source().explain(row, error));
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
