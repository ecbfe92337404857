//! The strategies, and the machinery they share.
//!
//! A strategy is one file with a short program written against [`Worker`] and its rank; [`strategy`] picks it from the
//! dials. What every program needs (rows, gradients, updates, validation, checkpoints, audit) is the worker's.

mod accumulate;
mod apprenticeship;
pub mod audit;
mod buckets;
pub mod centralized;
mod contributions;
pub mod decentralized;
mod epoch;
mod finite;
pub mod footprint;
mod gossip;
mod hidden;
pub mod hooks;
mod keepsake;
#[doc(hidden)]
pub mod known_bugs;
mod leaves;
pub mod modelfile;
mod overlap;
mod pass;
pub mod prepare;
mod progress;
mod push_pull;
mod regroup;
pub mod rider;
mod scribe;
mod shared;
mod slowdown;
mod speed;
mod split;
pub mod strategy;
mod tune;
pub mod validate;
pub mod worker;

pub use modelfile::{SavedModel, kept};
pub use prepare::{Assignment, JobComponents, Prepared, run};
pub use worker::Worker;
