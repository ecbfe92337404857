//! The recurrent part of an LSTM. The contribution of the input is one product over all positions, which the layer
//! appends; this operator does what must go position by position.
//!
//! Gates are in the order input, forget, cell, output, as in PyTorch.

use super::delay::Delay;
use super::matrix::{Matrix, MatrixMut, Packed, multiply_packed};
use super::product::Product;
use super::{Op, Operator, expect_inputs, flop_count};
use crate::autodiff::Tape;
use crate::executor::{OperatorCall, scratch_slice};
use crate::graph::{NodeId, Shape};
use crate::kernel::prefetch::prefetch;
use crate::kernel::recurrent::{lstm_cell, lstm_cell_gradient};
use thalweg_core::{Batch, Result};

/// The first input is the contribution of the layer's input, `[positions, 4 * units]`, replaced in place by the
/// activated gates; the second is the `[4 * units, units]` weight. Side outputs: hidden states and cell states, each
/// `[positions, units]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lstm;

/// The gradient of the first input, in place on the gates (the second input). The other inputs are the gradient of
/// the hidden states, the cell states and the weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LstmGradient;

/// Padding between the rows of the recurrent contribution: rows a power of two apart, like those of the gates, would
/// conflict for the same cache sets.
const ROW_PADDING: usize = 16;

impl Operator for Lstm {
    fn describe(&self) -> String {
        "lstm".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 2)?;
        match inputs[0].sizes() {
            [_, gates] if *gates == 4 * inputs[1].width() => Ok(inputs[0].clone()),
            _ => Err(format!("expected a sequence of 4 gates, got {}", inputs[0])),
        }
    }

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        let state = inputs[0].with_width(inputs[1].width());
        vec![state.clone(), state]
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let [positions, wide] = [call.shape.sizes()[0], call.shape.sizes()[1]];
        let (units, rows) = (wide / 4, call.rows);
        let [hidden, cells, _] = &mut call.side_outputs;
        let len = rows * positions * units;
        let (packed, stride) = (Packed::len(units, wide), wide + ROW_PADDING);
        let scratch =
            scratch_slice(&mut call.context.workspace.scratch, packed + rows * stride + units + 2 * len);
        let (packed, scratch) = scratch.split_at_mut(packed);
        let (recurrent, scratch) = scratch.split_at_mut(rows * stride);
        let (zeros, states) = scratch.split_at_mut(units);
        let (own_hidden, own_cells) = states.split_at_mut(len);
        zeros.fill(0.0);
        recurrent.fill(0.0);
        // Without a reader the states are kept all the same: the next position needs them.
        let hidden = hidden.as_deref_mut().unwrap_or(own_hidden);
        let cells = cells.as_deref_mut().unwrap_or(own_cells);
        let weight = Packed::new(packed, Matrix::new(call.inputs[1], wide, units).transposed());
        for position in 0..positions {
            if position > 0 && rows > 0 {
                let before =
                    Matrix::strided(&hidden[(position - 1) * units..], rows, units, positions * units);
                multiply_packed(MatrixMut::strided(recurrent, rows, wide, stride), before, &weight, false);
            }
            for row in 0..rows {
                let index = row * positions + position;
                if row + 1 < rows {
                    prefetch(&call.output[(index + positions) * wide..][..wide]);
                }
                let gates = &mut call.output[index * wide..][..wide];
                let (earlier, now) = cells.split_at_mut(index * units);
                let before = if position == 0 { &*zeros } else { &earlier[(index - 1) * units..] };
                lstm_cell(
                    gates,
                    &recurrent[row * stride..],
                    before,
                    &mut now[..units],
                    &mut hidden[index * units..][..units],
                );
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn side_output_gradient(&self, tape: &mut Tape<'_>, node: NodeId, side: usize, delta: NodeId) {
        assert_eq!(side, 0, "only the hidden states are read by others");
        let [input, weight] = [tape.input(node, 0), tape.input(node, 1)];
        let hidden = tape.add(Op::SideOutput(0), &[node]);
        let cells = tape.add(Op::SideOutput(1), &[node]);
        let gates = tape.add(Op::LstmGradient(LstmGradient), &[delta, node, cells, weight]);
        let before = tape.add(Op::Delay(Delay), &[hidden]);
        let gradient = tape.add(Op::Product(Product::transposed_left()), &[gates, before]);
        tape.accumulate(weight, gradient);
        tape.accumulate(input, gates);
    }

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        flop_count(&[2, shape.per_row(), inputs[1].width()]) + 10 * shape.per_row() as u64
    }
}

impl Operator for LstmGradient {
    fn describe(&self) -> String {
        "lstm'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 4)?;
        Ok(inputs[1].clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(1)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let [positions, wide] = [call.shape.sizes()[0], call.shape.sizes()[1]];
        let (units, rows) = (wide / 4, call.rows);
        let (delta, cells) = (call.inputs[0], call.inputs[2]);
        let packed = Packed::len(wide, units);
        let scratch = scratch_slice(&mut call.context.workspace.scratch, packed + units + 2 * rows * units);
        let (packed, scratch) = scratch.split_at_mut(packed);
        let (zeros, carried) = scratch.split_at_mut(units);
        zeros.fill(0.0);
        let weight = Packed::new(packed, Matrix::new(call.inputs[3], wide, units));
        // The gradients of hidden and cell state from the next position.
        let (from_hidden, from_cells) = carried.split_at_mut(rows * units);
        from_hidden.fill(0.0);
        from_cells.fill(0.0);
        for position in (0..positions).rev() {
            for row in 0..rows {
                let index = row * positions + position;
                if row + 1 < rows {
                    let next = index + positions;
                    prefetch(&call.output[next * wide..][..wide]);
                    prefetch(&cells[(next - 1) * units..][..2 * units]);
                    prefetch(&delta[next * units..][..units]);
                }
                let before = if position == 0 { &*zeros } else { &cells[(index - 1) * units..][..units] };
                lstm_cell_gradient(
                    &mut call.output[index * wide..][..wide],
                    &cells[index * units..][..units],
                    before,
                    &delta[index * units..][..units],
                    &from_hidden[row * units..][..units],
                    &mut from_cells[row * units..][..units],
                );
            }
            if position > 0 && rows > 0 {
                let gates = Matrix::strided(&call.output[position * wide..], rows, wide, positions * wide);
                multiply_packed(MatrixMut::new(from_hidden, rows, units), gates, &weight, false);
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        flop_count(&[2, shape.per_row(), inputs[3].width()]) + 20 * shape.per_row() as u64
    }
}
