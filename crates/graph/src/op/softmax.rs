//! Softmax over the last size: shares that add up to 1.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result};

/// Each line's shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax;

/// `shares * (delta - sum(shares * delta))`: the inputs are the gradient of the shares, and the shares.
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

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        softmax(call.output, call.shape.width());
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let gradient = tape.add(Op::SoftmaxGradient(SoftmaxGradient), &[delta, node]);
        tape.give(tape.input(node, 0), gradient);
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

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let width = call.shape.width().max(1);
        for (delta, shares) in call.output.chunks_exact_mut(width).zip(call.inputs[1].chunks_exact(width)) {
            let dot: f64 = delta.iter().zip(shares).map(|(d, s)| f64::from(*d) * f64::from(*s)).sum();
            for (delta, share) in delta.iter_mut().zip(shares) {
                *delta = share * (*delta - dot as f32);
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        4 * shape.per_row() as u64
    }
}

/// Turns each line of that width into shares, in place.
pub fn softmax(values: &mut [f32], width: usize) {
    for line in values.chunks_exact_mut(width.max(1)) {
        let largest = line[arg_max(line)];
        line.iter_mut().for_each(|value| *value = (*value - largest).exp());
        let sum: f64 = line.iter().map(|value| f64::from(*value)).sum();
        line.iter_mut().for_each(|value| *value = (f64::from(*value) / sum) as f32);
    }
}

/// The place of the largest number; of equals, the first.
pub fn arg_max(line: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in line.iter().enumerate() {
        if *value > line[best] {
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
        assert!(values[3..].iter().all(|share| (share - 1.0 / 3.0).abs() < 1e-7));
    }
}
