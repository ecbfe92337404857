//! Layer normalisation without its gain and bias (those are steps of a chain): each line gets mean 0 and variance 1.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use crate::kernel::normalize;
use thalweg_core::{Batch, Result};

/// Usually added to the variance.
pub const EPSILON: f32 = 1e-5;

/// Lines with mean 0 and variance 1, in place; beside them, one over each line's deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalize {
    /// Added to the variance.
    pub epsilon: f32,
}

/// The way back, in place on the gradient; the other inputs are the normalised lines and one over the deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormalizeGradient;

impl Operator for Normalize {
    fn describe(&self) -> String {
        "normalize lines".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(inputs[0].clone())
    }

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].with_sizes(&[inputs[0].lines()])]
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let inverses = call.parts[0].as_deref_mut();
        normalize::normalize(call.output, call.shape.width(), self.epsilon, inverses);
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let inverses = tape.add(Op::Part(0), &[node]);
        let gradient = tape.add(Op::NormalizeGradient(NormalizeGradient), &[delta, node, inverses]);
        tape.give(tape.input(node, 0), gradient);
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        6 * shape.per_row() as u64
    }
}

impl Operator for NormalizeGradient {
    fn describe(&self) -> String {
        "normalize lines'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 3)?;
        Ok(inputs[0].clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        normalize::gradient(call.output, call.inputs[1], call.inputs[2], call.shape.width());
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        8 * shape.per_row() as u64
    }
}
