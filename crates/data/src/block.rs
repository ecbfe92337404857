//! Blocks: the unit in which rows are found, decoded and cached.

use crate::narrow::{Gaps, Narrowed, WideTargets};
use crate::raw::Slice;
use thalweg_core::Targets;

/// Rows a block holds at most. Part of the format: the split and the sampler draw by block.
pub(crate) const BLOCK_ROWS: u64 = 4096;

/// Bytes of its source a block spans, about, if its rows are long.
pub(crate) const BLOCK_BYTES: u64 = 4 << 20;

/// Which rows each block holds.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// The first row of each block, and at the end the number of rows.
    starts: Vec<u64>,
}

impl Blocks {
    /// Blocks with these numbers of rows, in order.
    pub(crate) fn of_sizes(sizes: impl IntoIterator<Item = u64>) -> Blocks {
        let mut starts = vec![0];
        let mut next = 0;
        for size in sizes {
            next += size;
            starts.push(next);
        }
        Blocks { starts }
    }

    /// All blocks of the same number of rows, only the last may be short.
    pub(crate) fn even(rows: u64, size: u64) -> Blocks {
        let whole = (0..rows / size).map(|_| size);
        Blocks::of_sizes(whole.chain((!rows.is_multiple_of(size)).then_some(rows % size)))
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }

    /// How many blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The rows of a block.
    pub(crate) fn range(&self, block: usize) -> std::ops::Range<u64> {
        self.starts[block]..self.starts[block + 1]
    }

    /// The block of a row; the row must exist.
    pub(crate) fn find(&self, row: u64) -> usize {
        self.starts.partition_point(|&start| start <= row) - 1
    }
}

/// The decoded rows of a block, not yet scaled.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) features: BlockFeatures,
    /// A target per row; for text nothing, there the next character is the target.
    pub(crate) targets: Targets,
    /// What was subtracted from each number of a dense row; empty if nothing was.
    pub(crate) offsets: Vec<f64>,
    /// What was subtracted from targets that are numbers.
    pub(crate) target_offset: f64,
    /// Of columns with numbers too large for single precision, how far apart these lie.
    pub(crate) gaps: Vec<(u32, Gaps)>,
}

/// What the rows of a block show.
#[derive(Debug)]
pub(crate) enum BlockFeatures {
    /// Row-major numbers; NaN is a missing value.
    Dense(Vec<f32>),
    /// Row-major bytes.
    Pixels(Slice),
    /// Compressed rows, as in a batch.
    Sparse { starts: Vec<usize>, columns: Vec<u32>, values: Vec<f32> },
    /// A stretch of text: row `i` of the block begins at its `i`-th character.
    Text(Vec<u32>),
}

impl Block {
    /// Rows whose numbers are what they are.
    pub(crate) fn new(features: BlockFeatures, targets: Targets) -> Block {
        Block { features, targets, offsets: Vec::new(), target_offset: 0.0, gaps: Vec::new() }
    }

    /// Rows of tables.
    pub(crate) fn of_table(rows: Narrowed, targets: WideTargets) -> Block {
        let (targets, target_offset) = targets.finish();
        let Narrowed { features, offsets, gaps } = rows;
        Block { features: BlockFeatures::Dense(features), targets, offsets, target_offset, gaps }
    }

    /// Memory this block holds.
    pub(crate) fn bytes(&self) -> u64 {
        let features = match &self.features {
            BlockFeatures::Dense(values) => values.len() * 4,
            BlockFeatures::Pixels(slice) => slice.own_bytes(),
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
        let blocks = Blocks::of_sizes([3, 1, 4]);
        assert_eq!((blocks.rows(), blocks.len()), (8, 3));
        let found: Vec<usize> = (0..8).map(|row| blocks.find(row)).collect();
        assert_eq!(found, [0, 0, 0, 1, 2, 2, 2, 2]);
        assert_eq!(blocks.range(2), 4..8);
    }

    #[test]
    fn even_blocks_end_with_a_short_one() {
        let blocks = Blocks::even(10, 4);
        assert_eq!((blocks.len(), blocks.range(2)), (3, 8..10));
        assert_eq!(Blocks::even(8, 4).len(), 2);
        assert_eq!(Blocks::even(0, 4).len(), 0);
    }
}
