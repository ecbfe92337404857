//! The vocabulary of Thalweg: what a job says, what happens in it, what a model is, what goes wrong.
//!
//! Nothing here does any input or output: every other crate speaks in these words.

pub mod batch;
pub mod clock;
pub mod error;
pub mod event;
pub mod file_order;
pub mod model;
pub mod progress;
pub mod report;
pub mod rng;
pub mod schema;
pub mod spec;
pub mod times;

pub use batch::{Batch, Features, Targets, Task};
pub use error::{Culprit, Error, Kind, Result};
pub use file_order::FileOrder;
pub use model::{Gradient, Hooks, Layout, Model, NoHooks, Tally};
pub use rng::Rng;
pub use schema::Schema;
pub use spec::{Job, JobSpec};
