//! `[train]`: steps, epochs and targets.

use super::section::section;

section! {
    /// Steps and epochs.
    "train" TrainSpec {
        /// Rows of a step over all workers.
        global_batch: usize = 64;
        /// Gradient accumulation: micro-batches per worker and step, to save memory. global_batch does not change.
        accumulate: usize = 1;
        /// Passes over the training rows.
        epochs: u64 = 30;
        /// Stops after this many steps, if that comes first.
        max_steps: Option<u64> = None;
        /// Seed of the row order, the validation split and the initial parameters.
        seed: u64 = 7;
        /// The same bits for any number of workers, any transport and after any change of the group: steps are computed in fixed micro-batches of a few rows, summed along a fixed reduction tree. It costs time: see docs/data-parallel.md.
        reproducible: bool = false;
        /// L1 penalty: l1 * sign(w) is added to the gradient before clipping; the reported loss excludes it.
        l1: f64 = 0.0;
        /// L2 penalty: l2 * w is added to the gradient before clipping; the reported loss excludes it.
        l2: f64 = 0.0;
    }
}

section! {
    /// Targets: training ends after the epoch that reaches them.
    "train.target" TargetSpec {
        /// Validation accuracy to reach (classification).
        accuracy: Option<f64> = None;
        /// Validation loss to reach.
        loss: Option<f64> = None;
    }
}
