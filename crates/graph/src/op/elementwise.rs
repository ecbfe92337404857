//! Chains of steps on each element. A chain is run block by block, so that a block stays in the first cache from its
//! first step to its last; a product takes a chain as its epilogue.

use super::column_sums::ColumnSums;
use super::{Op, Operator};
use crate::activation::Activation;
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use crate::kernel::{activate, arithmetic};
use thalweg_core::{Batch, Result};

/// Elements of a block: 16 KiB, half of the usual first cache, the rest for an operand.
const BLOCK: usize = 4096;

/// One thing done to each element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Adds the operand, one number per column.
    Bias,
    /// Multiplies by the operand, one number per column.
    Gain,
    /// Applies a function.
    Activate(Activation),
    /// Multiplies by the function's slope; the operand is what the function gave (or took, see
    /// [`Activation::slope_needs_input`]).
    Slope(Activation),
    /// Adds the operand, element by element.
    Add,
    /// Multiplies by the operand, element by element.
    Multiply,
    /// Multiplies by a number.
    Scale(f32),
}

impl Step {
    /// Whether the step reads something besides the element.
    pub fn takes_operand(self) -> bool {
        !matches!(self, Step::Activate(_) | Step::Scale(_))
    }

    /// Whether the operand is the same for every line.
    pub fn is_broadcast(self) -> bool {
        matches!(self, Step::Bias | Step::Gain)
    }

    fn name(self) -> String {
        match self {
            Step::Bias => "bias".into(),
            Step::Gain => "gain".into(),
            Step::Activate(activation) => activation.name().unwrap_or("none").into(),
            Step::Slope(activation) => format!("{}'", activation.name().unwrap_or("none")),
            Step::Add => "add".into(),
            Step::Multiply => "multiply".into(),
            Step::Scale(factor) => format!("scale {factor}"),
        }
    }

    fn apply(self, values: &mut [f32], operand: &[f32]) {
        match self {
            Step::Bias => arithmetic::add_to_lines(values, operand),
            Step::Gain => arithmetic::multiply_lines(values, operand),
            Step::Activate(activation) => activate::forward(values, activation),
            Step::Slope(activation) => activate::slope(values, operand, activation),
            Step::Add => arithmetic::add(values, operand),
            Step::Multiply => arithmetic::multiply(values, operand),
            Step::Scale(factor) => arithmetic::scale(values, factor),
        }
    }
}

/// Steps in order. The first input goes through them; each step that takes an operand takes the next input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Elementwise {
    /// The steps.
    pub steps: Vec<Step>,
}

impl Elementwise {
    /// Runs the chain over `values`, lines of that width, in place.
    pub fn apply(&self, values: &mut [f32], width: usize, operands: &[&[f32]]) {
        if self.steps.is_empty() || width == 0 {
            return;
        }
        let block = (BLOCK / width).max(1) * width;
        for (index, values) in values.chunks_mut(block).enumerate() {
            let begin = index * block;
            let mut operands = operands.iter();
            for step in &self.steps {
                let operand = match step {
                    step if step.is_broadcast() => operands.next().copied().unwrap_or_default(),
                    step if step.takes_operand() => {
                        &operands.next().copied().unwrap_or_default()[begin..begin + values.len()]
                    }
                    _ => &[],
                };
                step.apply(values, operand);
            }
        }
    }

    /// How many operands the chain takes.
    pub fn operands(&self) -> usize {
        self.steps.iter().filter(|step| step.takes_operand()).count()
    }

    /// Refuses operands that do not fit a value of that shape.
    pub fn check(&self, shape: &Shape, operands: &[&Shape]) -> Result<(), String> {
        if operands.len() != self.operands() {
            return Err(format!("expected {} operands, got {}", self.operands(), operands.len()));
        }
        let taking = self.steps.iter().filter(|step| step.takes_operand());
        for (step, operand) in taking.zip(operands) {
            let fits = match step.is_broadcast() {
                true => !operand.has_rows() && operand.per_row() == shape.width(),
                false => operand.has_rows() == shape.has_rows() && operand.per_row() == shape.per_row(),
            };
            if !fits {
                return Err(format!("{}: expected {shape}, got {operand}", step.name()));
            }
        }
        Ok(())
    }

    /// `product + bias + relu`.
    pub fn behind(&self, name: String) -> String {
        self.steps.iter().fold(name, |text, step| format!("{text} + {}", step.name()))
    }
}

impl Operator for Elementwise {
    fn describe(&self) -> String {
        let names: Vec<String> = self.steps.iter().map(|step| step.name()).collect();
        if names.is_empty() { "copy".into() } else { names.join(" + ") }
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        let [shape, operands @ ..] = inputs else {
            return Err("expected a value".into());
        };
        self.check(shape, operands)?;
        Ok((*shape).clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        self.apply(call.output, call.shape.width(), &call.inputs[1..]);
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let &[step] = self.steps.as_slice() else { unreachable!("fusion comes after gradients") };
        let value = tape.input(node, 0);
        if step.takes_operand() {
            let operand = tape.input(node, 1);
            if tape.wants(operand) {
                let gradient = match step {
                    Step::Bias => tape.add(Op::ColumnSums(ColumnSums), &[delta]),
                    Step::Gain => {
                        let products = tape.add(Op::step(Step::Multiply), &[delta, value]);
                        tape.add(Op::ColumnSums(ColumnSums), &[products])
                    }
                    Step::Multiply => tape.add(Op::step(Step::Multiply), &[delta, value]),
                    _ => delta,
                };
                tape.give(operand, gradient);
            }
        }
        if tape.wants(value) {
            let gradient = match step {
                Step::Bias | Step::Add => delta,
                Step::Multiply | Step::Gain => tape.add(Op::step(step), &[delta, tape.input(node, 1)]),
                Step::Scale(factor) => tape.add(Op::step(Step::Scale(factor)), &[delta]),
                Step::Activate(activation) => {
                    let told_from = if activation.slope_needs_input() { value } else { node };
                    tape.add(Op::step(Step::Slope(activation)), &[delta, told_from])
                }
                Step::Slope(_) => unreachable!("slopes have no gradient of their own"),
            };
            tape.give(value, gradient);
        }
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        (self.steps.len() * shape.per_row()) as u64
    }
}
