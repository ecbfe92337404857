//! Where values come from: the batch, the caller's parameters, constants.

use super::{Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use std::sync::Arc;
use thalweg_core::Result;

/// The batch's features as numbers of that shape per row.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Sizes of one row.
    pub sizes: Vec<usize>,
}

/// Numbers known when the graph is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// The numbers.
    pub values: Arc<[f32]>,
    /// Their sizes.
    pub sizes: Vec<usize>,
}

/// The same number everywhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    /// The number.
    pub value: f32,
    /// How many.
    pub sizes: Vec<usize>,
}

/// Parameters and parts: the graph itself knows their shapes, and somebody else writes them.
#[derive(Clone, Copy, Debug)]
pub struct Named;

impl Operator for Features {
    fn describe(&self) -> String {
        "features".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 0)?;
        Ok(Shape::rows(&self.sizes))
    }

    fn run(&self, _: &mut Call<'_, '_>) -> Result<()> {
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

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
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

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        call.output.fill(self.value);
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}

impl Operator for Named {
    fn describe(&self) -> String {
        "value".into()
    }

    fn shape(&self, _: &[&Shape]) -> Result<Shape, String> {
        Err("the graph knows the shape of parameters and parts".into())
    }

    fn run(&self, _: &mut Call<'_, '_>) -> Result<()> {
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}
