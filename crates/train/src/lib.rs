//! The strategies, and the machinery they share.
//!
//! A strategy is one file with a short program written against [`Worker`] and its rank; [`strategy`] picks it from the
//! dials. What every program needs (rows, gradients, updates, validation, checkpoints, audit) is the worker's.

mod accumulate;
pub mod audit;
pub mod centralized;
pub mod decentralized;
mod epoch;
mod finite;
mod gossip;
pub mod hooks;
mod keepsake;
pub mod modelfile;
pub mod prepare;
mod progress;
mod push_pull;
mod regroup;
pub mod rider;
mod scribe;
mod shared;
pub mod strategy;
pub mod validate;
pub mod worker;

pub use modelfile::SavedModel;
pub use prepare::{Assignment, Prepared, Recipe, run};
pub use worker::Worker;
