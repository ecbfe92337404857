//! Values side by side along the last size, and one of them cut out again: each is the other's way back.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result};

/// All inputs side by side; they differ in their last size only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concatenate;

/// Some columns of each line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Columns {
    /// The first of them.
    pub begin: usize,
    /// How many.
    pub count: usize,
}

/// The way back of [`Columns`]: zeros on both sides of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnsGradient {
    /// The first of them.
    pub begin: usize,
    /// How many columns a line had.
    pub whole: usize,
}

impl Operator for Concatenate {
    fn describe(&self) -> String {
        "concatenate".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        let Some(first) = inputs.first() else { return Err("expected something to put together".into()) };
        let alike = |shape: &&&Shape| shape.with_width(0) == first.with_width(0);
        match inputs.iter().find(|shape| !alike(shape)) {
            Some(other) => {
                Err(format!("expected sizes that differ in the last only, got {first} and {other}"))
            }
            None => Ok(first.with_width(inputs.iter().map(|shape| shape.width()).sum())),
        }
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let whole = call.shape.width().max(1);
        let mut begin = 0;
        for (input, shape) in call.inputs.iter().zip(call.shapes) {
            let width = shape.width();
            for (line, part) in call.output.chunks_exact_mut(whole).zip(input.chunks_exact(width.max(1))) {
                line[begin..begin + width].copy_from_slice(part);
            }
            begin += width;
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let mut begin = 0;
        for index in 0..tape.inputs(node) {
            let input = tape.input(node, index);
            let count = tape.shape(input).width();
            if tape.wants(input) {
                let gradient = tape.add(Op::Columns(Columns { begin, count }), &[delta]);
                tape.give(input, gradient);
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

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let whole = call.shapes[0].width().max(1);
        for (part, line) in
            call.output.chunks_exact_mut(self.count.max(1)).zip(call.inputs[0].chunks_exact(whole))
        {
            part.copy_from_slice(&line[self.begin..self.begin + self.count]);
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let input = tape.input(node, 0);
        let whole = tape.shape(input).width();
        let op = ColumnsGradient { begin: self.begin, whole };
        let gradient = tape.add(Op::ColumnsGradient(op), &[delta]);
        tape.give(input, gradient);
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
        match self.begin + inputs[0].width() <= self.whole {
            true => Ok(inputs[0].with_width(self.whole)),
            false => Err(format!("expected at most {} columns, got {}", self.whole - self.begin, inputs[0])),
        }
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let count = call.shapes[0].width();
        call.output.fill(0.0);
        for (line, part) in
            call.output.chunks_exact_mut(self.whole.max(1)).zip(call.inputs[0].chunks_exact(count.max(1)))
        {
            line[self.begin..self.begin + count].copy_from_slice(part);
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}
