//! Softmax over the last axis.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax;

/// `p * (delta - sum(p * delta))`: the inputs are the gradient of the probabilities, and the probabilities `p`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxGradient;

impl Operator for Softmax {
    fn describe(&self) -> String {
        "softmax".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(inputs[0].clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        softmax(call.output, call.shape.width());
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let gradient = tape.add(Op::SoftmaxGradient(SoftmaxGradient), &[delta, node]);
        tape.accumulate(tape.input(node, 0), gradient);
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        5 * shape.per_row() as u64
    }
}

impl Operator for SoftmaxGradient {
    fn describe(&self) -> String {
        "softmax'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 2)?;
        Ok(inputs[0].clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let width = call.shape.width().max(1);
        let vectors = call.output.chunks_exact_mut(width).zip(call.inputs[1].chunks_exact(width));
        for (delta, probabilities) in vectors {
            let dot: f64 = delta.iter().zip(probabilities).map(|(d, p)| f64::from(*d) * f64::from(*p)).sum();
            for (delta, probability) in delta.iter_mut().zip(probabilities) {
                *delta = probability * (*delta - dot as f32);
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        4 * shape.per_row() as u64
    }
}

/// Applies softmax to vectors of `width` elements, in place.
fn softmax(values: &mut [f32], width: usize) {
    for vector in values.chunks_exact_mut(width.max(1)) {
        let largest = vector[arg_max(vector)];
        vector.iter_mut().for_each(|value| *value = (*value - largest).exp());
        let sum: f64 = vector.iter().map(|value| f64::from(*value)).sum();
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / sum) as f32);
    }
}

/// The index of the maximum; the first of equals.
pub fn arg_max(values: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_do_not_overflow() {
        let mut values = [1e30, -1e30, 0.0, 1.0, 1.0, 1.0];
        softmax(&mut values, 3);
        assert_eq!(values[..3], [1.0, 0.0, 0.0]);
        assert!(values[3..].iter().all(|value| (value - 1.0 / 3.0).abs() < 1e-7));
    }
}
