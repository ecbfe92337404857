//! GoSGD: stochastic gradient descent with sum-weight gossip (Blot et al. 2016; Langer et al., Figure 17).
//!
//! Every worker `i` has parameters `w_i` and a weight `a_i`; the weights of all, with those in letters on their way,
//! always add up to 1. In each local step:
//!
//! ```text
//! for every letter (w_j, a_j) that has arrived:
//!     w_i = a_i / (a_i + a_j) * w_i  +  a_j / (a_i + a_j) * w_j
//!     a_i = a_i + a_j
//! w_i = update(w_i, gradient of its share of the step's rows)
//! with probability p:
//!     a_i = a_i / 2
//!     send (w_i, a_i) to another worker, drawn at random
//! ```
//!
//! Whoever has told its state lately weighs less, as the others know it already. Now and then (at the end of an epoch, for
//! a checkpoint, after the last step) the workers meet and look at the model they stand for together, the weighted mean;
//! then each goes on with its own.

use crate::worker::Worker;
use thalweg_core::Result;

/// Runs on every worker.
pub fn program(worker: &mut Worker<'_>) -> Result<()> {
    let mut weight = 1.0 / worker.workers() as f64;
    worker.open_gossip();
    while let Some(step) = worker.next_step()? {
        listen(worker, &mut weight)?;
        worker.compute_gradient(&step)?;
        worker.update()?;
        if let Some(other) = worker.draw_listener(&step)
            && worker.tell(other, weight / 2.0)
        {
            weight /= 2.0;
        }
        if worker.meets_after(&step) {
            worker.await_letters()?;
            listen(worker, &mut weight)?;
            let own = worker.take_mean(weight)?;
            worker.finish(&step)?;
            worker.go_on_with(own);
        } else {
            worker.finish_alone(&step)?;
        }
    }
    Ok(())
}

fn listen(worker: &mut Worker<'_>, weight: &mut f64) -> Result<()> {
    while let Some((parameters, told)) = worker.hear()? {
        worker.blend(&parameters, told / (*weight + told));
        *weight += told;
    }
    Ok(())
}
