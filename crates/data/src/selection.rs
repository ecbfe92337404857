//! A subset of the rows of a source, as a bitmap.

use crate::block::BlockIndex;
use std::sync::Arc;

/// A subset of rows, in source order.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    blocks: Arc<BlockIndex>,
    /// `None` selects all rows.
    bitmap: Option<Vec<u64>>,
    /// Selected rows before each block, then their total.
    preceding: Vec<u64>,
}

impl Selection {
    pub(crate) fn all(blocks: Arc<BlockIndex>) -> Selection {
        let preceding =
            (0..blocks.len()).map(|block| blocks.range(block).start).chain([blocks.rows()]).collect();
        Selection { blocks, bitmap: None, preceding }
    }

    pub(crate) fn from_bitmap(blocks: Arc<BlockIndex>, bitmap: Vec<u64>) -> Selection {
        let mut preceding = vec![0];
        let mut count = 0;
        for block in 0..blocks.len() {
            count += blocks.range(block).filter(|&row| has_bit(&bitmap, row)).count() as u64;
            preceding.push(count);
        }
        Selection { blocks, bitmap: Some(bitmap), preceding }
    }

    pub(crate) fn blocks(&self) -> &BlockIndex {
        &self.blocks
    }

    pub(crate) fn len(&self) -> u64 {
        self.preceding[self.preceding.len() - 1]
    }

    /// Selected rows in a block.
    pub(crate) fn count(&self, block: usize) -> u64 {
        self.preceding[block + 1] - self.preceding[block]
    }

    /// Id of the `index`-th selected row, which must exist.
    pub(crate) fn id(&self, index: u64) -> u64 {
        let Some(bitmap) = &self.bitmap else { return index };
        let block = self.preceding.partition_point(|&preceding| preceding <= index) - 1;
        let range = self.blocks.range(block);
        let mut left = index - self.preceding[block];
        let mut row = range.start;
        while row < range.end {
            let word = bitmap[(row / 64) as usize] >> (row % 64);
            let count = u64::from(word.count_ones());
            if left < count {
                return row + u64::from(nth_set_bit(word, left));
            }
            left -= count;
            row = (row / 64 + 1) * 64;
        }
        range.end
    }

    /// Ids of the selected rows, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.blocks.rows()).filter(|&row| self.bitmap.as_ref().is_none_or(|bitmap| has_bit(bitmap, row)))
    }

    /// Appends the ids of the selected rows of a block.
    pub(crate) fn append_ids(&self, block: usize, ids: &mut Vec<u64>) {
        let rows = self.blocks.range(block);
        match &self.bitmap {
            None => ids.extend(rows),
            Some(bitmap) => ids.extend(rows.filter(|&row| has_bit(bitmap, row))),
        }
    }
}

pub(crate) fn empty_bitmap(rows: u64) -> Vec<u64> {
    vec![0; rows.div_ceil(64) as usize]
}

pub(crate) fn set_bit(bitmap: &mut [u64], row: u64) {
    bitmap[(row / 64) as usize] |= 1 << (row % 64);
}

pub(crate) fn has_bit(bitmap: &[u64], row: u64) -> bool {
    bitmap[(row / 64) as usize] >> (row % 64) & 1 == 1
}

fn nth_set_bit(mut word: u64, n: u64) -> u32 {
    for _ in 0..n {
        word &= word - 1;
    }
    word.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_are_the_set_bits_in_order(
            sizes in prop::collection::vec(1u64..200, 0..8), seed in any::<u64>(),
        ) {
            let blocks = Arc::new(BlockIndex::from_sizes(sizes));
            let mut rng = thalweg_core::Rng::keyed(seed, "test", &[]);
            let mut bitmap = empty_bitmap(blocks.rows());
            let mut expected = Vec::new();
            for row in 0..blocks.rows() {
                if rng.below(3) == 0 {
                    set_bit(&mut bitmap, row);
                    expected.push(row);
                }
            }
            let selection = Selection::from_bitmap(blocks.clone(), bitmap);
            prop_assert_eq!(selection.len(), expected.len() as u64);
            let by_index: Vec<u64> = (0..selection.len()).map(|index| selection.id(index)).collect();
            prop_assert_eq!(&by_index, &expected);
            prop_assert_eq!(&selection.ids().collect::<Vec<_>>(), &expected);
            let mut by_block = Vec::new();
            (0..blocks.len()).for_each(|block| selection.append_ids(block, &mut by_block));
            prop_assert_eq!(&by_block, &expected);
        }
    }
}
