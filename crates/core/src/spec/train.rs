//! `[train]`: steps, epochs and targets.

use super::section::section;
use super::{JobLayers, JobSpec, Origin};
use toml::Value;

section! {
    /// Steps and epochs.
    "train" TrainSpec {
        /// Rows of a step over all workers.
        global_batch: usize = 64;
        /// Rows of a step per worker: global_batch is then this times engine.workers, and stays so when workers leave or join.
        local_batch: Option<usize> = None;
        /// Gradient accumulation: micro-batches per worker and step, to save memory. global_batch does not change.
        accumulate: usize = 1;
        /// Passes over the training rows.
        epochs: u64 = 30;
        /// The share of the rows of each step that are computed, drawn by seed and step; the others are dropped by design. With all-reduces of gradients, and on a single worker.
        sample: f64 = 1.0;
        /// Stops after this many steps, if that comes first.
        max_steps: Option<u64> = None;
        /// Evaluates the published model on the validation rows whenever so many more rows are trained on, beside the ends of epochs. Evaluations do not count as training time; training ends with one that reaches a target.
        evaluate_every: Option<u64> = None;
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

const GLOBAL: &str = "train.global_batch";
const LOCAL: &str = "train.local_batch";

/// Computes `train.global_batch` from `train.local_batch`. Another explicit value is refused.
pub(super) fn derive_global_batch(spec: &mut JobSpec, layers: &mut JobLayers, errors: &mut Vec<String>) {
    let (Some(local), workers) = (spec.train.local_batch, spec.engine.workers) else { return };
    // Numbers without a meaning are refused by their own rules.
    let Some(global) = local.checked_mul(workers).filter(|global| *global > 0) else { return };
    match layers.get(GLOBAL) {
        Some(_) if spec.train.global_batch == global => {}
        Some((other, _)) => errors.push(format!(
            "{}: {LOCAL}: {local} rows on each of {workers} workers are {global}, but {GLOBAL} = {other}; drop one of the two",
            layers.origin(LOCAL)
        )),
        None => {
            spec.train.global_batch = global;
            let value = Value::Integer(i64::try_from(global).unwrap_or(i64::MAX));
            layers.set(GLOBAL, value, Origin::Derived("train.local_batch * engine.workers"));
        }
    }
}

section! {
    /// Targets: training ends after the epoch, or with the evaluation (train.evaluate_every), that reaches them.
    "train.target" TargetSpec {
        /// Validation accuracy to reach (classification).
        accuracy: Option<f64> = None;
        /// Validation loss to reach.
        loss: Option<f64> = None;
    }
}
