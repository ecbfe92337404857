//! Thalweg trains machine-learning models on many processes and many machines.
//!
//! One job file, one binary; how the work is distributed is a choice of a few dials. This is the facade: [`Trainer`]
//! does in a program what `thalweg train` does on the command line.
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

mod address_file;
mod artifact;
pub mod cli;
pub mod command;
mod folder;
mod foreign;
mod invitation;
mod launch;
mod parent;
mod preflight;
mod recipe;
mod results;
mod scratch;
mod signals;
mod simulation;
mod survival;
mod token;
pub mod trainer;
pub mod view;

pub use recipe::JobRecipe;
pub use thalweg_core::{
    Batch, Error, Features, Hooks, Job, JobSpec, Layout, Model, Result, Schema, Tally, Targets,
    report::Report,
};
pub use thalweg_data::Data;
pub use thalweg_graph::{Activation, Network, Team};
pub use thalweg_train::Recipe;
pub use trainer::Trainer;
