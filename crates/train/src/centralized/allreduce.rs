//! Synchronous data-parallel gradient descent with a replicated optimizer.
//!
//! Every worker holds the parameters `w` and the optimizer's state. In each step `t`:
//!
//! ```text
//! worker i:   g_i = sum of the gradients of its share of the step's rows / rows of the step
//!             g   = all-reduce(g_1 + ... + g_n)
//!             w   = update(w, g)
//! ```
//!
//! As all add the same numbers in the same order, all hold the same `w` without ever sending it. The step is the one a
//! single worker would take, up to rounding. On one host the last two lines are one: each worker sums its share of `g`
//! and updates its share of a `w` that all of them read (see `crate::shared`).

use crate::worker::Worker;
use thalweg_core::Result;

/// Runs on every worker.
pub fn program(worker: &mut Worker<'_>) -> Result<()> {
    while let Some(step) = worker.next_step()? {
        worker.compute_gradient(&step)?;
        worker.sum_and_update()?;
        worker.finish(&step)?;
    }
    Ok(())
}
