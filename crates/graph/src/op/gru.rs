//! The recurrent part of a gated recurrent unit. Gates stand in the order reset, update, new, as in PyTorch.

use super::column_sums::ColumnSums;
use super::delay::Delay;
use super::matrix::{Matrix, MatrixMut, Packed, multiply_packed};
use super::product::Product;
use super::{Op, Operator, expect_inputs, work};
use crate::autodiff::Tape;
use crate::executor::{Call, room};
use crate::graph::{NodeId, Shape};
use crate::kernel::recurrent;
use thalweg_core::{Batch, Result};

/// Reads what each position takes from the input, `[positions, 3 * units]`, the `[3 * units, units]` weight and its
/// bias. The result holds the open gates and what the new state took from the old, `[positions, 4 * units]`; beside it
/// stand the answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gru;

/// The gradient of what each position took from the input; beside it, of what it took from the state before. The inputs
/// are the gradient of the answers, the gates, the answers and the weight.
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

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].with_width(inputs[1].width())]
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let (positions, units, rows) = (call.shape.sizes()[0], call.shapes[1].width(), call.rows);
        let scratch = room(&mut call.pass.memory.scratch, 3 * rows * units + Packed::len(units, 3 * units));
        let (from_state, packed) = scratch.split_at_mut(3 * rows * units);
        let weight = Packed::new(packed, Matrix::new(call.inputs[1], 3 * units, units).transposed());
        from_state.fill(0.0);
        let Some(answers) = call.parts[0].as_deref_mut() else { return Ok(()) };
        for position in 0..positions {
            if position > 0 && rows > 0 {
                let before =
                    Matrix::strided(&answers[(position - 1) * units..], rows, units, positions * units);
                multiply_packed(MatrixMut::new(from_state, rows, 3 * units), before, &weight, false);
            }
            for row in 0..rows {
                let place = row * positions + position;
                let (earlier, now) = answers.split_at_mut(place * units);
                let before = if position == 0 { &[][..] } else { &earlier[(place - 1) * units..] };
                recurrent::gru_cell(
                    &call.inputs[0][place * 3 * units..][..3 * units],
                    &from_state[row * 3 * units..][..3 * units],
                    call.inputs[2],
                    before,
                    &mut call.output[place * 4 * units..][..4 * units],
                    &mut now[..units],
                );
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn part_gradient(&self, tape: &mut Tape<'_>, node: NodeId, _: usize, delta: NodeId) {
        let [read, weight, bias] = [0, 1, 2].map(|index| tape.input(node, index));
        let answers = tape.add(Op::Part(0), &[node]);
        let from_input = tape.add(Op::GruGradient(GruGradient), &[delta, node, answers, weight]);
        let from_state = tape.add(Op::Part(0), &[from_input]);
        let before = tape.add(Op::Delay(Delay), &[answers]);
        let gradient = tape.add(Op::Product(Product::over_rows()), &[from_state, before]);
        tape.give(weight, gradient);
        let gradient = tape.add(Op::ColumnSums(ColumnSums), &[from_state]);
        tape.give(bias, gradient);
        tape.give(read, from_input);
    }

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        work(&[2, inputs[0].per_row(), inputs[1].width()]) + 10 * inputs[0].per_row() as u64
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

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].with_width(3 * inputs[3].width())]
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let (positions, units, rows) = (call.shape.sizes()[0], call.shapes[3].width(), call.rows);
        let [delta, gates, answers] = [call.inputs[0], call.inputs[1], call.inputs[2]];
        let scratch = room(&mut call.pass.memory.scratch, rows * units + Packed::len(3 * units, units));
        // The gradient of a position's answer that comes from the position behind it.
        let (carried, packed) = scratch.split_at_mut(rows * units);
        let weight = Packed::new(packed, Matrix::new(call.inputs[3], 3 * units, units));
        carried.fill(0.0);
        let Some(from_state) = call.parts[0].as_deref_mut() else { return Ok(()) };
        for position in (0..positions).rev() {
            for row in 0..rows {
                let place = row * positions + position;
                let before = if position == 0 { &[][..] } else { &answers[(place - 1) * units..][..units] };
                recurrent::gru_cell_gradient(
                    &gates[place * 4 * units..][..4 * units],
                    before,
                    &delta[place * units..][..units],
                    &mut carried[row * units..][..units],
                    &mut call.output[place * 3 * units..][..3 * units],
                    &mut from_state[place * 3 * units..][..3 * units],
                );
            }
            if position > 0 && rows > 0 {
                let wide = 3 * units;
                let own = Matrix::strided(&from_state[position * wide..], rows, wide, positions * wide);
                multiply_packed(MatrixMut::new(carried, rows, units), own, &weight, true);
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        work(&[2, shape.per_row(), inputs[3].width()]) + 20 * shape.per_row() as u64
    }
}
