//! Transposition of the last two axes, per row of the batch.

use super::{Op, Operator, expect_inputs, matrix};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result};

/// `... x a x b` becomes `... x b x a`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transpose;

impl Operator for Transpose {
    fn describe(&self) -> String {
        "transpose".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        let mut sizes = inputs[0].sizes().to_vec();
        let count = sizes.len();
        if count < 2 {
            return Err(format!("expected at least two axes to transpose, got {}", inputs[0]));
        }
        sizes.swap(count - 2, count - 1);
        Ok(inputs[0].with_sizes(&sizes))
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let columns = call.shapes[0].width();
        let len = (columns * call.shape.width()).max(1);
        for (output, input) in call.output.chunks_exact_mut(len).zip(call.inputs[0].chunks_exact(len)) {
            matrix::transpose(output, input, columns);
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let gradient = tape.add(Op::Transpose(Transpose), &[delta]);
        tape.accumulate(tape.input(node, 0), gradient);
    }

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}
