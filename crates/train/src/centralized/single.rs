//! Gradient descent on one worker: the reference for all the others.
//!
//! ```text
//! g = sum of the gradients of the step's rows / rows of the step
//! w = update(w, g)
//! ```

use crate::worker::Worker;
use thalweg_core::Result;

/// Runs on the only worker.
pub fn program(worker: &mut Worker<'_>) -> Result<()> {
    while let Some(step) = worker.next_step()? {
        worker.compute_gradient(&step)?;
        worker.update()?;
        worker.finish(&step)?;
    }
    Ok(())
}
