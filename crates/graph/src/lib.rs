//! The data-flow engine of Thalweg: layers, losses, optimizers.
//!
//! A job's layer list becomes a [`Network`], which implements the `Model` trait of `thalweg-core`. Layers append
//! nodes to a graph (`graph/`); `autodiff` appends the nodes of the gradients; passes (`pass/`), before and after
//! it, fuse and remove nodes; `plan` orders the operators and assigns buffers; `executor` runs the plan for a batch, writes each gradient
//! into one flat gradient buffer and reports it to the caller's hooks. An [`Optimizer`] updates the parameters. The crate does not
//! depend on ranks, files or sockets.
//!
//! ```
//! use thalweg_core::{Batch, Features, Model, NoHooks, Targets, spec::optimizer::UpdateRule};
//! use thalweg_graph::{Activation, Moment, Network, Optimizer};
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
//! let optimizer = Optimizer::new(UpdateRule::Sgd { lr: 0.5 }, parameters.len());
//! network.initialize(7, &mut parameters);
//! for updates in 0..50 {
//!     network.gradient(&parameters, &batch, 0.5, &mut gradient, &mut NoHooks)?;
//!     // Plain descent keeps no slots.
//!     optimizer.apply(Moment { updates, rate: 0.5 }, [&mut parameters, &mut [], &mut []], &gradient);
//! }
//! assert_eq!(network.evaluate(&parameters, &batch)?.correct, 2);
//! # Ok::<(), thalweg_core::Error>(())
//! ```

mod activation;
mod autodiff;
pub mod describe;
pub mod ensemble;
mod executor;
mod flat_order;
mod graph;
mod graph_builder;
mod initialize;
mod input;
pub mod instruction_set;
mod kernel;
mod layer;
mod loss;
mod model;
mod network;
mod network_builder;
pub mod onnx;
mod op;
pub mod optimizer;
mod partition;
mod pass;
mod plan;
mod sequence_sampler;
pub mod stacking;
mod team;
pub mod zoo;

pub use activation::Activation;
pub use ensemble::Ensemble;
pub use input::Input;
pub use kernel::non_finite::first_not_finite;
pub use loss::Loss;
pub use network::{Network, Options};
pub use network_builder::NetworkBuilder;
pub use optimizer::{Moment, Optimizer};
pub use sequence_sampler::SequenceSampler;
pub use team::Team;
