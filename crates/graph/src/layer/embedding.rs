//! `embedding WIDTH [positions]`: a learned vector per symbol; `positions` adds a learned vector per position.

use super::arguments::LayerArguments;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use crate::initialize::Initializer;
use crate::input::Input;
use crate::op::elementwise::ElementwiseStep;
use crate::op::{Op, embedding};
use std::fmt;
use thalweg_core::model::{Density, TensorRole};

pub(super) const USAGE: &str = "embedding WIDTH [positions]";

/// Standard deviation of the initial vectors.
const DEVIATION: f32 = 0.1;

/// The first layer of a network that reads text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingLayer {
    /// Size of a symbol's vector.
    pub width: usize,
    /// Whether to add a vector per position.
    pub positions: bool,
}

impl EmbeddingLayer {
    pub(super) fn parse(mut arguments: LayerArguments<'_>) -> Result<EmbeddingLayer, String> {
        let width = arguments.number("numbers per symbol")?;
        let positions = arguments.flag("positions");
        arguments.finish().map(|()| EmbeddingLayer { width, positions })
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let Input::Symbols { window, vocabulary } = builder.input else {
            return Err(format!("expected symbols (text), got {}", builder.shape(input)));
        };
        if !builder.is_features(input) {
            let got = builder.shape(input);
            return Err(format!("expected to be the first layer, directly on the text, got {got}"));
        }
        let width = self.width;
        let initializer = Initializer::Normal(DEVIATION);
        let table = builder.tensor(
            "weight",
            &[vocabulary, width],
            initializer.clone(),
            TensorRole::Trainable,
            Density::Rows,
        )?;
        let vectors = builder.add(Op::Embedding(embedding::Embedding { window }), &[table])?;
        if !self.positions {
            return Ok(vectors);
        }
        let positions = builder.parameter("positions", &[window, width], initializer)?;
        let flat = builder.reshape(vectors, &[window * width])?;
        let sum = builder.add(Op::elementwise(ElementwiseStep::Bias), &[flat, positions])?;
        builder.reshape(sum, &[window, width])
    }
}

impl fmt::Display for EmbeddingLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "embedding {}{}", self.width, if self.positions { " positions" } else { "" })
    }
}
