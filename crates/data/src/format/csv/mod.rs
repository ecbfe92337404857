//! Tables as text: comma-, semicolon-, tab-, bar- or space-separated.
//!
//! `open` samples the first rows to learn the dialect, the header and the kind of each column, then passes once over
//! all files: how many fields each line has, which labels and categories there are, where blocks begin. Numbers are
//! parsed only when a block is decoded, so a rank meets the bad values of its own share.

pub(crate) mod dialect;
pub(crate) mod fields;
pub(crate) mod header;
pub(crate) mod index;
pub(crate) mod kinds;
pub(crate) mod sample;

use super::{Opened, Source, indexed};
use crate::block::{Block, Blocks};
use crate::extent::{Extent, blocks};
use crate::raw::Raw;
use crate::table::encoder::{Encoder, missing_allowed, push_target};
use crate::table::labels::Labels;
use crate::table::problem::Problem;
use crate::table::unseen::UnseenCategory;
use fields::FieldReader;
use std::sync::Arc;
use thalweg_core::Result;
use thalweg_core::schema::{Column, Scaling, Schema, Shape, TargetScaling};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::delimiter::Delimiter;

/// Indexed files of a table.
pub(crate) struct Csv {
    files: Vec<Raw>,
    checksums: Vec<u32>,
    delimiter: Delimiter,
    /// Where each block stands.
    extents: Vec<Extent>,
    blocks: Arc<Blocks>,
    encoder: Encoder,
    labels: Labels,
    label: usize,
    label_name: String,
    notices: Vec<String>,
}

/// Indexes the files of a table.
pub(crate) fn open(files: Vec<Raw>, spec: &DataSpec, known: Option<&Schema>) -> Result<Opened> {
    let plan = header::plan(&files, spec, known)?;
    let (index, checksums) =
        indexed("table", &files, spec, known, || index::pass(&files, &plan, spec, known))?;
    let columns: Vec<Column> = match known.map(|schema| &schema.shape) {
        Some(Shape::Table { columns }) => columns.clone(),
        _ => index.columns(&plan, spec.missing),
    };
    let missing_allowed = missing_allowed(&columns, spec, known);
    let label_name = plan.names[plan.label].clone();
    let schema = known.cloned().unwrap_or_else(|| Schema {
        shape: Shape::Table { columns: columns.clone() },
        task: index.task,
        label: Some(label_name.clone()),
        classes: index.classes.clone(),
        scaling: Scaling::default(),
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: plan.names.clone(),
    });
    let source = Csv {
        delimiter: plan.delimiter,
        blocks: Arc::new(blocks(&index.extents)),
        extents: index.extents,
        encoder: Encoder::new(&columns, &plan.inputs, missing_allowed),
        labels: Labels::known(index.task, &index.classes),
        label: plan.label,
        label_name,
        notices: [plan.notices, index.notices].concat(),
        files,
        checksums,
    };
    Ok(Opened { source: Arc::new(source), schema, held: None })
}

impl Source for Csv {
    fn blocks(&self) -> &Arc<Blocks> {
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

    fn unseen(&self) -> Vec<UnseenCategory> {
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
                return Err(self.locate(problem, file, extent.start + record.offset()));
            }
            rows.push(&row);
        }
        if targets.len() as u64 != extent.rows {
            return Err(file.changed());
        }
        Ok(Arc::new(Block::of_table(rows.finish(), targets)))
    }
}

impl Csv {
    fn locate(&self, problem: Problem, file: &Raw, offset: u64) -> thalweg_core::Error {
        match place(file, offset) {
            Ok(place) => problem.at(&place),
            Err(error) => error,
        }
    }
}

/// `people.csv line 17`.
pub(crate) fn place(file: &Raw, offset: u64) -> Result<String> {
    Ok(format!("{} line {}", file.name(), file.line(offset)?))
}
