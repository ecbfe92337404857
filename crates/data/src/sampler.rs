//! Row order: which rows make up a step.
//!
//! Each training row occurs exactly once per epoch. A source whose decoded rows fit into one window is
//! permuted as a whole. In a larger one the blocks are permuted, consecutive blocks form a window, and the
//! rows within a window are permuted, so that a streaming rank holds one window of rows instead of the
//! source. The order depends on the size of the rows, not on memory or the number of workers: it is the same
//! for every world size.

use crate::rows::Rows;
use crate::selection::Selection;
use std::ops::Range;
use std::sync::Arc;
use thalweg_core::Rng;

/// Decoded bytes per window. Part of the format: with another value a resumed job would see other rows.
pub(crate) const WINDOW_BYTES: u64 = 256 << 20;

/// The epoch whose order is cut into the shares of workers; no job reaches it.
const OF_SHARES: u64 = u64::MAX;

/// The rows of a step: a pure function of (seed, epoch, step, global batch). All state is cache.
#[derive(Debug)]
pub struct Sampler {
    selection: Arc<Selection>,
    seed: u64,
    batch: u64,
    window_rows: u64,
    epoch: Option<EpochOrder>,
    window: Option<WindowOrder>,
    step: Vec<u64>,
}

/// The block order of an epoch.
#[derive(Debug)]
struct EpochOrder {
    number: u64,
    blocks: Vec<usize>,
    /// Start of each window, as an index into `blocks` and as a row of the epoch; the last entry is the end.
    windows: Vec<(usize, u64)>,
}

/// The row order of a window.
#[derive(Debug)]
struct WindowOrder {
    epoch: u64,
    number: usize,
    rows: Vec<u64>,
}

impl Sampler {
    /// A sampler over a set of rows.
    pub fn new(rows: &Rows, seed: u64, global_batch: usize) -> Sampler {
        Sampler::with_window(rows.selection(), seed, global_batch, WINDOW_BYTES / rows.row_bytes().max(1))
    }

    fn with_window(selection: Arc<Selection>, seed: u64, global_batch: usize, window_rows: u64) -> Sampler {
        let batch = global_batch.max(1) as u64;
        Sampler { selection, seed, batch, window_rows, epoch: None, window: None, step: Vec::new() }
    }

    /// Steps per epoch; the last may have fewer rows.
    pub fn steps_per_epoch(&self) -> u64 {
        self.selection.len().div_ceil(self.batch)
    }

    /// The row ids of a step, before they are divided among ranks; empty beyond the end of the epoch.
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

    /// The row ids of a worker's share of all rows, in the order of one of its passes over them. Shares are ranges of one
    /// order of all rows, which depends on the seed alone; a pass permutes the windows in its share, and the rows of each.
    pub fn pass(&mut self, share: Range<u64>, worker: u64, pass: u64) -> Vec<u64> {
        self.prepare_epoch(OF_SHARES);
        let Some(order) = self.epoch.take() else { return Vec::new() };
        let mut random = Rng::keyed(self.seed, "pass", &[worker, pass]);
        let mut windows: Vec<usize> = (0..order.windows.len() - 1).collect();
        random.shuffle(&mut windows);
        let mut rows = Vec::new();
        for number in windows {
            let window = order.windows[number].1..order.windows[number + 1].1;
            let common = share.start.max(window.start)..share.end.min(window.end);
            if common.is_empty() {
                continue;
            }
            self.prepare_window(&order, number);
            let first = rows.len();
            let common = (common.start - window.start) as usize..(common.end - window.start) as usize;
            rows.extend(self.window.iter().flat_map(|window| &window.rows[common.clone()]));
            random.shuffle(&mut rows[first..]);
        }
        self.epoch = Some(order);
        rows
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
            let (mut window_start, mut row) = (0, 0);
            for (index, &block) in blocks.iter().enumerate() {
                let count = self.selection.count(block);
                if row > window_start && row + count - window_start > self.window_rows {
                    windows.push((index, row));
                    window_start = row;
                }
                row += count;
            }
        }
        windows.push((blocks.len(), self.selection.len()));
        self.epoch = Some(EpochOrder { number, blocks, windows });
    }

    fn prepare_window(&mut self, order: &EpochOrder, number: usize) {
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
        self.window = Some(WindowOrder { epoch: order.number, number, rows });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockIndex;
    use crate::split::RowSplit;
    use proptest::prelude::*;

    fn sampler(rows: u64, block: u64, share: f64, seed: u64, batch: usize, window: u64) -> Sampler {
        let split = RowSplit::random(Arc::new(BlockIndex::even(rows, block)), share, 3).unwrap();
        Sampler::with_window(Arc::new(split.training), seed, batch, window)
    }

    fn epoch(sampler: &mut Sampler, epoch: u64) -> Vec<u64> {
        (0..sampler.steps_per_epoch()).flat_map(|step| sampler.rows(epoch, step).to_vec()).collect()
    }

    proptest! {
        #[test]
        fn every_training_row_occurs_once_per_epoch_for_any_batch_size(
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
        fn steps_do_not_depend_on_the_order_of_requests(
            seed in any::<u64>(), batch in 1usize..60, window in 1u64..600, requests in prop::collection::vec((0u64..3, 0u64..50), 1..20),
        ) {
            let mut jumping = sampler(500, 40, 0.2, seed, batch, window);
            for (number, step) in requests {
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

    proptest! {
        #[test]
        fn passes_over_all_shares_have_every_row_once(
            rows in 1u64..700, block in 1u64..80, window in 1u64..900, workers in 1usize..9, pass in 0u64..3,
        ) {
            let mut sampler = sampler(rows, block, 0.2, 5, 16, window);
            let selection = sampler.selection.clone();
            let share = |worker: usize| {
                let share = crate::even_range(selection.len() as usize, worker, workers);
                share.start as u64..share.end as u64
            };
            let mut all: Vec<u64> =
                (0..workers).flat_map(|worker| sampler.pass(share(worker), worker as u64, pass)).collect();
            all.sort_unstable();
            prop_assert!(all.iter().copied().eq((0..selection.len()).map(|index| selection.id(index))));
            let again = sampler.pass(share(0), 0, pass);
            sampler.rows(pass, 0);
            prop_assert_eq!(again, sampler.pass(share(0), 0, pass));
        }
    }

    #[test]
    fn passes_of_a_share_have_the_same_rows_in_another_order() {
        let mut sampler = sampler(500, 40, 0.0, 1, 32, 200);
        let [mut one, mut other] = [0, 1].map(|pass| sampler.pass(100..400, 2, pass));
        assert_ne!(one, other);
        one.sort_unstable();
        other.sort_unstable();
        assert_eq!((one.len(), one), (300, other));
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
