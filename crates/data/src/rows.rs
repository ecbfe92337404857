//! A set of rows, ready to be loaded into batches.

use crate::block::{Block, BlockFeatures};
use crate::cache::{Cache, Held};
use crate::format::Source;
use crate::sampler::WINDOW_BYTES;
use crate::selection::Selection;
use crate::table::unseen::UnseenCategory;
use std::fmt;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};
use thalweg_core::schema::{Encoding, Schema, Shape};
use thalweg_core::{Batch, Error, Features, Result, Targets, progress};

/// A source with its cache of decoded blocks, shared by all sets of rows cut from it.
pub(crate) struct Store {
    pub(crate) source: Arc<dyn Source>,
    cache: Cache,
}

impl Store {
    /// Keeps decoded blocks up to so many bytes, and at least what the sampler permutes together: with less, each
    /// step would decode every block of its window again.
    pub(crate) fn new(source: Arc<dyn Source>, memory: u64) -> Arc<Store> {
        let blocks = source.blocks();
        let bytes = blocks.rows().saturating_mul(source.row_bytes());
        let cache = Cache::new(blocks.len(), bytes, memory.max(WINDOW_BYTES / 4 * 5));
        Arc::new(Store { source, cache })
    }

    /// A decoded block.
    pub(crate) fn block(&self, number: usize) -> Result<Held<'_>> {
        self.cache.get(number, || {
            let block = self.source.decode(number)?;
            progress::advance();
            Ok(block)
        })
    }
}

/// How decoded rows become what a model sees; fitted once, seen by every set of rows.
#[derive(Debug)]
pub(crate) struct Preparation {
    schema: Schema,
    /// What is done to each number of a row; empty if one factor is all there is to do.
    steps: Vec<Step>,
    /// That factor.
    uniform: f32,
}

/// What is done to a number: in double precision, of which the result is rounded once.
#[derive(Clone, Copy, Debug)]
struct Step {
    shift: f64,
    factor: f64,
    /// What a missing value becomes, scaled.
    imputed: f32,
}

impl Step {
    fn apply(&self, value: f64, offset: f64) -> f32 {
        let scaled = ((value - (self.shift - offset)) * self.factor) as f32;
        if value.is_nan() { self.imputed } else { scaled }
    }
}

impl Preparation {
    /// From a schema with its scaling.
    pub(crate) fn new(schema: &Schema) -> Preparation {
        let scaling = &schema.scaling;
        let mut imputed: Vec<Option<f64>> = Vec::new();
        if let Shape::Table { columns } = &schema.shape {
            for column in columns {
                match column.encoding {
                    Encoding::Number { imputed: value } => imputed.push(value),
                    Encoding::OneHot { .. } => imputed.resize(imputed.len() + column.encoding.width(), None),
                }
            }
        }
        let missing = imputed.iter().any(Option::is_some);
        let steps = match (scaling.shift.as_slice(), scaling.factor.as_slice()) {
            ([], [] | [_]) if !missing => Vec::new(),
            _ if matches!(schema.shape, Shape::Sparse { .. } | Shape::Text { .. }) => Vec::new(),
            _ => (0..schema.width())
                .map(|place| Step {
                    shift: scaling.shift(place),
                    factor: f64::from(scaling.factor(place)),
                    imputed: match imputed.get(place) {
                        Some(Some(value)) => scaling.apply(place, *value),
                        _ => f32::NAN,
                    },
                })
                .collect(),
        };
        Preparation { schema: schema.clone(), steps, uniform: scaling.factor(0) }
    }

    /// Appends a row with what is missing filled in, scaled.
    pub(crate) fn finish(&self, row: impl Iterator<Item = f64>, into: &mut Vec<f32>) {
        match self.steps.is_empty() {
            true => into.extend(row.map(|value| (value * f64::from(self.uniform)) as f32)),
            false => into.extend(row.zip(&self.steps).map(|(value, step)| step.apply(value, 0.0))),
        }
    }

    /// The same for a row that is kept as distances from these offsets, if there are any.
    fn finish_narrowed(&self, row: &[f32], offsets: &[f64], into: &mut Vec<f32>) {
        let wide = row.iter().map(|&value| f64::from(value));
        match (self.steps.is_empty(), offsets.is_empty()) {
            (true, true) => into.extend(row.iter().map(|value| value * self.uniform)),
            (true, false) => self.finish(wide.zip(offsets).map(|(value, offset)| value + offset), into),
            (false, true) => self.finish(wide, into),
            (false, false) => {
                let steps = self.steps.iter().zip(offsets);
                into.extend(wide.zip(steps).map(|(value, (step, &offset))| step.apply(value, offset)));
            }
        }
    }

    /// A target as the model sees it.
    pub(crate) fn target(&self, value: f64) -> f32 {
        self.schema.target.apply(value)
    }

    /// What a sparse value of a column is multiplied by.
    pub(crate) fn factor(&self, column: u32) -> f32 {
        self.schema.scaling.factor.get(column as usize).copied().unwrap_or(1.0)
    }
}

/// A set of rows of a source: cheap to clone, safe to share.
#[derive(Clone)]
pub struct Rows {
    store: Arc<Store>,
    selection: Arc<Selection>,
    preparation: Arc<OnceLock<Preparation>>,
    empty: Arc<Batch>,
}

impl Rows {
    pub(crate) fn new(
        store: Arc<Store>,
        selection: Selection,
        preparation: Arc<OnceLock<Preparation>>,
        schema: &Schema,
    ) -> Rows {
        let empty = Batch::empty(schema.width(), schema.empty_features(), schema.empty_targets());
        Rows { store, selection: Arc::new(selection), preparation, empty: Arc::new(empty) }
    }

    /// How many rows there are.
    pub fn len(&self) -> u64 {
        self.selection.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A batch without rows, of the form these rows have.
    pub fn empty_batch(&self) -> Batch {
        Batch::clone(&self.empty)
    }

    /// The id of the `index`-th row of this set, in the order of the source; `index` must be below [`Rows::len`].
    pub fn id(&self, index: u64) -> u64 {
        self.selection.id(index)
    }

    /// The ids of all rows of this set, in the order of the source, one after the other: a set may be too large for a
    /// list.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.selection.ids()
    }

    /// Rows of the whole source: every id is below it.
    pub fn source_len(&self) -> u64 {
        self.selection.blocks().rows()
    }

    /// Categories that did not occur in training, in the rows loaded so far.
    pub fn unseen_categories(&self) -> Vec<UnseenCategory> {
        self.store.source.unseen()
    }

    /// What the user had better know about how the source is read.
    pub fn notices(&self) -> &[String] {
        self.store.source.notices()
    }

    pub(crate) fn checksums(&self) -> &[u32] {
        self.store.source.checksums()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn shares_source(&self, other: &Rows) -> bool {
        Arc::ptr_eq(&self.store, &other.store)
    }

    pub(crate) fn selection(&self) -> Arc<Selection> {
        self.selection.clone()
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        self.store.source.row_bytes()
    }

    /// Replaces the rows of a batch by these, scaled and with missing values filled in. After a few calls it takes no
    /// new memory.
    pub fn load(&self, ids: &[u64], epoch: u64, batch: &mut Batch) -> Result<()> {
        let preparation = self
            .preparation
            .get()
            .ok_or_else(|| Error::internal("rows were loaded before their scaling was fitted"))?;
        batch.clear();
        batch.epoch = epoch;
        batch.width = self.empty.width;
        batch.rows.extend_from_slice(ids);
        // Rows lie anywhere: the next one's memory is on its way while this one is copied.
        let mut ahead: Option<(usize, Held<'_>, usize)> = None;
        for &id in ids {
            if id >= self.source_len() {
                return Err(Error::internal(format!("row {id} of a source of {} rows", self.source_len())));
            }
            let blocks = self.selection.blocks();
            let number = blocks.find(id);
            let block = match &ahead {
                Some((at, block, _)) if *at == number => block.clone(),
                _ => self.store.block(number)?,
            };
            let row = (id - blocks.range(number).start) as usize;
            touch(&block, row, batch.width);
            if let Some((_, block, row)) = ahead.replace((number, block, row)) {
                copy_row(&block, row, preparation, batch)?;
            }
        }
        if let Some((_, block, row)) = ahead {
            copy_row(&block, row, preparation, batch)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows {{ {} of {} }}", self.len(), self.source_len())
    }
}

/// Reads a number of each cache line of a row, so that it is there when the row's turn comes.
fn touch(block: &Block, row: usize, width: usize) {
    /// Bytes that the processor fetches together.
    const LINE: usize = 64;
    match &block.features {
        BlockFeatures::Pixels(from) => {
            let row = &from[row * width..(row + 1) * width];
            black_box(row.iter().step_by(LINE).fold(0, |all, pixel| all ^ pixel));
        }
        BlockFeatures::Dense(from) => {
            let row = &from[row * width..(row + 1) * width];
            black_box(
                row.iter().step_by(LINE / size_of::<f32>()).fold(0, |all, value| all ^ value.to_bits()),
            );
        }
        BlockFeatures::Sparse { .. } | BlockFeatures::Text(_) => {}
    }
}

/// Appends one row of a block to a batch.
fn copy_row(block: &Block, row: usize, preparation: &Preparation, batch: &mut Batch) -> Result<()> {
    let width = batch.width;
    match (&block.features, &mut batch.features) {
        (BlockFeatures::Dense(from), Features::Dense(into)) => {
            preparation.finish_narrowed(&from[row * width..(row + 1) * width], &block.offsets, into);
        }
        (BlockFeatures::Pixels(from), Features::Dense(into)) => {
            let pixels = from[row * width..(row + 1) * width].iter();
            match preparation.steps.is_empty() {
                true => into.extend(pixels.map(|&pixel| f32::from(pixel) * preparation.uniform)),
                false => preparation.finish(pixels.map(|&pixel| f64::from(pixel)), into),
            }
        }
        (
            BlockFeatures::Sparse { starts, columns, values },
            Features::Sparse { starts: into_starts, columns: into_columns, values: into_values },
        ) => {
            let stored = starts[row]..starts[row + 1];
            into_columns.extend_from_slice(&columns[stored.clone()]);
            into_values.extend(stored.map(|place| values[place] * preparation.factor(columns[place])));
            into_starts.push(into_values.len());
        }
        (BlockFeatures::Text(from), Features::Tokens { symbols, window, .. }) => {
            symbols.extend_from_slice(&from[row..row + *window]);
            if let Targets::Classes(classes) = &mut batch.targets {
                classes.push(from[row + *window]);
            }
            return Ok(());
        }
        _ => return Err(foreign_batch()),
    }
    match (&block.targets, &mut batch.targets) {
        (Targets::Classes(from), Targets::Classes(into)) => into.push(from[row]),
        (Targets::Values(from), Targets::Values(into)) => {
            into.push(preparation.target(f64::from(from[row]) + block.target_offset))
        }
        _ => return Err(foreign_batch()),
    }
    Ok(())
}

fn foreign_batch() -> Error {
    Error::internal("rows were loaded into a batch of another form; use Rows::empty_batch")
}
