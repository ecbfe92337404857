//! Layer normalisation without gain and bias, which are elementwise steps: each vector gets mean 0 and variance 1.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use crate::kernel::normalize;
use thalweg_core::{Batch, Result};

/// The usual value of `epsilon`.
pub const EPSILON: f32 = 1e-5;

/// In place. Side output: the inverse standard deviation of each vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormalize {
    /// Added to the variance.
    pub epsilon: f32,
}

/// In place on the gradient; the other inputs are the normalised vectors and the inverse standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormalizeGradient;

impl Operator for LayerNormalize {
    fn describe(&self) -> String {
        "layer normalize".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(inputs[0].clone())
    }

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].with_sizes(&[inputs[0].vectors()])]
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let inverses = call.side_outputs[0].as_deref_mut();
        normalize::normalize(call.output, call.shape.width(), self.epsilon, inverses);
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let inverses = tape.add(Op::SideOutput(0), &[node]);
        let gradient = tape.add(Op::LayerNormalizeGradient(LayerNormalizeGradient), &[delta, node, inverses]);
        tape.accumulate(tape.input(node, 0), gradient);
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        6 * shape.per_row() as u64
    }
}

impl Operator for LayerNormalizeGradient {
    fn describe(&self) -> String {
        "layer normalize'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 3)?;
        Ok(inputs[0].clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        normalize::normalize_backward(call.output, call.inputs[1], call.inputs[2], call.shape.width());
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        8 * shape.per_row() as u64
    }
}
