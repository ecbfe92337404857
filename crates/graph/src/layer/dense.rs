//! `dense UNITS [ACTIVATION]`: a fully connected layer. Images are flattened first; a sequence is read position by
//! position.

use super::arguments::{LayerArguments, MAX_SIZE};
use crate::activation::Activation;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use std::fmt;

pub(super) const USAGE: &str = "dense UNITS [ACTIVATION]";

/// The outputs of a dense layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// As many as the data needs (last layer only).
    Auto,
    Count(usize),
}

/// A dense layer: `activation(input * weight^T + bias)` with a `[units, inputs]` weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseLayer {
    pub units: Units,
    pub activation: Activation,
}

impl DenseLayer {
    pub(super) fn parse(mut arguments: LayerArguments<'_>) -> Result<DenseLayer, String> {
        let units = match arguments.next() {
            None => return Err(arguments.error("the number of units is missing")),
            Some("auto") => Units::Auto,
            Some(argument) => {
                let reason = format!("expected a number of units or `auto`, got `{argument}`");
                let count = argument.parse().map_err(|_| arguments.error(reason))?;
                check_units(count)?;
                Units::Count(count)
            }
        };
        let activation = arguments.activation()?;
        arguments.finish()?;
        Ok(DenseLayer { units, activation })
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let Units::Count(units) = self.units else { return Err("the number of units is not known".into()) };
        check_units(units)?;
        let input = builder.flatten_unless_sequence(input)?;
        let inputs = builder.shape(input).width();
        let initializer = builder.weight_initializer(inputs, units);
        let sum = builder.affine(input, units, "", initializer)?;
        builder.activate(sum, self.activation)
    }
}

impl fmt::Display for DenseLayer {
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

pub(crate) fn check_units(count: usize) -> Result<(), String> {
    match count {
        1..=MAX_SIZE => Ok(()),
        _ => Err(format!("the number of units must be between 1 and {MAX_SIZE}, is {count}")),
    }
}
