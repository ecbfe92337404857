//! `embedding WIDTH [positions]`: a learned vector for each symbol; with `positions`, one for each place is added.

use super::words::Words;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use crate::initialize::Initializer;
use crate::input::Input;
use crate::op::elementwise::Step;
use crate::op::{Op, embedding};
use std::fmt;
use thalweg_core::model::{Density, Role};

pub(super) const USAGE: &str = "embedding WIDTH [positions]";

/// The deviation of the first vectors.
const DEVIATION: f32 = 0.1;

/// The first layer of a network that reads symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding {
    /// Numbers per symbol.
    pub width: usize,
    /// Whether each position has a vector of its own as well.
    pub positions: bool,
}

impl Embedding {
    pub(super) fn parse(mut words: Words<'_>) -> Result<Embedding, String> {
        let width = words.number("numbers per symbol")?;
        let positions = words.flag("positions");
        words.finish().map(|()| Embedding { width, positions })
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let Input::Symbols { window, vocabulary } = assembly.input else {
            return Err(format!("expected symbols (text), got {}", assembly.shape(input)));
        };
        if !assembly.is_features(input) {
            let got = assembly.shape(input);
            return Err(format!("expected the text itself, as the first layer, got {got}"));
        }
        let width = self.width;
        let initializer = Initializer::Normal(DEVIATION);
        let table = assembly.tensor(
            "weight",
            &[vocabulary, width],
            initializer.clone(),
            Role::Trainable,
            Density::Rows,
        )?;
        let vectors = assembly.add(Op::Embedding(embedding::Embedding { window }), &[table])?;
        if !self.positions {
            return Ok(vectors);
        }
        let places = assembly.parameter("positions", &[window, width], initializer)?;
        let flat = assembly.reshape(vectors, &[window * width])?;
        let sum = assembly.add(Op::step(Step::Bias), &[flat, places])?;
        assembly.reshape(sum, &[window, width])
    }
}

impl fmt::Display for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "embedding {}{}", self.width, if self.positions { " positions" } else { "" })
    }
}
