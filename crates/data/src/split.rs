//! Training and validation rows: drawn by seed within each block, so that no list of rows has to be kept.

use crate::block::Blocks;
use crate::selection::{Selection, no_bits, set};
use std::sync::Arc;
use thalweg_core::{Error, Result, Rng};

/// The two sets a source is cut into.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) training: Selection,
    pub(crate) validation: Selection,
}

impl Split {
    /// Draws the share of validation rows. Over any first blocks the share is exact up to half a row.
    pub(crate) fn drawn(blocks: Arc<Blocks>, share: f64, seed: u64) -> Result<Split> {
        check(share)?;
        let mut training = no_bits(blocks.rows());
        let mut validation = no_bits(blocks.rows());
        let due = |rows: u64| (share * rows as f64).round() as u64;
        let mut order = Vec::new();
        for block in 0..blocks.len() {
            let range = blocks.range(block);
            let take = (due(range.end) - due(range.start)) as usize;
            order.clear();
            order.extend(range);
            Rng::keyed(seed, "split", &[block as u64]).shuffle(&mut order);
            order[..take].iter().for_each(|&row| set(&mut validation, row));
            order[take..].iter().for_each(|&row| set(&mut training, row));
        }
        Split::of_bits(blocks, training, validation, share)
    }

    /// Keeps the end of the source for validation and leaves `gap` rows between, which overlap both sides.
    pub(crate) fn at_the_end(blocks: Arc<Blocks>, share: f64, gap: u64) -> Result<Split> {
        check(share)?;
        let rows = blocks.rows();
        let held = (share * rows as f64).round() as u64;
        let mut training = no_bits(rows);
        let mut validation = no_bits(rows);
        (rows - held..rows).for_each(|row| set(&mut validation, row));
        let last = if held == 0 { rows } else { (rows - held).saturating_sub(gap) };
        (0..last).for_each(|row| set(&mut training, row));
        Split::of_bits(blocks, training, validation, share)
    }

    fn of_bits(blocks: Arc<Blocks>, training: Vec<u64>, validation: Vec<u64>, share: f64) -> Result<Split> {
        let training = Selection::of_bits(blocks.clone(), training);
        let validation = Selection::of_bits(blocks.clone(), validation);
        if training.len() == 0 {
            let message = format!(
                "a validation share of {share} leaves none of the {} rows for training",
                blocks.rows()
            );
            return Err(Error::data(message).hint("lower data.validation or add rows"));
        }
        Ok(Split { training, validation })
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
            let blocks = Arc::new(Blocks::of_sizes(sizes));
            let rows = blocks.rows();
            if let Ok(split) = Split::drawn(blocks, share, seed) {
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
        let draw = |seed| ids(&Split::drawn(Arc::new(Blocks::even(100, 64)), 0.2, seed).unwrap().validation);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_share_that_leaves_no_training_row_is_refused() {
        let split = |rows, share| Split::drawn(Arc::new(Blocks::even(rows, 64)), share, 1);
        assert!(split(2, 0.9).unwrap_err().message.contains("none of the 2 rows"));
        assert!(split(2, 1.5).unwrap_err().message.contains("between 0 and 1"));
        assert_eq!(split(2, 0.0).unwrap().validation.len(), 0);
    }

    #[test]
    fn overlapping_rows_are_held_at_the_end_behind_a_gap() {
        let split = Split::at_the_end(Arc::new(Blocks::even(100, 64)), 0.1, 5).unwrap();
        assert!(ids(&split.validation).into_iter().eq(90..100));
        assert!(ids(&split.training).into_iter().eq(0..85));
        let whole = Split::at_the_end(Arc::new(Blocks::even(100, 64)), 0.0, 5).unwrap();
        assert_eq!((whole.training.len(), whole.validation.len()), (100, 0));
    }
}
