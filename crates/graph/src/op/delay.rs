//! A sequence shifted by one position: the previous hidden states, for the gradient of a recurrent weight.

use super::{Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result};

/// Shifts the sequence of each row by one position; the first one is zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delay;

impl Operator for Delay {
    fn describe(&self) -> String {
        "delay".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(inputs[0].clone())
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (sequence, width) = (call.shape.per_row().max(1), call.shape.width());
        for (output, input) in
            call.output.chunks_exact_mut(sequence).zip(call.inputs[0].chunks_exact(sequence))
        {
            output[..width].fill(0.0);
            output[width..].copy_from_slice(&input[..sequence - width]);
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}
