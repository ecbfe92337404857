//! Trainable tensors and running statistics of a graph.

use crate::initialize::Initializer;
use thalweg_core::FileOrder;
use thalweg_core::model::{Density, TensorRole};

/// A tensor in the caller's flat buffer; the graph reads it and computes its gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// `layers.0.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    pub role: TensorRole,
    pub density: Density,
    pub initializer: Initializer,
    /// Key of its random initial values, besides the seed.
    pub key: Vec<u64>,
    /// Element order in files, if it differs from memory.
    pub file_order: Option<FileOrder>,
}
