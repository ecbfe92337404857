//! The recurrent part of an LSTM. What a position reads from the input is a product over all positions at once, made by
//! the layer; here remains what must go position by position.
//!
//! Gates stand in the order input, forget, cell, output, as in PyTorch.

use super::delay::Delay;
use super::matrix::{Matrix, MatrixMut, Packed, multiply_packed};
use super::product::Product;
use super::{Op, Operator, expect_inputs, work};
use crate::autodiff::Tape;
use crate::executor::{Call, room};
use crate::graph::{NodeId, Shape};
use crate::kernel::prefetch::prefetch;
use crate::kernel::recurrent;
use thalweg_core::{Batch, Result};

/// In place on what each position reads, `[positions, 4 * units]`, it leaves the open gates; the second input is the
/// `[4 * units, units]` weight. Beside them: the answers and the cells, each `[positions, units]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lstm;

/// The gradient of what each position read, in place on the gates (the second input). The others are the gradient of
/// the answers, the cells and the weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LstmGradient;

/// Numbers between the rows of what is taken from the position before: rows a power of two apart would fight for the same
/// places of the caches, as the gates' own rows do.
const APART: usize = 16;

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

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        let state = inputs[0].with_width(inputs[1].width());
        vec![state.clone(), state]
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let [positions, wide] = [call.shape.sizes()[0], call.shape.sizes()[1]];
        let (units, rows) = (wide / 4, call.rows);
        let [answers, cells, _] = &mut call.parts;
        let len = rows * positions * units;
        let (packed, apart) = (Packed::len(units, wide), wide + APART);
        let scratch = room(&mut call.pass.memory.scratch, packed + rows * apart + units + 2 * len);
        let (packed, scratch) = scratch.split_at_mut(packed);
        let (taken, scratch) = scratch.split_at_mut(rows * apart);
        let (nothing, states) = scratch.split_at_mut(units);
        let (own_answers, own_cells) = states.split_at_mut(len);
        nothing.fill(0.0);
        taken.fill(0.0);
        // Where nobody reads a part, the kernel still needs the position before.
        let answers = answers.as_deref_mut().unwrap_or(own_answers);
        let cells = cells.as_deref_mut().unwrap_or(own_cells);
        let weight = Packed::new(packed, Matrix::new(call.inputs[1], wide, units).transposed());
        for position in 0..positions {
            if position > 0 && rows > 0 {
                let before =
                    Matrix::strided(&answers[(position - 1) * units..], rows, units, positions * units);
                multiply_packed(MatrixMut::strided(taken, rows, wide, apart), before, &weight, false);
            }
            for row in 0..rows {
                let place = row * positions + position;
                if row + 1 < rows {
                    prefetch(&call.output[(place + positions) * wide..][..wide]);
                }
                let gates = &mut call.output[place * wide..][..wide];
                let (earlier, now) = cells.split_at_mut(place * units);
                let before = if position == 0 { &*nothing } else { &earlier[(place - 1) * units..] };
                recurrent::lstm_cell(
                    gates,
                    &taken[row * apart..],
                    before,
                    &mut now[..units],
                    &mut answers[place * units..][..units],
                );
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn part_gradient(&self, tape: &mut Tape<'_>, node: NodeId, part: usize, delta: NodeId) {
        assert_eq!(part, 0, "only the answers are read by others");
        let [read, weight] = [tape.input(node, 0), tape.input(node, 1)];
        let answers = tape.add(Op::Part(0), &[node]);
        let cells = tape.add(Op::Part(1), &[node]);
        let gates = tape.add(Op::LstmGradient(LstmGradient), &[delta, node, cells, weight]);
        let before = tape.add(Op::Delay(Delay), &[answers]);
        let gradient = tape.add(Op::Product(Product::over_rows()), &[gates, before]);
        tape.give(weight, gradient);
        tape.give(read, gates);
    }

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        work(&[2, shape.per_row(), inputs[1].width()]) + 10 * shape.per_row() as u64
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

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let [positions, wide] = [call.shape.sizes()[0], call.shape.sizes()[1]];
        let (units, rows) = (wide / 4, call.rows);
        let (delta, cells) = (call.inputs[0], call.inputs[2]);
        let packed = Packed::len(wide, units);
        let scratch = room(&mut call.pass.memory.scratch, packed + units + 2 * rows * units);
        let (packed, scratch) = scratch.split_at_mut(packed);
        let (nothing, carried) = scratch.split_at_mut(units);
        nothing.fill(0.0);
        let weight = Packed::new(packed, Matrix::new(call.inputs[3], wide, units));
        // The gradients of a position's answer and cell that come from the position behind it.
        let (from_answers, from_cells) = carried.split_at_mut(rows * units);
        from_answers.fill(0.0);
        from_cells.fill(0.0);
        for position in (0..positions).rev() {
            for row in 0..rows {
                let place = row * positions + position;
                if row + 1 < rows {
                    let next = place + positions;
                    prefetch(&call.output[next * wide..][..wide]);
                    prefetch(&cells[(next - 1) * units..][..2 * units]);
                    prefetch(&delta[next * units..][..units]);
                }
                let before = if position == 0 { &*nothing } else { &cells[(place - 1) * units..][..units] };
                recurrent::lstm_cell_gradient(
                    &mut call.output[place * wide..][..wide],
                    &cells[place * units..][..units],
                    before,
                    &delta[place * units..][..units],
                    &from_answers[row * units..][..units],
                    &mut from_cells[row * units..][..units],
                );
            }
            if position > 0 && rows > 0 {
                let gates = Matrix::strided(&call.output[position * wide..], rows, wide, positions * wide);
                multiply_packed(MatrixMut::new(from_answers, rows, units), gates, &weight, false);
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        work(&[2, shape.per_row(), inputs[3].width()]) + 20 * shape.per_row() as u64
    }
}
