//! A set of rows that can be loaded into batches.

use crate::block::{Block, BlockFeatures};
use crate::block_cache::{BlockCache, BlockRef};
use crate::format::RowSource;
use crate::row_transform::RowTransform;
use crate::sampler::WINDOW_BYTES;
use crate::selection::Selection;
use crate::table::unseen::UnseenCategory;
use std::fmt;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};
use thalweg_core::schema::Schema;
use thalweg_core::{Batch, Error, Features, Result, Targets, progress};

/// A source with its cache of decoded blocks, shared by the row sets of its split.
pub(crate) struct BlockStore {
    pub(crate) source: Arc<dyn RowSource>,
    cache: BlockCache,
}

impl BlockStore {
    /// Caches up to `memory` bytes of decoded blocks, and at least one sampler window: with less, each step
    /// would decode every block of its window again.
    pub(crate) fn new(source: Arc<dyn RowSource>, memory: u64) -> Arc<BlockStore> {
        let blocks = source.blocks();
        let bytes = blocks.rows().saturating_mul(source.row_bytes());
        let cache = BlockCache::new(blocks.len(), bytes, memory.max(WINDOW_BYTES / 4 * 5));
        Arc::new(BlockStore { source, cache })
    }

    pub(crate) fn block(&self, number: usize) -> Result<BlockRef<'_>> {
        self.cache.get(number, || {
            let block = self.source.decode(number)?;
            progress::advance();
            Ok(block)
        })
    }
}

/// A set of rows of a source; cheap to clone.
#[derive(Clone)]
pub struct Rows {
    store: Arc<BlockStore>,
    selection: Arc<Selection>,
    transform: Arc<OnceLock<RowTransform>>,
    empty: Arc<Batch>,
}

impl Rows {
    pub(crate) fn new(
        store: Arc<BlockStore>,
        selection: Selection,
        transform: Arc<OnceLock<RowTransform>>,
        schema: &Schema,
    ) -> Rows {
        let empty = Batch::empty(schema.width(), schema.empty_features(), schema.empty_targets());
        Rows { store, selection: Arc::new(selection), transform, empty: Arc::new(empty) }
    }

    pub(crate) fn with_transform(&self, transform: Arc<OnceLock<RowTransform>>) -> Rows {
        Rows { transform, ..self.clone() }
    }

    pub(crate) fn with_selection(&self, selection: Selection) -> Rows {
        Rows { selection: Arc::new(selection), ..self.clone() }
    }

    /// Number of rows.
    pub fn len(&self) -> u64 {
        self.selection.len()
    }

    /// Whether the set has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An empty batch of the right shape.
    pub fn empty_batch(&self) -> Batch {
        Batch::clone(&self.empty)
    }

    /// Id of the `index`-th row of the set, in source order; `index` must be below [`Rows::len`].
    pub fn id(&self, index: u64) -> u64 {
        self.selection.id(index)
    }

    /// Ids of all rows of the set, in source order. An iterator, because the set may not fit into memory.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.selection.ids()
    }

    /// Rows of the whole source: the exclusive upper bound of ids.
    pub fn source_len(&self) -> u64 {
        self.selection.blocks().rows()
    }

    /// Categories that did not occur in training, in the rows loaded so far.
    pub fn unseen_categories(&self) -> Vec<UnseenCategory> {
        self.store.source.unseen_categories()
    }

    /// Messages for the user about how the source is read.
    pub fn notices(&self) -> &[String] {
        self.store.source.notices()
    }

    pub(crate) fn checksums(&self) -> &[u32] {
        self.store.source.checksums()
    }

    pub(crate) fn store(&self) -> &BlockStore {
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

    /// Replaces the rows of a batch by these, imputed and scaled. Allocation-free once the batch has grown to
    /// size.
    pub fn load(&self, ids: &[u64], epoch: u64, batch: &mut Batch) -> Result<()> {
        let transform = self
            .transform
            .get()
            .ok_or_else(|| Error::internal("rows were loaded before their scaling was fitted"))?;
        batch.clear();
        batch.epoch = epoch;
        batch.width = self.empty.width;
        batch.rows.extend_from_slice(ids);
        // Rows are scattered in memory: the next row is prefetched while the current one is copied.
        let mut ahead: Option<(usize, BlockRef<'_>, usize)> = None;
        for &id in ids {
            if id >= self.source_len() {
                return Err(Error::internal(format!("row {id} of a source of {} rows", self.source_len())));
            }
            let blocks = self.selection.blocks();
            let number = blocks.block_of(id);
            let block = match &ahead {
                Some((at, block, _)) if *at == number => block.clone(),
                _ => self.store.block(number)?,
            };
            let row = (id - blocks.range(number).start) as usize;
            prefetch(&block, row, batch.width);
            if let Some((_, block, row)) = ahead.replace((number, block, row)) {
                copy_row(&block, row, transform, batch)?;
            }
        }
        if let Some((_, block, row)) = ahead {
            copy_row(&block, row, transform, batch)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows {{ {} of {} }}", self.len(), self.source_len())
    }
}

/// Reads one value per cache line of a row, to load it into the cache.
fn prefetch(block: &Block, row: usize, width: usize) {
    /// Bytes per cache line.
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

fn copy_row(block: &Block, row: usize, transform: &RowTransform, batch: &mut Batch) -> Result<()> {
    let width = batch.width;
    match (&block.features, &mut batch.features) {
        (BlockFeatures::Dense(from), Features::Dense(into)) => {
            transform.apply_encoded(&from[row * width..(row + 1) * width], &block.offsets, into);
        }
        (BlockFeatures::Pixels(from), Features::Dense(into)) => {
            transform.apply_pixels(&from[row * width..(row + 1) * width], into);
        }
        (
            BlockFeatures::Sparse { starts, columns, values },
            Features::Sparse { starts: into_starts, columns: into_columns, values: into_values },
        ) => {
            let stored = starts[row]..starts[row + 1];
            into_columns.extend_from_slice(&columns[stored.clone()]);
            into_values.extend(stored.map(|index| values[index] * transform.factor(columns[index])));
            into_starts.push(into_values.len());
        }
        (BlockFeatures::Text(from), Features::Tokens { symbols, window, .. }) => {
            symbols.extend_from_slice(&from[row..row + *window]);
            if let Targets::Classes(classes) = &mut batch.targets {
                classes.push(from[row + *window]);
            }
            return Ok(());
        }
        _ => return Err(wrong_batch()),
    }
    match (&block.targets, &mut batch.targets) {
        (Targets::Classes(from), Targets::Classes(into)) => into.push(from[row]),
        (Targets::Values(from), Targets::Values(into)) => {
            into.push(transform.target(f64::from(from[row]) + block.target_offset))
        }
        _ => return Err(wrong_batch()),
    }
    Ok(())
}

fn wrong_batch() -> Error {
    Error::internal("rows were loaded into a batch of another shape; use Rows::empty_batch")
}
