//! `[train]`: how long, in which steps, to what end.

use super::section::section;

section! {
    /// How long, in which steps.
    "train" TrainSpec {
        /// Rows of one step, over all workers together.
        global_batch: usize = 64;
        /// Parts in which a worker computes its rows of a step, one after the other, to need less memory: their gradients are summed, global_batch stays what it is.
        accumulate: usize = 1;
        /// Passes over the training rows.
        epochs: u64 = 30;
        /// Stop after so many steps, if that comes first.
        max_steps: Option<u64> = None;
        /// Decides the order of rows, the split and the initial parameters.
        seed: u64 = 7;
        /// The same bits on any number of workers, over any transport, after any resize: steps are computed in fixed leaves of a few rows, summed along a fixed tree. It costs time: see docs/data-parallel.md.
        reproducible: bool = false;
        /// Penalty on the parameters' absolute values: l1 * sign(w) is added to the step's gradient, before clipping; the loss shown is without it.
        l1: f64 = 0.0;
        /// Penalty on half the parameters' squares: l2 * w is added to the step's gradient, before clipping; the loss shown is without it.
        l2: f64 = 0.0;
    }
}

section! {
    /// When the model is good enough: training ends after the epoch that gets there.
    "train.target" TargetSpec {
        /// Validation accuracy to reach (classification).
        accuracy: Option<f64> = None;
        /// Validation loss to get down to.
        loss: Option<f64> = None;
    }
}
