//! Thalweg trains machine-learning models on many processes and many machines.
//!
//! One job file, one binary; a few settings (`[strategy]`) choose how the work is distributed. This crate is the
//! facade: [`Trainer`] is the library form of `thalweg train`.
//!
//! ```no_run
//! use thalweg::{Activation, Data, Network, Targets, Trainer};
//!
//! let report = Trainer::new("xor")
//!     .set("engine.workers=2")
//!     .data(|job| Data::in_memory(2, vec![0.0; 200], Targets::Classes(vec![0; 100]), 0.2, job.train.seed))
//!     .model(|schema| Network::with_inputs(schema.width()).dense(2, Activation::None).classification())
//!     .run()?;
//! println!("accuracy {:.3}", report.last["accuracy"]);
//! # Ok::<(), thalweg::Error>(())
//! ```

#![warn(missing_docs)]

mod address_file;
mod artifact;
pub mod cli;
pub mod command;
mod components;
mod external_launcher;
mod fault_tolerance;
mod folder;
mod join_info;
mod launch;
mod launcher_watch;
mod preflight;
mod results;
mod scratch;
mod signals;
mod simulation;
mod token;
pub mod trainer;
pub mod view;

pub use components::SpecComponents;
pub use thalweg_core::{
    Batch, Error, Features, Hooks, Job, JobSpec, Layout, Model, Result, Schema, Tally, Targets,
    report::Report, spec::JobLayers,
};
pub use thalweg_data::Data;
pub use thalweg_graph::{Activation, Network, Team};
pub use thalweg_train::JobComponents;
pub use thalweg_train::registry::resolve as resolve_job;
pub use trainer::Trainer;
