//! The strategies, and the training layer that they are written against.
//!
//! A strategy is one file with a short program (`strategy::Strategy`), registered in [`registry`]. It is written against
//! the pieces of a `context::Context`: the rank and its groups, compute, work, the update rule; and against its
//! `state::State` and a `reduction::Reduction`. The driver runs it unit by unit, and does the rest: requests, changes of
//! the group, epochs, checkpoints.

mod accumulate;
mod alignment;
mod audit;
mod centralized;
mod checkpoint_writer;
mod checkpoints;
mod compute;
mod context;
mod contributions;
mod decentralized;
mod driver;
pub mod ensembles;
mod envelope;
mod finite;
pub mod footprint;
pub mod hooks;
mod job_progress;
#[doc(hidden)]
pub mod known_bugs;
mod leaves;
pub mod modelfile;
pub mod prepare;
mod recent_steps;
mod reduction;
pub mod registry;
pub mod resumption;
pub mod roles;
mod scheduling;
mod serving;
mod slowdown;
mod speed;
mod split;
mod stacking;
mod state;
mod state_transfer;
mod step_report;
mod strategy;
pub mod validate;
mod work;

#[doc(hidden)]
pub use decentralized::mixing;
pub use modelfile::{SavedModel, kept};
pub use prepare::{Assignment, JobComponents, Prepared, run};
