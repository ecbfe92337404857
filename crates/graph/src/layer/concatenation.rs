//! `concat LAYER & LAYER | LAYER & ...`: branches over the same input, their outputs concatenated. `&` separates the
//! layers of a branch, `|` the branches.

use super::Layer;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use crate::op::{Op, concatenate};
use crate::pass::MAX_INPUTS;
use std::fmt;

/// Concatenates along the last axis (the channels of an image).
#[derive(Clone, Debug, PartialEq)]
pub struct ConcatenationLayer {
    pub branches: Vec<Vec<Layer>>,
}

impl ConcatenationLayer {
    pub(super) fn parse(text: &str) -> Result<ConcatenationLayer, String> {
        let branch = |text: &str| text.split('&').map(Layer::parse).collect::<Result<Vec<Layer>, String>>();
        let branches = text.split('|').map(branch).collect::<Result<Vec<_>, String>>()?;
        match branches.len() <= MAX_INPUTS {
            true => Ok(ConcatenationLayer { branches }),
            false => Err(format!("expected at most {MAX_INPUTS} branches, got {}", branches.len())),
        }
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let mut ends = Vec::new();
        let mut index = 0;
        for branch in &self.branches {
            let mut value = input;
            for layer in branch {
                let outer = builder.enter_scope(index);
                value = layer.append(builder, value).map_err(|reason| format!("\"{layer}\": {reason}"))?;
                builder.leave_scope(outer);
                index += 1;
            }
            ends.push(value);
        }
        builder.add(Op::Concatenate(concatenate::Concatenate), &ends)
    }
}

impl fmt::Display for ConcatenationLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let branch =
            |layers: &Vec<Layer>| layers.iter().map(Layer::to_string).collect::<Vec<_>>().join(" & ");
        let branches: Vec<String> = self.branches.iter().map(branch).collect();
        write!(f, "concat {}", branches.join(" | "))
    }
}
