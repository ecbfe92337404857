//! Data order as a function: which rows make up a step.
//!
//! In each epoch every training row comes exactly once. A source whose decoded rows fit into a window is permuted as
//! a whole. A larger one is permuted block by block, consecutive blocks of that order form a window, and the rows
//! within a window are permuted: so a rank that streams needs to hold one window of rows, not the source. What
//! counts is the size of the rows, never the memory or the number of workers, so that every world sees the same
//! order.

use crate::rows::Rows;
use crate::selection::Selection;
use std::ops::Range;
use std::sync::Arc;
use thalweg_core::Rng;

/// Decoded rows that are permuted together. Part of the format: with another value a resumed job would see other rows.
pub const WINDOW_BYTES: u64 = 256 << 20;

/// The rows of a step: a pure function of (seed, epoch, step, global batch). It keeps nothing but a cache.
#[derive(Debug)]
pub struct Sampler {
    selection: Arc<Selection>,
    seed: u64,
    batch: u64,
    window_rows: u64,
    epoch: Option<Epoch>,
    window: Option<Window>,
    step: Vec<u64>,
}

/// The order of blocks in an epoch.
#[derive(Debug)]
struct Epoch {
    number: u64,
    blocks: Vec<usize>,
    /// Places in `blocks` and in the epoch's row order where each window begins; the last entry is the end.
    windows: Vec<(usize, u64)>,
}

/// The order of rows in a window.
#[derive(Debug)]
struct Window {
    epoch: u64,
    number: usize,
    rows: Vec<u64>,
}

impl Sampler {
    /// A sampler over these rows.
    pub fn new(rows: &Rows, seed: u64, global_batch: usize) -> Sampler {
        Sampler::with_window(rows.selection(), seed, global_batch, WINDOW_BYTES / rows.row_bytes().max(1))
    }

    fn with_window(selection: Arc<Selection>, seed: u64, global_batch: usize, window_rows: u64) -> Sampler {
        let batch = global_batch.max(1) as u64;
        Sampler { selection, seed, batch, window_rows, epoch: None, window: None, step: Vec::new() }
    }

    /// Steps until every row came once; the last may be short.
    pub fn steps_per_epoch(&self) -> u64 {
        self.selection.len().div_ceil(self.batch)
    }

    /// The ids of the rows of a step, none beyond the epoch's end. The current members share them among themselves.
    pub fn rows(&mut self, epoch: u64, step: u64) -> &[u64] {
        let total = self.selection.len();
        let start = step.saturating_mul(self.batch).min(total);
        let wanted = start..start.saturating_add(self.batch).min(total);
        self.step.clear();
        self.prepare_epoch(epoch);
        let Some(order) = self.epoch.take() else { return &[] };
        let first = order.windows.partition_point(|&(_, row)| row <= wanted.start).saturating_sub(1);
        for number in first..order.windows.len() - 1 {
            let window = order.windows[number].1..order.windows[number + 1].1;
            let common = wanted.start.max(window.start)..wanted.end.min(window.end);
            if common.is_empty() {
                break;
            }
            self.prepare_window(&order, number);
            self.copy(common.start - window.start..common.end - window.start);
        }
        self.epoch = Some(order);
        &self.step
    }

    fn copy(&mut self, range: Range<u64>) {
        if let Some(window) = &self.window {
            self.step.extend_from_slice(&window.rows[range.start as usize..range.end as usize]);
        }
    }

    fn prepare_epoch(&mut self, number: u64) {
        if self.epoch.as_ref().is_some_and(|epoch| epoch.number == number) {
            return;
        }
        let mut blocks: Vec<usize> = (0..self.selection.blocks().len()).collect();
        let mut windows = vec![(0, 0)];
        if self.selection.len() > self.window_rows {
            Rng::keyed(self.seed, "sampler", &[number]).shuffle(&mut blocks);
            let (mut begun, mut row) = (0, 0);
            for (place, &block) in blocks.iter().enumerate() {
                let count = self.selection.count(block);
                if row > begun && row + count - begun > self.window_rows {
                    windows.push((place, row));
                    begun = row;
                }
                row += count;
            }
        }
        windows.push((blocks.len(), self.selection.len()));
        self.epoch = Some(Epoch { number, blocks, windows });
    }

    fn prepare_window(&mut self, order: &Epoch, number: usize) {
        if self.window.as_ref().is_some_and(|window| window.epoch == order.number && window.number == number)
        {
            return;
        }
        let mut rows = self.window.take().map(|window| window.rows).unwrap_or_default();
        rows.clear();
        for &block in &order.blocks[order.windows[number].0..order.windows[number + 1].0] {
            self.selection.append_ids(block, &mut rows);
        }
        Rng::keyed(self.seed, "sampler", &[order.number, number as u64]).shuffle(&mut rows);
        self.window = Some(Window { epoch: order.number, number, rows });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Blocks;
    use crate::split::Split;
    use proptest::prelude::*;

    fn sampler(rows: u64, block: u64, share: f64, seed: u64, batch: usize, window: u64) -> Sampler {
        let split = Split::drawn(Arc::new(Blocks::even(rows, block)), share, 3).unwrap();
        Sampler::with_window(Arc::new(split.training), seed, batch, window)
    }

    fn epoch(sampler: &mut Sampler, epoch: u64) -> Vec<u64> {
        (0..sampler.steps_per_epoch()).flat_map(|step| sampler.rows(epoch, step).to_vec()).collect()
    }

    proptest! {
        #[test]
        fn every_training_row_comes_once_per_epoch_whatever_the_batch(
            rows in 1u64..700, block in 1u64..80, share in 0.0f64..0.4, batch in 1usize..90, window in 1u64..900,
        ) {
            let mut sampler = sampler(rows, block, share, 5, batch, window);
            let selection = sampler.selection.clone();
            let order = epoch(&mut sampler, 2);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert!(sorted.iter().copied().eq((0..selection.len()).map(|index| selection.id(index))));
            prop_assert!(sampler.rows(2, sampler.steps_per_epoch()).is_empty());
        }

        #[test]
        fn steps_are_the_same_in_whatever_order_they_are_asked(
            seed in any::<u64>(), batch in 1usize..60, window in 1u64..600, asked in prop::collection::vec((0u64..3, 0u64..50), 1..20),
        ) {
            let mut jumping = sampler(500, 40, 0.2, seed, batch, window);
            for (number, step) in asked {
                let mut fresh = sampler(500, 40, 0.2, seed, batch, window);
                prop_assert_eq!(jumping.rows(number, step), fresh.rows(number, step));
            }
        }

        #[test]
        fn the_batch_size_does_not_change_the_order(window in 1u64..600, batch in 1usize..60) {
            let mut one = sampler(500, 40, 0.2, 9, 1, window);
            let mut many = sampler(500, 40, 0.2, 9, batch, window);
            prop_assert_eq!(epoch(&mut one, 1), epoch(&mut many, 1));
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        for window in [100, 1000] {
            let mut one = sampler(500, 40, 0.2, 1, 32, window);
            let mut other = sampler(500, 40, 0.2, 2, 32, window);
            assert_ne!(epoch(&mut one, 0), epoch(&mut one, 1));
            assert_ne!(epoch(&mut one, 0), epoch(&mut other, 0));
        }
    }

    #[test]
    fn a_window_spans_few_blocks() {
        let mut sampler = sampler(1000, 50, 0.0, 1, 100, 200);
        for step in (0..10).step_by(2) {
            let mut blocks: Vec<u64> = sampler.rows(0, step).iter().map(|row| row / 50).collect();
            blocks.sort_unstable();
            blocks.dedup();
            assert!(blocks.len() <= 4, "{blocks:?}");
        }
    }
}
