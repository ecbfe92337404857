//! Types that every other crate shares: the job, events, the report, errors, batches and the model interface.
//!
//! This crate does no input or output.

pub mod batch;
pub mod clock;
pub mod error;
pub mod event;
pub mod file_order;
pub mod hex;
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
