//! What a row to be predicted has to provide, and how it is appended to a batch.

use crate::narrow::WideTargets;
use crate::rows::Preparation;
use crate::table::encoder::{Encoder, push_target};
use crate::table::labels::Labels;
use crate::table::placement::{ModelColumns, listed};
use crate::table::problem::Problem;
use crate::table::unseen::Unseen;
use std::collections::HashMap;
use thalweg_core::schema::{Column, Encoding, Schema, Shape};
use thalweg_core::{Batch, Error, Features, Result, Targets};

/// The form of rows, from a stored schema.
pub(super) enum Form {
    /// Named columns that become numbers, dense or sparse.
    Columns(Box<ColumnForm>),
    /// The last characters of a text.
    Text { window: usize, numbers: HashMap<char, u32> },
}

/// Named columns.
pub(super) struct ColumnForm {
    pub(super) columns: Vec<Column>,
    pub(super) label: Option<String>,
    pub(super) places: ModelColumns,
    /// Where the fields of arrays stand, by their number; found with the first array.
    pub(super) array: Option<ArrayFields>,
    /// For fields in the order of the columns.
    in_order: Encoder,
    /// What labels mean, if they are read.
    labels: Option<Labels>,
    /// For sparse rows, the number of the first column.
    pub(super) sparse: Option<u64>,
    missing_allowed: bool,
    preparation: Preparation,
    /// Categories that did not occur in training.
    pub(super) unseen: Unseen,
}

/// The fields of an array of `count` values.
pub(super) struct ArrayFields {
    pub(super) count: usize,
    pub(super) inputs: Vec<usize>,
    pub(super) label: Option<usize>,
}

impl Form {
    /// The form of a schema's rows.
    pub(super) fn of(schema: &Schema) -> Form {
        let numbered = |names: Vec<String>| {
            let column = |name| Column { name, encoding: Encoding::Number { imputed: None } };
            names.into_iter().map(column).collect::<Vec<_>>()
        };
        let (columns, sparse) = match &schema.shape {
            Shape::Table { columns } => (columns.clone(), None),
            Shape::Image { .. } => {
                (numbered((0..schema.width()).map(|pixel| format!("p{pixel}")).collect()), None)
            }
            Shape::Sparse { columns, first } => {
                let names = (*first..first + columns).map(|column| column.to_string()).collect();
                (numbered(names), Some(*first as u64))
            }
            Shape::Text { window, alphabet } => {
                let numbers =
                    alphabet.iter().enumerate().map(|(number, &character)| (character, number as u32));
                return Form::Text { window: *window, numbers: numbers.collect() };
            }
        };
        let imputed = |column: &Column| matches!(column.encoding, Encoding::Number { imputed: Some(_) });
        let missing_allowed = columns.iter().any(imputed);
        let order: Vec<usize> = (0..columns.len()).collect();
        let unseen = Unseen::default();
        Form::Columns(Box::new(ColumnForm {
            places: ModelColumns::new(&columns, schema),
            array: None,
            in_order: Encoder::new(&columns, &order, missing_allowed).noting(&unseen),
            labels: None,
            missing_allowed,
            columns,
            label: schema.label.clone(),
            sparse,
            preparation: Preparation::new(schema),
            unseen,
        }))
    }

    /// From now on labels are read too.
    pub(super) fn read_labels(&mut self, schema: &Schema) -> Result<()> {
        match self {
            Form::Columns(form) if form.label.is_some() => {
                form.labels = Some(Labels::known(schema.task, &schema.classes));
                Ok(())
            }
            _ => Err(Error::data("only rows of tables have a label beside their values")
                .hint("measure the model on a source such as the one it was trained on")),
        }
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(self, Form::Text { .. })
    }

    /// Appends the end of a text.
    pub(super) fn push_text(&self, text: &str, row: u64, batch: &mut Batch) -> Result<()> {
        let (Form::Text { window, numbers }, Features::Tokens { symbols, .. }) = (self, &mut batch.features)
        else {
            return Err(foreign());
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

impl ColumnForm {
    /// Reads the columns from these fields of a record.
    pub(super) fn encoder(&self, fields: &[usize]) -> Encoder {
        Encoder::new(&self.columns, fields, self.missing_allowed).noting(&self.unseen)
    }

    /// Appends a record whose fields stand in the order of the columns.
    pub(super) fn push_in_order<'a>(
        &self,
        field: impl Fn(usize) -> &'a [u8],
        row: u64,
        batch: &mut Batch,
    ) -> Result<()> {
        self.push(&self.in_order, field, row, batch)
    }

    /// Appends the target that a label spells, if labels are read.
    pub(super) fn push_label(&self, label: Option<&[u8]>, row: u64, batch: &mut Batch) -> Result<()> {
        let Some(labels) = &self.labels else { return Ok(()) };
        let name = self.label.as_deref().unwrap_or_default();
        let mut targets = labels.targets(1);
        push_target(labels, name, label.unwrap_or_default(), &mut targets)
            .map_err(|problem| problem.at_input(row))?;
        match (targets, &mut batch.targets) {
            (WideTargets::Classes(classes), Targets::Classes(into)) => into.extend(classes),
            (WideTargets::Values(values), Targets::Values(into)) => {
                into.extend(values.iter().map(|&value| self.preparation.target(value)));
            }
            _ => return Err(foreign()),
        }
        Ok(())
    }

    /// Appends a record, all columns spelled out.
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
                self.preparation.finish(numbers.into_iter(), values);
                Ok(())
            }
            Features::Sparse { .. } => {
                let mut dense = Vec::with_capacity(self.columns.len());
                encoder.row(field, &mut dense).map_err(|problem| problem.at_input(row))?;
                let stored = dense.iter().enumerate().filter(|(_, value)| **value != 0.0);
                self.push_sparse(stored.map(|(column, &value)| (column as u32, value as f32)), batch)
            }
            Features::Tokens { .. } => Err(foreign()),
        }
    }

    /// Appends a sparse row, columns counted from 0 and ascending.
    pub(super) fn push_sparse(&self, row: impl Iterator<Item = (u32, f32)>, batch: &mut Batch) -> Result<()> {
        let Features::Sparse { starts, columns, values } = &mut batch.features else { return Err(foreign()) };
        for (column, value) in row {
            columns.push(column);
            values.push(value * self.preparation.factor(column));
        }
        starts.push(values.len());
        Ok(())
    }

    /// The names of the columns, the first of many.
    pub(super) fn listed(&self) -> String {
        listed(&self.columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>())
    }

    /// The column of that name is not there.
    pub(super) fn lacks(&self, row: u64, name: &str) -> Error {
        Problem::missing(name).at_input(row)
    }
}

fn foreign() -> Error {
    Error::internal("records were read into a batch of another form; use Records::empty_batch")
}
