//! `lstm UNITS`, `gru UNITS`, `rnn UNITS`: layers that walk along a sequence and answer at every position.

use super::words::Words;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use crate::initialize::Initializer;
use crate::op::{Op, gru, lstm, rnn};
use std::fmt;

/// What happens at each position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Long short-term memory (gates in the order input, forget, cell, output).
    Lstm,
    /// A gated recurrent unit (gates in the order reset, update, new).
    Gru,
    /// `tanh` of what it reads and of what it said before.
    Plain,
}

/// A recurrent layer. Its tensors are `input.weight` (`[gates * units, inputs]`), `input.bias`, `hidden.weight`
/// (`[gates * units, units]`) and, for a gated recurrent unit, `hidden.bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// What happens at each position.
    pub cell: Cell,
    /// Numbers it answers with at every position.
    pub units: usize,
}

impl Cell {
    /// The words for them.
    pub(super) const NAMES: [&'static str; 3] = ["lstm", "gru", "rnn"];

    fn name(self) -> &'static str {
        match self {
            Cell::Lstm => "lstm",
            Cell::Gru => "gru",
            Cell::Plain => "rnn",
        }
    }

    fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Plain => 1,
        }
    }
}

impl Recurrent {
    /// The layer of that kind; nothing if there is none.
    pub(super) fn parse(kind: &str, text: &str) -> Option<Result<Recurrent, String>> {
        let cell = [Cell::Lstm, Cell::Gru, Cell::Plain].into_iter().find(|cell| cell.name() == kind)?;
        let mut words = Words::new(text, "lstm|gru|rnn UNITS");
        let units = words.number("units");
        Some(units.and_then(|units| words.finish().map(|()| Recurrent { cell, units })))
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let (units, wide) = (self.units, self.cell.gates() * self.units);
        let initializer = Initializer::Uniform(1.0 / (units as f32).sqrt());
        assembly.expect_sequence(input)?;
        let read = assembly.affine(input, wide, "input.", initializer.clone())?;
        let weight = assembly.parameter("hidden.weight", &[wide, units], initializer)?;
        match self.cell {
            Cell::Plain => assembly.add(Op::Rnn(rnn::Rnn), &[read, weight]),
            Cell::Lstm => {
                let gates = assembly.add(Op::Lstm(lstm::Lstm), &[read, weight])?;
                assembly.add(Op::Part(0), &[gates])
            }
            Cell::Gru => {
                let bias = assembly.parameter("hidden.bias", &[wide], Initializer::Constant(0.0))?;
                let gates = assembly.add(Op::Gru(gru::Gru), &[read, weight, bias])?;
                assembly.add(Op::Part(0), &[gates])
            }
        }
    }
}

impl fmt::Display for Recurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.cell.name(), self.units)
    }
}
