//! Blocks: the unit of indexing, decoding and caching.

use crate::file_bytes::ByteSlice;
use crate::offset_encoding::{EncodedRows, GapHistogram, TargetBuilder};
use thalweg_core::Targets;

/// Maximum rows per block. Part of the format: the split and the sampler draw by block.
pub(crate) const BLOCK_ROWS: u64 = 4096;

/// Approximate source bytes per block, for long rows.
pub(crate) const BLOCK_BYTES: u64 = 4 << 20;

/// Row range of each block.
#[derive(Clone, Debug)]
pub(crate) struct BlockIndex {
    /// First row of each block, then the total number of rows.
    starts: Vec<u64>,
}

impl BlockIndex {
    pub(crate) fn from_sizes(sizes: impl IntoIterator<Item = u64>) -> BlockIndex {
        let mut starts = vec![0];
        let mut next = 0;
        for size in sizes {
            next += size;
            starts.push(next);
        }
        BlockIndex { starts }
    }

    /// Blocks of equal size; only the last may be shorter.
    pub(crate) fn even(rows: u64, size: u64) -> BlockIndex {
        let whole = (0..rows / size).map(|_| size);
        BlockIndex::from_sizes(whole.chain((!rows.is_multiple_of(size)).then_some(rows % size)))
    }

    pub(crate) fn rows(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    pub(crate) fn range(&self, block: usize) -> std::ops::Range<u64> {
        self.starts[block]..self.starts[block + 1]
    }

    /// The block that holds a row; `row` must be below [`BlockIndex::rows`].
    pub(crate) fn block_of(&self, row: u64) -> usize {
        self.starts.partition_point(|&start| start <= row) - 1
    }
}

/// Decoded rows of a block, before scaling.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) features: BlockFeatures,
    /// One target per row; empty for text, where the next character is the target.
    pub(crate) targets: Targets,
    /// Offset subtracted from each column of a dense row; empty if all are 0.
    pub(crate) offsets: Vec<f64>,
    /// Offset subtracted from regression targets.
    pub(crate) target_offset: f64,
    /// Gaps between values, for columns whose values exceed single precision.
    pub(crate) gaps: Vec<(u32, GapHistogram)>,
}

#[derive(Debug)]
pub(crate) enum BlockFeatures {
    /// Row-major; NaN is a missing value.
    Dense(Vec<f32>),
    /// Row-major bytes.
    Pixels(ByteSlice),
    /// Compressed sparse rows, as in a batch.
    Sparse { starts: Vec<usize>, columns: Vec<u32>, values: Vec<f32> },
    /// Consecutive characters: row `i` of the block starts at character `i`.
    Text(Vec<u32>),
}

impl Block {
    /// Rows stored without offsets.
    pub(crate) fn new(features: BlockFeatures, targets: Targets) -> Block {
        Block { features, targets, offsets: Vec::new(), target_offset: 0.0, gaps: Vec::new() }
    }

    pub(crate) fn from_encoded(rows: EncodedRows, targets: TargetBuilder) -> Block {
        let (targets, target_offset) = targets.finish();
        let EncodedRows { features, offsets, gaps } = rows;
        Block { features: BlockFeatures::Dense(features), targets, offsets, target_offset, gaps }
    }

    /// Memory held by this block.
    pub(crate) fn bytes(&self) -> u64 {
        let features = match &self.features {
            BlockFeatures::Dense(values) => values.len() * 4,
            BlockFeatures::Pixels(slice) => slice.owned_bytes(),
            BlockFeatures::Sparse { starts, columns, values } => {
                starts.len() * 8 + columns.len() * 4 + values.len() * 4
            }
            BlockFeatures::Text(symbols) => symbols.len() * 4,
        };
        (features + self.targets.len() * 4 + self.offsets.len() * 8) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_in_their_blocks() {
        let blocks = BlockIndex::from_sizes([3, 1, 4]);
        assert_eq!((blocks.rows(), blocks.len()), (8, 3));
        let found: Vec<usize> = (0..8).map(|row| blocks.block_of(row)).collect();
        assert_eq!(found, [0, 0, 0, 1, 2, 2, 2, 2]);
        assert_eq!(blocks.range(2), 4..8);
    }

    #[test]
    fn even_blocks_end_with_a_short_one() {
        let blocks = BlockIndex::even(10, 4);
        assert_eq!((blocks.len(), blocks.range(2)), (3, 8..10));
        assert_eq!(BlockIndex::even(8, 4).len(), 2);
        assert_eq!(BlockIndex::even(0, 4).len(), 0);
    }
}
