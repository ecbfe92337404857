//! Leaves of the graph: features, parameters, constants; and side outputs.

use super::{Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use std::sync::Arc;
use thalweg_core::Result;

/// The features of the batch under these sizes per row.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureInput {
    pub sizes: Vec<usize>,
}

/// Values known when the graph is built.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    pub values: Arc<[f32]>,
    pub sizes: Vec<usize>,
}

/// One value for all elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    pub value: f32,
    pub sizes: Vec<usize>,
}

/// Parameters and side outputs: the graph infers their shapes, and they are written elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct External;

impl Operator for FeatureInput {
    fn describe(&self) -> String {
        "features".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 0)?;
        Ok(Shape::rows(&self.sizes))
    }

    fn run(&self, _: &mut OperatorCall<'_, '_>) -> Result<()> {
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}

impl Operator for Constant {
    fn describe(&self) -> String {
        "constant".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 0)?;
        let shape = Shape::fixed(&self.sizes);
        match shape.len(0) == self.values.len() {
            true => Ok(shape),
            false => Err(format!("expected {shape} numbers, got {}", self.values.len())),
        }
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        call.output.copy_from_slice(&self.values);
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}

impl Operator for Fill {
    fn describe(&self) -> String {
        format!("fill {}", self.value)
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 0)?;
        Ok(Shape::fixed(&self.sizes))
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        call.output.fill(self.value);
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}

impl Operator for External {
    fn describe(&self) -> String {
        "value".into()
    }

    fn shape(&self, _: &[&Shape]) -> Result<Shape, String> {
        Err("the graph infers the shape of parameters and side outputs".into())
    }

    fn run(&self, _: &mut OperatorCall<'_, '_>) -> Result<()> {
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}
