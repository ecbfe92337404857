//! Decodes a record into a row of a batch, according to a stored schema.

use crate::offset_encoding::TargetBuilder;
use crate::row_transform::RowTransform;
use crate::table::column_mapping::{ModelColumns, join_names};
use crate::table::encoder::{Encoder, push_target};
use crate::table::labels::LabelEncoding;
use crate::table::unseen::UnseenCounts;
use crate::table::value_error::ValueError;
use std::collections::HashMap;
use thalweg_core::schema::{Column, Encoding, RowShape, Schema};
use thalweg_core::{Batch, Error, Features, Result, Targets};

pub(super) enum RecordDecoder {
    /// Named columns, dense or sparse.
    Columns(Box<ColumnDecoder>),
    /// Only the last `window` characters are used.
    Text { window: usize, numbers: HashMap<char, u32> },
}

pub(super) struct ColumnDecoder {
    pub(super) columns: Vec<Column>,
    pub(super) label: Option<String>,
    pub(super) model: ModelColumns,
    /// Fields of the last array length seen; cached because arrays usually have one length.
    pub(super) array: Option<ArrayFields>,
    /// For fields in the order of the columns.
    in_order: Encoder,
    /// `None` unless labels are read.
    labels: Option<LabelEncoding>,
    /// Number of the first column, for sparse rows.
    pub(super) sparse: Option<u64>,
    missing_allowed: bool,
    transform: RowTransform,
    pub(super) unseen: UnseenCounts,
}

/// Fields of an array of `count` values.
pub(super) struct ArrayFields {
    pub(super) count: usize,
    pub(super) inputs: Vec<usize>,
    pub(super) label: Option<usize>,
}

impl RecordDecoder {
    pub(super) fn of(schema: &Schema) -> RecordDecoder {
        let numbered = |names: Vec<String>| {
            let column = |name| Column { name, encoding: Encoding::Number { imputed: None } };
            names.into_iter().map(column).collect::<Vec<_>>()
        };
        let (columns, sparse) = match &schema.shape {
            RowShape::Table { columns } => (columns.clone(), None),
            RowShape::Image { .. } => {
                (numbered((0..schema.width()).map(|pixel| format!("p{pixel}")).collect()), None)
            }
            RowShape::Sparse { columns, first } => {
                let names = (*first..first + columns).map(|column| column.to_string()).collect();
                (numbered(names), Some(*first as u64))
            }
            RowShape::Text { window, alphabet } => {
                let numbers =
                    alphabet.iter().enumerate().map(|(number, &character)| (character, number as u32));
                return RecordDecoder::Text { window: *window, numbers: numbers.collect() };
            }
        };
        let imputed = |column: &Column| matches!(column.encoding, Encoding::Number { imputed: Some(_) });
        let missing_allowed = columns.iter().any(imputed);
        let layout: Vec<usize> = (0..columns.len()).collect();
        let unseen = UnseenCounts::default();
        RecordDecoder::Columns(Box::new(ColumnDecoder {
            model: ModelColumns::new(&columns, schema),
            array: None,
            in_order: Encoder::new(&columns, &layout, missing_allowed).counting_into(&unseen),
            labels: None,
            missing_allowed,
            columns,
            label: schema.label.clone(),
            sparse,
            transform: RowTransform::new(schema),
            unseen,
        }))
    }

    /// Enables reading of labels as targets.
    pub(super) fn read_labels(&mut self, schema: &Schema) -> Result<()> {
        match self {
            RecordDecoder::Columns(decoder) if decoder.label.is_some() => {
                decoder.labels = Some(LabelEncoding::new(schema.task, &schema.classes));
                Ok(())
            }
            _ => Err(Error::data("only rows of tables have a label beside their values")
                .hint("evaluate the model on a source like the one it was trained on")),
        }
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(self, RecordDecoder::Text { .. })
    }

    /// Appends the last characters of a text.
    pub(super) fn push_text(&self, text: &str, row: u64, batch: &mut Batch) -> Result<()> {
        let (RecordDecoder::Text { window, numbers }, Features::Tokens { symbols, .. }) =
            (self, &mut batch.features)
        else {
            return Err(wrong_batch());
        };
        let count = text.chars().count();
        if count < *window {
            return Err(Error::data(format!(
                "input row {row} has {count} characters; the model reads {window}"
            ))
            .hint("give it a longer text; only the last characters count"));
        }
        for character in text.chars().skip(count - window) {
            match numbers.get(&character) {
                Some(&number) => symbols.push(number),
                None => {
                    return Err(Error::data(format!(
                        "input row {row} holds {character:?}, a character the model has not seen in training"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl ColumnDecoder {
    /// An encoder that reads the columns from these fields of a record.
    pub(super) fn encoder(&self, fields: &[usize]) -> Encoder {
        Encoder::new(&self.columns, fields, self.missing_allowed).counting_into(&self.unseen)
    }

    /// Appends a record whose fields are in column order.
    pub(super) fn push_in_order<'a>(
        &self,
        field: impl Fn(usize) -> &'a [u8],
        row: u64,
        batch: &mut Batch,
    ) -> Result<()> {
        self.push(&self.in_order, field, row, batch)
    }

    /// Appends the target of a label, if labels are read.
    pub(super) fn push_label(&self, label: Option<&[u8]>, row: u64, batch: &mut Batch) -> Result<()> {
        let Some(labels) = &self.labels else { return Ok(()) };
        let name = self.label.as_deref().unwrap_or_default();
        let mut targets = labels.targets(1);
        push_target(labels, name, label.unwrap_or_default(), &mut targets)
            .map_err(|problem| problem.at_input(row))?;
        match (targets, &mut batch.targets) {
            (TargetBuilder::Classes(classes), Targets::Classes(into)) => into.extend(classes),
            (TargetBuilder::Values(values), Targets::Values(into)) => {
                into.extend(values.iter().map(|&value| self.transform.target(value)));
            }
            _ => return Err(wrong_batch()),
        }
        Ok(())
    }

    /// Appends a record with a field for every column.
    pub(super) fn push<'a>(
        &self,
        encoder: &Encoder,
        field: impl Fn(usize) -> &'a [u8],
        row: u64,
        batch: &mut Batch,
    ) -> Result<()> {
        match &mut batch.features {
            Features::Dense(values) => {
                let mut numbers = Vec::with_capacity(self.columns.len());
                encoder.row(field, &mut numbers).map_err(|problem| problem.at_input(row))?;
                self.transform.apply(numbers.into_iter(), values);
                Ok(())
            }
            Features::Sparse { .. } => {
                let mut dense = Vec::with_capacity(self.columns.len());
                encoder.row(field, &mut dense).map_err(|problem| problem.at_input(row))?;
                let stored = dense.iter().enumerate().filter(|(_, value)| **value != 0.0);
                self.push_sparse(stored.map(|(column, &value)| (column as u32, value as f32)), batch)
            }
            Features::Tokens { .. } => Err(wrong_batch()),
        }
    }

    /// Appends a sparse row; columns count from 0, ascending.
    pub(super) fn push_sparse(&self, row: impl Iterator<Item = (u32, f32)>, batch: &mut Batch) -> Result<()> {
        let Features::Sparse { starts, columns, values } = &mut batch.features else {
            return Err(wrong_batch());
        };
        for (column, value) in row {
            columns.push(column);
            values.push(value * self.transform.factor(column));
        }
        starts.push(values.len());
        Ok(())
    }

    /// The column names for a message, abbreviated.
    pub(super) fn column_list(&self) -> String {
        join_names(&self.columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>())
    }

    pub(super) fn missing_value(&self, row: u64, name: &str) -> Error {
        ValueError::missing(name).at_input(row)
    }
}

fn wrong_batch() -> Error {
    Error::internal("records were read into a batch of another shape; use Records::empty_batch")
}
