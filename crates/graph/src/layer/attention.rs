//! `attention HEADS [causal]`: multi-head self-attention.

use super::arguments::LayerArguments;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use crate::op::{Op, attention};
use std::fmt;

pub(super) const USAGE: &str = "attention HEADS [causal]";

/// Self-attention with an input projection to queries, keys and values (`input.weight`) and an output projection
/// (`output.weight`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionLayer {
    pub heads: usize,
    /// Whether a position attends only to itself and earlier positions.
    pub causal: bool,
}

impl AttentionLayer {
    pub(super) fn parse(mut arguments: LayerArguments<'_>) -> Result<AttentionLayer, String> {
        let heads = arguments.number("heads")?;
        let causal = arguments.flag("causal");
        arguments.finish().map(|()| AttentionLayer { heads, causal })
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        builder.expect_sequence(input)?;
        let width = builder.shape(input).width();
        let initializer = builder.weight_initializer(width, width);
        let read = builder.affine(input, 3 * width, "input.", initializer.clone())?;
        let op = attention::Attention { heads: self.heads, causal: self.causal };
        let gathered = builder.add(Op::Attention(op), &[read])?;
        builder.affine(gathered, width, "output.", initializer)
    }
}

impl fmt::Display for AttentionLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attention {}{}", self.heads, if self.causal { " causal" } else { "" })
    }
}
