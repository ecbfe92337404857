//! Splits rows into training and validation, per block and by seed, so that no list of rows is stored.

use crate::block::BlockIndex;
use crate::selection::{Selection, empty_bitmap, set_bit};
use std::sync::Arc;
use thalweg_core::{Error, Result, Rng};

#[derive(Debug)]
pub(crate) struct RowSplit {
    pub(crate) training: Selection,
    pub(crate) validation: Selection,
}

impl RowSplit {
    /// Draws validation rows at random. For every prefix of blocks the fraction is exact up to half a row.
    pub(crate) fn random(blocks: Arc<BlockIndex>, share: f64, seed: u64) -> Result<RowSplit> {
        check(share)?;
        let mut training = empty_bitmap(blocks.rows());
        let mut validation = empty_bitmap(blocks.rows());
        let due = |rows: u64| (share * rows as f64).round() as u64;
        let mut order = Vec::new();
        for block in 0..blocks.len() {
            let range = blocks.range(block);
            let take = (due(range.end) - due(range.start)) as usize;
            order.clear();
            order.extend(range);
            Rng::keyed(seed, "split", &[block as u64]).shuffle(&mut order);
            order[..take].iter().for_each(|&row| set_bit(&mut validation, row));
            order[take..].iter().for_each(|&row| set_bit(&mut training, row));
        }
        RowSplit::from_bitmaps(blocks, training, validation, share)
    }

    /// Keeps the end of the source for validation and drops `gap` rows before it, which overlap both sides.
    pub(crate) fn tail(blocks: Arc<BlockIndex>, share: f64, gap: u64) -> Result<RowSplit> {
        check(share)?;
        let rows = blocks.rows();
        let count = (share * rows as f64).round() as u64;
        let mut training = empty_bitmap(rows);
        let mut validation = empty_bitmap(rows);
        (rows - count..rows).for_each(|row| set_bit(&mut validation, row));
        let last = if count == 0 { rows } else { (rows - count).saturating_sub(gap) };
        (0..last).for_each(|row| set_bit(&mut training, row));
        RowSplit::from_bitmaps(blocks, training, validation, share)
    }

    fn from_bitmaps(
        blocks: Arc<BlockIndex>,
        training: Vec<u64>,
        validation: Vec<u64>,
        share: f64,
    ) -> Result<RowSplit> {
        let training = Selection::from_bitmap(blocks.clone(), training);
        let validation = Selection::from_bitmap(blocks.clone(), validation);
        if training.len() == 0 {
            let message = format!(
                "a validation share of {share} leaves none of the {} rows for training",
                blocks.rows()
            );
            return Err(Error::data(message).hint("lower data.validation or add rows"));
        }
        Ok(RowSplit { training, validation })
    }
}

fn check(share: f64) -> Result<()> {
    if (0.0..1.0).contains(&share) {
        return Ok(());
    }
    Err(Error::job(format!("data.validation = {share}: a share of the rows lies between 0 and 1")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(selection: &Selection) -> Vec<u64> {
        (0..selection.len()).map(|index| selection.id(index)).collect()
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_set_and_the_share_is_exact(
            sizes in prop::collection::vec(1u64..50, 1..20), share in 0.0f64..0.9, seed in any::<u64>(),
        ) {
            let blocks = Arc::new(BlockIndex::from_sizes(sizes));
            let rows = blocks.rows();
            if let Ok(split) = RowSplit::random(blocks, share, seed) {
                prop_assert_eq!(split.validation.len(), (share * rows as f64).round() as u64);
                let mut all = ids(&split.training);
                all.extend(ids(&split.validation));
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(0..rows));
            }
        }
    }

    #[test]
    fn the_seed_decides() {
        let draw =
            |seed| ids(&RowSplit::random(Arc::new(BlockIndex::even(100, 64)), 0.2, seed).unwrap().validation);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_share_that_leaves_no_training_row_is_refused() {
        let split = |rows, share| RowSplit::random(Arc::new(BlockIndex::even(rows, 64)), share, 1);
        assert!(split(2, 0.9).unwrap_err().message.contains("none of the 2 rows"));
        assert!(split(2, 1.5).unwrap_err().message.contains("between 0 and 1"));
        assert_eq!(split(2, 0.0).unwrap().validation.len(), 0);
    }

    #[test]
    fn overlapping_rows_validate_at_the_end_after_a_gap() {
        let split = RowSplit::tail(Arc::new(BlockIndex::even(100, 64)), 0.1, 5).unwrap();
        assert!(ids(&split.validation).into_iter().eq(90..100));
        assert!(ids(&split.training).into_iter().eq(0..85));
        let whole = RowSplit::tail(Arc::new(BlockIndex::even(100, 64)), 0.0, 5).unwrap();
        assert_eq!((whole.training.len(), whole.validation.len()), (100, 0));
    }
}
