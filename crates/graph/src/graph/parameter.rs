//! What a graph learns: named tensors with a place to begin.

use crate::initialize::Initializer;
use thalweg_core::FileOrder;
use thalweg_core::model::{Density, Role};

/// A tensor that the caller owns; the graph reads it and finds its gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// `layers.0.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Learned or a running statistic.
    pub role: Role,
    /// Whether every row gets a gradient.
    pub density: Density,
    /// Where it begins.
    pub initializer: Initializer,
    /// What its random numbers are keyed by, besides the seed.
    pub key: Vec<u64>,
    /// How files order it, where that is not the order of memory.
    pub file_order: Option<FileOrder>,
}
