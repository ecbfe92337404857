//! A view under another shape: nothing is computed.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::Result;

/// Other sizes, without the batch dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshape {
    pub sizes: Vec<usize>,
}

impl Operator for Reshape {
    fn describe(&self) -> String {
        "reshape".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        let shape = inputs[0].with_sizes(&self.sizes);
        match shape.per_row() == inputs[0].per_row() {
            true => Ok(shape),
            false => Err(format!("expected {shape}, got {}", inputs[0])),
        }
    }

    fn is_view(&self) -> bool {
        true
    }

    fn run(&self, _: &mut OperatorCall<'_, '_>) -> Result<()> {
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let input = tape.input(node, 0);
        let sizes = tape.shape(input).sizes().to_vec();
        let gradient = tape.add(Op::Reshape(Reshape { sizes }), &[delta]);
        tape.accumulate(input, gradient);
    }

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}
