//! `dense UNITS [ACTIVATION]`: every result from every number. Images are flattened first; over a sequence, every
//! position is taken by itself.

use super::words::{MOST, Words};
use crate::activation::Activation;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use std::fmt;

pub(super) const USAGE: &str = "dense UNITS [ACTIVATION]";

/// How many numbers a layer answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// What the data asks for (last layer only).
    Auto,
    /// That many.
    Count(usize),
}

/// A dense layer: `activation(input * weight^T + bias)` with a `[units, inputs]` weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dense {
    /// How many numbers it answers with.
    pub units: Units,
    /// What it does to each of them.
    pub activation: Activation,
}

impl Dense {
    pub(super) fn parse(mut words: Words<'_>) -> Result<Dense, String> {
        let units = match words.next() {
            None => return Err(words.complaint("the number of units is missing")),
            Some("auto") => Units::Auto,
            Some(word) => {
                let reason = format!("expected a number of units or `auto`, got `{word}`");
                let count = word.parse().map_err(|_| words.complaint(reason))?;
                check_units(count)?;
                Units::Count(count)
            }
        };
        let activation = words.activation()?;
        words.finish()?;
        Ok(Dense { units, activation })
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let Units::Count(units) = self.units else { return Err("the number of units is not known".into()) };
        check_units(units)?;
        let input = assembly.flat_unless_sequence(input)?;
        let inputs = assembly.shape(input).width();
        let initializer = assembly.spread(inputs, units);
        let sum = assembly.affine(input, units, "", initializer)?;
        assembly.activate(sum, self.activation)
    }
}

impl fmt::Display for Dense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.units {
            Units::Auto => write!(f, "dense auto")?,
            Units::Count(count) => write!(f, "dense {count}")?,
        }
        match self.activation.name() {
            Some(name) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

/// Refuses numbers of units that no layer can have.
pub(crate) fn check_units(count: usize) -> Result<(), String> {
    match count {
        1..=MOST => Ok(()),
        _ => Err(format!("the number of units must be between 1 and {MOST}, is {count}")),
    }
}
