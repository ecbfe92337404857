//! A synchronous parameter server (Langer et al., section 3.3.1 and Figure 6).
//!
//! Rank 0 holds the parameters `w` and the only optimizer state; the others compute. In each step `t`:
//!
//! ```text
//! worker i:   g_i = sum of the gradients of its share of the step's rows / rows of the step
//!             push g_i
//!             pull w
//!
//! server:     g   = g_1 + ... + g_n        once all have arrived, in the order of ranks
//!             w   = update(w, g)
//!             send w to all workers
//! ```
//!
//! The step is the one a single worker would take, up to rounding. The server sends and receives n times the model,
//! where an all-reduce sends and receives it less than twice on every rank.

use crate::worker::Worker;
use thalweg_core::Result;

/// Runs on every rank.
pub fn program(worker: &mut Worker<'_>) -> Result<()> {
    if worker.is_server() { serve(worker) } else { work(worker) }
}

fn work(worker: &mut Worker<'_>) -> Result<()> {
    while let Some(step) = worker.next_step()? {
        worker.compute_gradient(&step)?;
        worker.push_gradient()?;
        worker.pull_parameters()?;
        worker.finish(&step)?;
    }
    Ok(())
}

fn serve(server: &mut Worker<'_>) -> Result<()> {
    while let Some(step) = server.next_step()? {
        server.gather_gradients()?;
        server.update()?;
        server.serve_parameters()?;
        server.finish(&step)?;
    }
    Ok(())
}
