//! The recurrent part of a plain recurrent layer: `tanh(input + weight * previous)`.

use super::delay::Delay;
use super::matrix::{Matrix, MatrixMut, Packed, multiply_packed};
use super::product::Product;
use super::{Op, Operator, expect_inputs, flop_count};
use crate::activation::Activation;
use crate::autodiff::Tape;
use crate::executor::{OperatorCall, scratch_slice};
use crate::graph::{NodeId, Shape};
use crate::kernel::{activate, arithmetic};
use thalweg_core::{Batch, Result};

/// In place on the contribution of the layer's input, `[positions, units]`; the second input is the `[units, units]`
/// weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rnn;

/// In place on the gradient of the hidden states; the other inputs are the hidden states and the weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RnnGradient;

impl Operator for Rnn {
    fn describe(&self) -> String {
        "rnn".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 2)?;
        match inputs[0].sizes() {
            [_, units] if *units == inputs[1].width() => Ok(inputs[0].clone()),
            _ => Err(format!("expected a sequence of {} numbers, got {}", inputs[1].width(), inputs[0])),
        }
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let [positions, units] = [call.shape.sizes()[0], call.shape.sizes()[1]];
        let scratch =
            scratch_slice(&mut call.context.workspace.scratch, call.rows * units + Packed::len(units, units));
        let (before, packed) = scratch.split_at_mut(call.rows * units);
        let weight = Packed::new(packed, Matrix::new(call.inputs[1], units, units).transposed());
        for position in 0..positions {
            if position > 0 && call.rows > 0 {
                let wide = positions * units;
                let result = MatrixMut::strided(&mut call.output[position * units..], call.rows, units, wide);
                multiply_packed(result, Matrix::new(before, call.rows, units), &weight, true);
            }
            for (row, before) in before.chunks_exact_mut(units).enumerate() {
                let now = &mut call.output[(row * positions + position) * units..][..units];
                activate::forward(now, Activation::Tanh);
                before.copy_from_slice(now);
            }
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let [input, weight] = [tape.input(node, 0), tape.input(node, 1)];
        let delta = tape.add(Op::RnnGradient(RnnGradient), &[delta, node, weight]);
        let before = tape.add(Op::Delay(Delay), &[node]);
        let gradient = tape.add(Op::Product(Product::transposed_left()), &[delta, before]);
        tape.accumulate(weight, gradient);
        tape.accumulate(input, delta);
    }

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        flop_count(&[2, shape.per_row(), inputs[1].width()])
    }
}

impl Operator for RnnGradient {
    fn describe(&self) -> String {
        "rnn'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 3)?;
        Ok(inputs[0].clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let [positions, units] = [call.shape.sizes()[0], call.shape.sizes()[1]];
        let scratch =
            scratch_slice(&mut call.context.workspace.scratch, call.rows * units + Packed::len(units, units));
        let (carried, packed) = scratch.split_at_mut(call.rows * units);
        let weight = Packed::new(packed, Matrix::new(call.inputs[2], units, units));
        carried.fill(0.0);
        for position in (0..positions).rev() {
            for (row, carried) in carried.chunks_exact(units).enumerate() {
                let offset = (row * positions + position) * units;
                let delta = &mut call.output[offset..offset + units];
                arithmetic::add(delta, carried);
                activate::backward(delta, &call.inputs[1][offset..offset + units], Activation::Tanh);
            }
            if position > 0 && call.rows > 0 {
                let deltas =
                    Matrix::strided(&call.output[position * units..], call.rows, units, positions * units);
                multiply_packed(MatrixMut::new(carried, call.rows, units), deltas, &weight, false);
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        flop_count(&[2, shape.per_row(), inputs[2].width()])
    }
}
