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

    /// Takes a share out of the rows of a selection: drawn at random by block or, with rows that overlap, the last ones, and
    /// drops `gap` rows before those. Returns what is left, and what was taken.
    pub(crate) fn hold_out(
        from: &Selection,
        share: f64,
        gap: u64,
        seed: u64,
    ) -> Result<(Selection, Selection)> {
        let (blocks, total) = (from.blocks().clone(), from.len());
        let mut left = empty_bitmap(blocks.rows());
        let mut taken = empty_bitmap(blocks.rows());
        let due = |rows: u64| (share * rows as f64).round() as u64;
        let first_taken = total - due(total);
        let (mut order, mut before) = (Vec::new(), 0);
        for block in 0..blocks.len() {
            order.clear();
            from.append_ids(block, &mut order);
            let after = before + order.len() as u64;
            if gap == 0 {
                Rng::keyed(seed, "hold out", &[block as u64]).shuffle(&mut order);
                let take = (due(after) - due(before)) as usize;
                order[..take].iter().for_each(|&row| set_bit(&mut taken, row));
                order[take..].iter().for_each(|&row| set_bit(&mut left, row));
            } else {
                for (index, &row) in (before..after).zip(&order) {
                    match index {
                        _ if index >= first_taken => set_bit(&mut taken, row),
                        _ if index + gap < first_taken => set_bit(&mut left, row),
                        _ => {}
                    }
                }
            }
            before = after;
        }
        let blocks = Arc::new(blocks);
        let (left, taken) =
            (Selection::from_bitmap(blocks.clone(), left), Selection::from_bitmap(blocks, taken));
        if left.len() == 0 || taken.len() == 0 {
            return Err(Error::data(format!(
                "a share of {share} of {total} training rows leaves none on one side"
            )));
        }
        Ok((left, taken))
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
    fn rows_that_are_held_out_are_taken_from_a_selection() {
        let split = RowSplit::random(Arc::new(BlockIndex::even(300, 64)), 0.2, 1).unwrap();
        let (left, taken) = RowSplit::hold_out(&split.training, 0.1, 0, 1).unwrap();
        assert_eq!((left.len(), taken.len()), (216, 24));
        let mut all = [ids(&left), ids(&taken)].concat();
        all.sort_unstable();
        assert_eq!(all, ids(&split.training));
        assert_eq!(ids(&taken), ids(&RowSplit::hold_out(&split.training, 0.1, 0, 1).unwrap().1));
        let tail = RowSplit::tail(Arc::new(BlockIndex::even(100, 64)), 0.1, 5).unwrap();
        let (left, taken) = RowSplit::hold_out(&tail.training, 0.2, 5, 1).unwrap();
        assert!(ids(&taken).into_iter().eq(68..85) && ids(&left).into_iter().eq(0..63));
        let error = RowSplit::hold_out(&tail.training, 0.001, 5, 1).unwrap_err();
        assert!(error.message.contains("leaves none"), "{error}");
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
