//! The recurrent part of a gated recurrent unit. Gates are in the order reset, update, new, as in PyTorch.

use super::column_sums::ColumnSums;
use super::delay::Delay;
use super::matrix::{Matrix, MatrixMut, Packed, multiply_packed};
use super::product::Product;
use super::{Op, Operator, expect_inputs, flop_count};
use crate::autodiff::Tape;
use crate::executor::{OperatorCall, scratch_slice};
use crate::graph::{NodeId, Shape};
use crate::kernel::recurrent::{gru_cell, gru_cell_gradient};
use thalweg_core::{Batch, Result};

/// The inputs are the contribution of the layer's input, `[positions, 3 * units]`, the `[3 * units, units]` weight
/// and its bias. The result, `[positions, 4 * units]`, holds the activated gates and the recurrent contribution to the new
/// state. Side output: the hidden states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gru;

/// The gradient of the contribution of the input; side output: that of the recurrent contribution. The inputs are the
/// gradient of the hidden states, the gates, the hidden states and the weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GruGradient;

impl Operator for Gru {
    fn describe(&self) -> String {
        "gru".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 3)?;
        match inputs[0].sizes() {
            [_, gates] if *gates == 3 * inputs[1].width() => Ok(inputs[0].with_width(4 * inputs[1].width())),
            _ => Err(format!("expected a sequence of 3 gates, got {}", inputs[0])),
        }
    }

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].with_width(inputs[1].width())]
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (positions, units, rows) = (call.shape.sizes()[0], call.shapes[1].width(), call.rows);
        let len = 3 * rows * units + Packed::len(units, 3 * units);
        let scratch = scratch_slice(&mut call.context.workspace.scratch, len);
        let (from_state, packed) = scratch.split_at_mut(3 * rows * units);
        let weight = Packed::new(packed, Matrix::new(call.inputs[1], 3 * units, units).transposed());
        from_state.fill(0.0);
        let Some(hidden) = call.side_outputs[0].as_deref_mut() else { return Ok(()) };
        for position in 0..positions {
            if position > 0 && rows > 0 {
                let before =
                    Matrix::strided(&hidden[(position - 1) * units..], rows, units, positions * units);
                multiply_packed(MatrixMut::new(from_state, rows, 3 * units), before, &weight, false);
            }
            for row in 0..rows {
                let index = row * positions + position;
                let (earlier, now) = hidden.split_at_mut(index * units);
                let before = if position == 0 { &[][..] } else { &earlier[(index - 1) * units..] };
                gru_cell(
                    &call.inputs[0][index * 3 * units..][..3 * units],
                    &from_state[row * 3 * units..][..3 * units],
                    call.inputs[2],
                    before,
                    &mut call.output[index * 4 * units..][..4 * units],
                    &mut now[..units],
                );
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn side_output_gradient(&self, tape: &mut Tape<'_>, node: NodeId, _: usize, delta: NodeId) {
        let [input, weight, bias] = [0, 1, 2].map(|index| tape.input(node, index));
        let hidden = tape.add(Op::SideOutput(0), &[node]);
        let from_input = tape.add(Op::GruGradient(GruGradient), &[delta, node, hidden, weight]);
        let from_state = tape.add(Op::SideOutput(0), &[from_input]);
        let before = tape.add(Op::Delay(Delay), &[hidden]);
        let gradient = tape.add(Op::Product(Product::transposed_left()), &[from_state, before]);
        tape.accumulate(weight, gradient);
        let gradient = tape.add(Op::ColumnSums(ColumnSums), &[from_state]);
        tape.accumulate(bias, gradient);
        tape.accumulate(input, from_input);
    }

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        flop_count(&[2, inputs[0].per_row(), inputs[1].width()]) + 10 * inputs[0].per_row() as u64
    }
}

impl Operator for GruGradient {
    fn describe(&self) -> String {
        "gru'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 4)?;
        Ok(inputs[0].with_width(3 * inputs[3].width()))
    }

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].with_width(3 * inputs[3].width())]
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (positions, units, rows) = (call.shape.sizes()[0], call.shapes[3].width(), call.rows);
        let [delta, gates, hidden] = [call.inputs[0], call.inputs[1], call.inputs[2]];
        let scratch =
            scratch_slice(&mut call.context.workspace.scratch, rows * units + Packed::len(3 * units, units));
        // The gradient of the hidden state from the next position.
        let (carried, packed) = scratch.split_at_mut(rows * units);
        let weight = Packed::new(packed, Matrix::new(call.inputs[3], 3 * units, units));
        carried.fill(0.0);
        let Some(from_state) = call.side_outputs[0].as_deref_mut() else { return Ok(()) };
        for position in (0..positions).rev() {
            for row in 0..rows {
                let index = row * positions + position;
                let before = if position == 0 { &[][..] } else { &hidden[(index - 1) * units..][..units] };
                gru_cell_gradient(
                    &gates[index * 4 * units..][..4 * units],
                    before,
                    &delta[index * units..][..units],
                    &mut carried[row * units..][..units],
                    &mut call.output[index * 3 * units..][..3 * units],
                    &mut from_state[index * 3 * units..][..3 * units],
                );
            }
            if position > 0 && rows > 0 {
                let wide = 3 * units;
                let recurrent = Matrix::strided(&from_state[position * wide..], rows, wide, positions * wide);
                multiply_packed(MatrixMut::new(carried, rows, units), recurrent, &weight, true);
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        flop_count(&[2, shape.per_row(), inputs[3].width()]) + 20 * shape.per_row() as u64
    }
}
