//! The data-flow engine of Thalweg: layers, losses, optimizers.
//!
//! A job's layer list becomes a [`Network`] behind the model boundary of `thalweg-core`. On the way, layers append
//! nodes to a [`graph`]; [`autodiff`] appends the nodes of the gradients; the passes of [`pass`] fuse and drop nodes; a
//! [`plan`] says in which order they run and where each value lives; an [`executor`] runs the plan for a batch, writes
//! each tensor's gradient into its place in the flat buffer and announces it. An [`Optimizer`] turns gradients into
//! steps. Nothing here knows of ranks, files or sockets.
//!
//! ```
//! use thalweg_core::{Batch, Features, Model, NoHooks, Targets, spec::optimizer::Rule};
//! use thalweg_graph::{Activation, Network, Optimizer};
//!
//! let mut network = Network::with_inputs(2).dense(8, Activation::Tanh).dense(2, Activation::None).classification()?;
//! let batch = Batch {
//!     epoch: 0,
//!     rows: vec![0, 1],
//!     width: 2,
//!     features: Features::Dense(vec![0.0, 1.0, 1.0, 0.0]),
//!     targets: Targets::Classes(vec![0, 1]),
//! };
//! let mut parameters = vec![0.0; network.layout().len()];
//! let mut gradient = vec![0.0; network.layout().len()];
//! let mut optimizer = Optimizer::new(Rule::Sgd { lr: 0.5 }, parameters.len());
//! network.initialize(7, &mut parameters);
//! for _ in 0..50 {
//!     network.gradient(&parameters, &batch, 0.5, &mut gradient, &mut NoHooks)?;
//!     optimizer.update(&mut parameters, &gradient);
//! }
//! assert_eq!(network.evaluate(&parameters, &batch)?.correct, 2);
//! # Ok::<(), thalweg_core::Error>(())
//! ```

pub mod activation;
mod assembly;
pub mod autodiff;
mod builder;
pub mod continuation;
pub mod describe;
pub mod executor;
mod flat_order;
pub mod graph;
pub mod initialize;
pub mod input;
pub mod instructions;
mod kernel;
pub mod layer;
pub mod loss;
mod model;
mod network;
pub mod onnx;
pub mod op;
pub mod optimizer;
pub mod pass;
pub mod plan;
mod shares;
pub mod team;
pub mod zoo;

pub use activation::Activation;
pub use builder::NetworkBuilder;
pub use continuation::Continuation;
pub use graph::Graph;
pub use input::Input;
pub use kernel::strange::first_not_finite;
pub use layer::Layer;
pub use loss::Loss;
pub use network::{Network, Options};
pub use optimizer::Optimizer;
pub use team::Team;
