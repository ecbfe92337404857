//! Tables as text, separated by comma, semicolon, tab, bar or spaces.
//!
//! `open` samples the first rows to detect dialect, header and column kinds, then passes over all files once:
//! it checks the number of fields per line, collects labels and categories, and finds block boundaries.
//! Numbers are parsed when a block is decoded, so a rank only reports invalid values in its own blocks.

pub(crate) mod dialect;
pub(crate) mod fields;
pub(crate) mod index;
pub(crate) mod kinds;
pub(crate) mod layout;
pub(crate) mod sample;

use super::{OpenedSource, RowSource, index_files};
use crate::block::{Block, BlockIndex};
use crate::extent::{Extent, block_index};
use crate::file_bytes::FileBytes;
use crate::table::encoder::{Encoder, missing_allowed, push_target};
use crate::table::labels::LabelEncoding;
use crate::table::unseen::UnseenCategory;
use crate::table::value_error::ValueError;
use fields::FieldReader;
use std::sync::Arc;
use thalweg_core::Result;
use thalweg_core::schema::{Column, RowShape, Scaling, Schema, TargetScaling};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::delimiter::Delimiter;

pub(crate) struct CsvSource {
    files: Vec<FileBytes>,
    checksums: Vec<u32>,
    delimiter: Delimiter,
    extents: Vec<Extent>,
    blocks: Arc<BlockIndex>,
    encoder: Encoder,
    labels: LabelEncoding,
    label: usize,
    label_name: String,
    notices: Vec<String>,
}

pub(crate) fn open(files: Vec<FileBytes>, spec: &DataSpec, known: Option<&Schema>) -> Result<OpenedSource> {
    let layout = layout::detect(&files, spec, known)?;
    let (index, checksums) =
        index_files("table", &files, spec, known, || index::pass(&files, &layout, spec, known))?;
    let columns: Vec<Column> = match known.map(|schema| &schema.shape) {
        Some(RowShape::Table { columns }) => columns.clone(),
        _ => index.columns(&layout, spec.missing),
    };
    let missing_allowed = missing_allowed(&columns, spec, known);
    let label_name = layout.names[layout.label].clone();
    let schema = known.cloned().unwrap_or_else(|| Schema {
        shape: RowShape::Table { columns: columns.clone() },
        task: index.task,
        label: Some(label_name.clone()),
        classes: index.classes.clone(),
        scaling: Scaling::default(),
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: layout.names.clone(),
    });
    let source = CsvSource {
        delimiter: layout.delimiter,
        blocks: Arc::new(block_index(&index.extents)),
        extents: index.extents,
        encoder: Encoder::new(&columns, &layout.inputs, missing_allowed),
        labels: LabelEncoding::new(index.task, &index.classes),
        label: layout.label,
        label_name,
        notices: [layout.notices, index.notices].concat(),
        files,
        checksums,
    };
    Ok(OpenedSource { source: Arc::new(source), schema, validation: None })
}

impl RowSource for CsvSource {
    fn blocks(&self) -> &Arc<BlockIndex> {
        &self.blocks
    }

    fn row_bytes(&self) -> u64 {
        self.encoder.width() as u64 * 4 + 8
    }

    fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn unseen_categories(&self) -> Vec<UnseenCategory> {
        self.encoder.unseen().list()
    }

    fn decode(&self, block: usize) -> Result<Arc<Block>> {
        let extent = &self.extents[block];
        let file = &self.files[extent.file];
        let bytes = file.slice(extent.start..extent.end)?;
        let mut reader = FieldReader::new(&bytes[..], self.delimiter);
        let mut rows = self.encoder.rows(extent.rows as usize);
        let mut row = Vec::with_capacity(self.encoder.width());
        let mut targets = self.labels.targets(extent.rows as usize);
        while let Some(record) = reader.next(file.name())? {
            let field = |number: usize| record.field(number);
            row.clear();
            let done = self
                .encoder
                .row(field, &mut row)
                .and_then(|()| push_target(&self.labels, &self.label_name, field(self.label), &mut targets));
            if let Err(problem) = done {
                return Err(self.at_location(problem, file, extent.start + record.offset()));
            }
            rows.push(&row);
        }
        if targets.len() as u64 != extent.rows {
            return Err(file.changed_error());
        }
        Ok(Arc::new(Block::from_encoded(rows.finish(), targets)))
    }
}

impl CsvSource {
    fn at_location(&self, problem: ValueError, file: &FileBytes, offset: u64) -> thalweg_core::Error {
        match location(file, offset) {
            Ok(location) => problem.at(&location),
            Err(error) => error,
        }
    }
}

/// `people.csv line 17`, for messages.
pub(crate) fn location(file: &FileBytes, offset: u64) -> Result<String> {
    Ok(format!("{} line {}", file.name(), file.line(offset)?))
}
