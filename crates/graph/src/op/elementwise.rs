//! Chains of elementwise steps. A chain runs block by block, so that a block stays in the first-level cache for all
//! steps. A chain is also the epilogue of a product.

use super::column_sums::ColumnSums;
use super::{Op, Operator};
use crate::activation::Activation;
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use crate::kernel::{activate, arithmetic};
use thalweg_core::{Batch, Result};

/// Elements of a block: 16 KiB, half of a typical first-level cache; the other half is for an operand.
const BLOCK: usize = 4096;

/// One step of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ElementwiseStep {
    /// Adds the operand, one element per column.
    Bias,
    /// Multiplies by the operand, one element per column.
    Gain,
    Activate(Activation),
    /// Multiplies by the derivative; the operand is the result of the activation (its input where
    /// [`Activation::derivative_needs_input`]).
    Derivative(Activation),
    /// Adds the operand elementwise.
    Add,
    /// Multiplies by the operand elementwise.
    Multiply,
    Scale(f32),
}

impl ElementwiseStep {
    pub fn takes_operand(self) -> bool {
        !matches!(self, ElementwiseStep::Activate(_) | ElementwiseStep::Scale(_))
    }

    /// Whether the operand is one vector for all.
    pub fn is_broadcast(self) -> bool {
        matches!(self, ElementwiseStep::Bias | ElementwiseStep::Gain)
    }

    fn name(self) -> String {
        match self {
            ElementwiseStep::Bias => "bias".into(),
            ElementwiseStep::Gain => "gain".into(),
            ElementwiseStep::Activate(activation) => activation.name().unwrap_or("none").into(),
            ElementwiseStep::Derivative(activation) => format!("{}'", activation.name().unwrap_or("none")),
            ElementwiseStep::Add => "add".into(),
            ElementwiseStep::Multiply => "multiply".into(),
            ElementwiseStep::Scale(factor) => format!("scale {factor}"),
        }
    }

    fn apply(self, values: &mut [f32], operand: &[f32]) {
        match self {
            ElementwiseStep::Bias => arithmetic::add_vector(values, operand),
            ElementwiseStep::Gain => arithmetic::multiply_vector(values, operand),
            ElementwiseStep::Activate(activation) => activate::forward(values, activation),
            ElementwiseStep::Derivative(activation) => activate::backward(values, operand, activation),
            ElementwiseStep::Add => arithmetic::add(values, operand),
            ElementwiseStep::Multiply => arithmetic::multiply(values, operand),
            ElementwiseStep::Scale(factor) => arithmetic::scale(values, factor),
        }
    }
}

/// Steps on the first input, in order; each step with an operand takes the next input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Elementwise {
    pub steps: Vec<ElementwiseStep>,
}

impl Elementwise {
    /// Runs the chain in place over vectors of `width` elements.
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

    fn operand_count(&self) -> usize {
        self.steps.iter().filter(|step| step.takes_operand()).count()
    }

    /// Refuses operands that do not fit a value of this shape.
    pub fn check(&self, shape: &Shape, operands: &[&Shape]) -> Result<(), String> {
        if operands.len() != self.operand_count() {
            return Err(format!("expected {} operands, got {}", self.operand_count(), operands.len()));
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

    /// Appends the steps to an operator's name: `product + bias + relu`.
    pub fn append_to(&self, name: String) -> String {
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

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        self.apply(call.output, call.shape.width(), &call.inputs[1..]);
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let &[step] = self.steps.as_slice() else { unreachable!("fusion comes after differentiation") };
        let value = tape.input(node, 0);
        if step.takes_operand() {
            let operand = tape.input(node, 1);
            if tape.needs_gradient(operand) {
                let gradient = match step {
                    ElementwiseStep::Bias => tape.add(Op::ColumnSums(ColumnSums), &[delta]),
                    ElementwiseStep::Gain => {
                        let products = tape.add(Op::elementwise(ElementwiseStep::Multiply), &[delta, value]);
                        tape.add(Op::ColumnSums(ColumnSums), &[products])
                    }
                    ElementwiseStep::Multiply => {
                        tape.add(Op::elementwise(ElementwiseStep::Multiply), &[delta, value])
                    }
                    _ => delta,
                };
                tape.accumulate(operand, gradient);
            }
        }
        if tape.needs_gradient(value) {
            let gradient = match step {
                ElementwiseStep::Bias | ElementwiseStep::Add => delta,
                ElementwiseStep::Multiply | ElementwiseStep::Gain => {
                    tape.add(Op::elementwise(step), &[delta, tape.input(node, 1)])
                }
                ElementwiseStep::Scale(factor) => {
                    tape.add(Op::elementwise(ElementwiseStep::Scale(factor)), &[delta])
                }
                ElementwiseStep::Activate(activation) => {
                    let operand = if activation.derivative_needs_input() { value } else { node };
                    tape.add(Op::elementwise(ElementwiseStep::Derivative(activation)), &[delta, operand])
                }
                ElementwiseStep::Derivative(_) => unreachable!("derivatives are not differentiated again"),
            };
            tape.accumulate(value, gradient);
        }
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        (self.steps.len() * shape.per_row()) as u64
    }
}
