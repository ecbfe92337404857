//! `attention HEADS [causal]`: every position gathers from the others what it asks for.

use super::words::Words;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use crate::initialize::Initializer;
use crate::op::{Op, attention};
use std::fmt;

pub(super) const USAGE: &str = "attention HEADS [causal]";

/// Multi-head self-attention with a product before it (`input.weight`: queries, keys and values) and one behind it
/// (`output.weight`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// How many heads share the width.
    pub heads: usize,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
}

impl Attention {
    pub(super) fn parse(mut words: Words<'_>) -> Result<Attention, String> {
        let heads = words.number("heads")?;
        let causal = words.flag("causal");
        words.finish().map(|()| Attention { heads, causal })
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        assembly.expect_sequence(input)?;
        let width = assembly.shape(input).width();
        let initializer = Initializer::Glorot { fan_in: width, fan_out: width };
        let read = assembly.affine(input, 3 * width, "input.", initializer.clone())?;
        let op = attention::Attention { heads: self.heads, causal: self.causal };
        let gathered = assembly.add(Op::Attention(op), &[read])?;
        assembly.affine(gathered, width, "output.", initializer)
    }
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attention {}{}", self.heads, if self.causal { " causal" } else { "" })
    }
}
