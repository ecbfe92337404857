//! Concatenation along the last axis, and slices of it; each is the gradient of the other.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result};

/// Concatenates inputs that differ in their last size only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concatenate;

/// A slice of the last axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Columns {
    pub begin: usize,
    pub count: usize,
}

/// The gradient of [`Columns`]: zeros outside the slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnsGradient {
    pub begin: usize,
    /// Columns of the input of [`Columns`].
    pub width: usize,
}

impl Operator for Concatenate {
    fn describe(&self) -> String {
        "concatenate".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        let Some(first) = inputs.first() else { return Err("expected at least one input".into()) };
        let matches = |shape: &&&Shape| shape.with_width(0) == first.with_width(0);
        match inputs.iter().find(|shape| !matches(shape)) {
            Some(other) => {
                Err(format!("expected sizes that differ in the last only, got {first} and {other}"))
            }
            None => Ok(first.with_width(inputs.iter().map(|shape| shape.width()).sum())),
        }
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let total = call.shape.width().max(1);
        let mut begin = 0;
        for (input, shape) in call.inputs.iter().zip(call.shapes) {
            let width = shape.width();
            let vectors = input.chunks_exact(width.max(1));
            for (output, input) in call.output.chunks_exact_mut(total).zip(vectors) {
                output[begin..begin + width].copy_from_slice(input);
            }
            begin += width;
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let mut begin = 0;
        for index in 0..tape.input_count(node) {
            let input = tape.input(node, index);
            let count = tape.shape(input).width();
            if tape.needs_gradient(input) {
                let gradient = tape.add(Op::Columns(Columns { begin, count }), &[delta]);
                tape.accumulate(input, gradient);
            }
            begin += count;
        }
    }

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}

impl Operator for Columns {
    fn describe(&self) -> String {
        format!("columns {} to {}", self.begin, self.begin + self.count)
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        match self.begin + self.count <= inputs[0].width() {
            true => Ok(inputs[0].with_width(self.count)),
            false => Err(format!("expected at least {} columns, got {}", self.begin + self.count, inputs[0])),
        }
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let width = call.shapes[0].width().max(1);
        for (output, input) in
            call.output.chunks_exact_mut(self.count.max(1)).zip(call.inputs[0].chunks_exact(width))
        {
            output.copy_from_slice(&input[self.begin..self.begin + self.count]);
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let input = tape.input(node, 0);
        let width = tape.shape(input).width();
        let op = ColumnsGradient { begin: self.begin, width };
        let gradient = tape.add(Op::ColumnsGradient(op), &[delta]);
        tape.accumulate(input, gradient);
    }

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}

impl Operator for ColumnsGradient {
    fn describe(&self) -> String {
        format!("columns from {}'", self.begin)
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        match self.begin + inputs[0].width() <= self.width {
            true => Ok(inputs[0].with_width(self.width)),
            false => Err(format!("expected at most {} columns, got {}", self.width - self.begin, inputs[0])),
        }
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let count = call.shapes[0].width();
        call.output.fill(0.0);
        for (output, input) in
            call.output.chunks_exact_mut(self.width.max(1)).zip(call.inputs[0].chunks_exact(count.max(1)))
        {
            output[self.begin..self.begin + count].copy_from_slice(input);
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}
