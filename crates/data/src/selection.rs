//! Which rows of a source belong to a set: all of them, or one bit each.

use crate::block::Blocks;
use std::sync::Arc;

/// A set of rows of a source, in the order of the source.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    blocks: Arc<Blocks>,
    /// A bit per row; without it, all rows belong.
    bits: Option<Vec<u64>>,
    /// Chosen rows before each block, and at the end their number.
    before: Vec<u64>,
}

impl Selection {
    /// Every row.
    pub(crate) fn all(blocks: Arc<Blocks>) -> Selection {
        let before =
            (0..blocks.len()).map(|block| blocks.range(block).start).chain([blocks.rows()]).collect();
        Selection { blocks, bits: None, before }
    }

    /// The rows whose bits are set.
    pub(crate) fn of_bits(blocks: Arc<Blocks>, bits: Vec<u64>) -> Selection {
        let mut before = vec![0];
        let mut count = 0;
        for block in 0..blocks.len() {
            count += blocks.range(block).filter(|&row| get(&bits, row)).count() as u64;
            before.push(count);
        }
        Selection { blocks, bits: Some(bits), before }
    }

    /// The source's blocks.
    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// How many rows belong.
    pub(crate) fn len(&self) -> u64 {
        self.before[self.before.len() - 1]
    }

    /// How many rows of a block belong.
    pub(crate) fn count(&self, block: usize) -> u64 {
        self.before[block + 1] - self.before[block]
    }

    /// The id of the `index`-th row that belongs; the row must exist.
    pub(crate) fn id(&self, index: u64) -> u64 {
        let Some(bits) = &self.bits else { return index };
        let block = self.before.partition_point(|&before| before <= index) - 1;
        let range = self.blocks.range(block);
        let mut left = index - self.before[block];
        let mut row = range.start;
        while row < range.end {
            let word = bits[(row / 64) as usize] >> (row % 64);
            let count = u64::from(word.count_ones());
            if left < count {
                return row + u64::from(nth_set_bit(word, left));
            }
            left -= count;
            row = (row / 64 + 1) * 64;
        }
        range.end
    }

    /// The ids of all rows that belong, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.blocks.rows()).filter(|&row| self.bits.as_ref().is_none_or(|bits| get(bits, row)))
    }

    /// Appends the ids of the rows of a block that belong.
    pub(crate) fn append_ids(&self, block: usize, ids: &mut Vec<u64>) {
        let rows = self.blocks.range(block);
        match &self.bits {
            None => ids.extend(rows),
            Some(bits) => ids.extend(rows.filter(|&row| get(bits, row))),
        }
    }
}

/// Bits for so many rows, none set.
pub(crate) fn no_bits(rows: u64) -> Vec<u64> {
    vec![0; rows.div_ceil(64) as usize]
}

/// Sets the bit of a row.
pub(crate) fn set(bits: &mut [u64], row: u64) {
    bits[(row / 64) as usize] |= 1 << (row % 64);
}

/// The bit of a row.
pub(crate) fn get(bits: &[u64], row: u64) -> bool {
    bits[(row / 64) as usize] >> (row % 64) & 1 == 1
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
            let blocks = Arc::new(Blocks::of_sizes(sizes));
            let mut rng = thalweg_core::Rng::keyed(seed, "test", &[]);
            let mut bits = no_bits(blocks.rows());
            let mut expected = Vec::new();
            for row in 0..blocks.rows() {
                if rng.below(3) == 0 {
                    set(&mut bits, row);
                    expected.push(row);
                }
            }
            let selection = Selection::of_bits(blocks.clone(), bits);
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
