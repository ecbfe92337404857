//! The last position of a sequence.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result};

/// `positions x width` becomes `width`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Last;

/// Zeros at all other positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastGradient {
    pub positions: usize,
}

impl Operator for Last {
    fn describe(&self) -> String {
        "last position".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        match inputs[0].sizes() {
            [positions, width] if *positions > 0 => Ok(inputs[0].with_sizes(&[*width])),
            _ => Err(format!("expected a sequence (positions x numbers), got {}", inputs[0])),
        }
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (width, sequence) = (call.shape.width(), call.shapes[0].per_row().max(1));
        for (output, input) in
            call.output.chunks_exact_mut(width.max(1)).zip(call.inputs[0].chunks_exact(sequence))
        {
            output.copy_from_slice(&input[sequence - width..]);
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let input = tape.input(node, 0);
        let positions = tape.shape(input).sizes()[0];
        let gradient = tape.add(Op::LastGradient(LastGradient { positions }), &[delta]);
        tape.accumulate(input, gradient);
    }

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}

impl Operator for LastGradient {
    fn describe(&self) -> String {
        "last position'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(inputs[0].with_sizes(&[self.positions, inputs[0].width()]))
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (width, sequence) = (call.shape.width(), call.shape.per_row().max(1));
        call.output.fill(0.0);
        for (output, delta) in
            call.output.chunks_exact_mut(sequence).zip(call.inputs[0].chunks_exact(width.max(1)))
        {
            output[sequence - width..].copy_from_slice(delta);
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}
