//! `lstm UNITS`, `gru UNITS`, `rnn UNITS`: recurrent layers with an output at every position.

use super::arguments::LayerArguments;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use crate::initialize::Initializer;
use crate::op::{Op, gru, lstm, rnn};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentCell {
    /// Gates in the order input, forget, cell, output.
    Lstm,
    /// Gates in the order reset, update, new.
    Gru,
    /// `tanh` of the projected input plus the projected hidden state.
    Rnn,
}

/// A recurrent layer. Its tensors are `input.weight` (`[gates * units, inputs]`), `input.bias`, `hidden.weight`
/// (`[gates * units, units]`) and, for a GRU, `hidden.bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentLayer {
    pub cell: RecurrentCell,
    pub units: usize,
}

impl RecurrentCell {
    pub(super) const NAMES: [&'static str; 3] = ["lstm", "gru", "rnn"];

    fn name(self) -> &'static str {
        match self {
            RecurrentCell::Lstm => "lstm",
            RecurrentCell::Gru => "gru",
            RecurrentCell::Rnn => "rnn",
        }
    }

    fn gates(self) -> usize {
        match self {
            RecurrentCell::Lstm => 4,
            RecurrentCell::Gru => 3,
            RecurrentCell::Rnn => 1,
        }
    }
}

impl RecurrentLayer {
    /// `None` if `kind` is not a recurrent layer.
    pub(super) fn parse(kind: &str, text: &str) -> Option<Result<RecurrentLayer, String>> {
        let cell = [RecurrentCell::Lstm, RecurrentCell::Gru, RecurrentCell::Rnn]
            .into_iter()
            .find(|cell| cell.name() == kind)?;
        let mut arguments = LayerArguments::new(text, "lstm|gru|rnn UNITS");
        let units = arguments.number("units");
        Some(units.and_then(|units| arguments.finish().map(|()| RecurrentLayer { cell, units })))
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let (units, wide) = (self.units, self.cell.gates() * self.units);
        let initializer = Initializer::Uniform(1.0 / (units as f32).sqrt());
        builder.expect_sequence(input)?;
        let read = builder.affine(input, wide, "input.", initializer.clone())?;
        let weight = builder.parameter("hidden.weight", &[wide, units], initializer)?;
        match self.cell {
            RecurrentCell::Rnn => builder.add(Op::Rnn(rnn::Rnn), &[read, weight]),
            RecurrentCell::Lstm => {
                let gates = builder.add(Op::Lstm(lstm::Lstm), &[read, weight])?;
                builder.add(Op::SideOutput(0), &[gates])
            }
            RecurrentCell::Gru => {
                let bias = builder.parameter("hidden.bias", &[wide], Initializer::Constant(0.0))?;
                let gates = builder.add(Op::Gru(gru::Gru), &[read, weight, bias])?;
                builder.add(Op::SideOutput(0), &[gates])
            }
        }
    }
}

impl fmt::Display for RecurrentLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.cell.name(), self.units)
    }
}
