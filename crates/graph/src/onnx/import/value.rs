//! The value of an ONNX name during translation.

use super::constant::ConstantTensor;
use super::view::View;

#[derive(Clone, Debug)]
pub enum Value {
    /// The symbols of the batch, as integers.
    Symbols,
    /// Computed from the rows.
    View(View),
    /// A float initializer: trainable or a statistic, depending on the node that reads it.
    Weight(Weight),
    /// Known at import.
    Constant(ConstantTensor),
    /// One number broadcast to a shape that contains the rows.
    Filled(f32),
    /// Part of an attention pattern.
    Scores(AttentionScores),
    /// Part of a GELU pattern: `erf(x / sqrt 2)` of the view; `true` once 1 is added.
    Erf(View, bool),
    /// Part of a decomposed normalisation of the view.
    Norm(NormStage, View),
    /// The output of a node that could not be translated.
    Untranslated,
}

/// An initializer before its reader decides its role.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Name of the parameter.
    pub name: String,
    /// Name of the initializer.
    pub initializer: String,
    /// Its shape in the file.
    pub file_shape: Vec<usize>,
    /// Its elements in the file's order, under the shape that its reader sees.
    pub tensor: ConstantTensor,
    /// Whether its reader sees the matrix transposed.
    pub transposed: bool,
}

impl Weight {
    pub fn new(name: &str, tensor: ConstantTensor) -> Weight {
        let file_shape = tensor.sizes.clone();
        Weight { name: name.into(), initializer: name.into(), file_shape, tensor, transposed: false }
    }
}

/// `factor * queries * keys`, optionally masked and normalised by a softmax.
#[derive(Clone, Debug)]
pub struct AttentionScores {
    /// `... x positions x head size`.
    pub queries: View,
    /// `... x head size x positions`.
    pub keys: View,
    pub factor: f32,
    pub causal: bool,
    /// Whether the softmax is applied.
    pub is_normalized: bool,
}

/// Stages of a decomposed layer normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormStage {
    /// Mean over the last axis.
    Mean,
    /// The value minus its mean.
    Centered,
    Squared,
    Variance,
    /// The variance plus epsilon.
    PlusEpsilon(f32),
    /// The root of variance plus epsilon.
    StdDev(f32),
}
