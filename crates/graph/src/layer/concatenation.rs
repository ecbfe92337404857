//! `concat LAYER & LAYER | LAYER & ...`: branches that read the same, their answers side by side. Layers of a branch are
//! joined by `&`, branches by `|`.

use super::Layer;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use crate::op::{Op, concatenate};
use crate::pass::MOST_INPUTS;
use std::fmt;

/// Branches side by side along the last size (the channels of an image).
#[derive(Clone, Debug, PartialEq)]
pub struct Concatenation {
    /// The layers of each branch.
    pub branches: Vec<Vec<Layer>>,
}

impl Concatenation {
    pub(super) fn parse(text: &str) -> Result<Concatenation, String> {
        let branch = |text: &str| text.split('&').map(Layer::parse).collect::<Result<Vec<Layer>, String>>();
        let branches = text.split('|').map(branch).collect::<Result<Vec<_>, String>>()?;
        match branches.len() <= MOST_INPUTS {
            true => Ok(Concatenation { branches }),
            false => Err(format!("expected at most {MOST_INPUTS} branches, got {}", branches.len())),
        }
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let mut ends = Vec::new();
        let mut index = 0;
        for branch in &self.branches {
            let mut value = input;
            for layer in branch {
                let outer = assembly.enter(index);
                value = layer.append(assembly, value).map_err(|reason| format!("\"{layer}\": {reason}"))?;
                assembly.leave(outer);
                index += 1;
            }
            ends.push(value);
        }
        assembly.add(Op::Concatenate(concatenate::Concatenate), &ends)
    }
}

impl fmt::Display for Concatenation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let branch =
            |layers: &Vec<Layer>| layers.iter().map(Layer::to_string).collect::<Vec<_>>().join(" & ");
        let branches: Vec<String> = self.branches.iter().map(branch).collect();
        write!(f, "concat {}", branches.join(" | "))
    }
}
