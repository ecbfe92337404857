//! Dropout: while training, each number is dropped with a probability, and the others grow to make up for it.
//!
//! Which numbers are dropped is drawn from (seed, epoch, row, layer): it does not depend on who computes the row. So the
//! way back is the same operator on the gradient, and nothing is kept. Evaluation leaves it out.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result, Rng};

/// Drops numbers, in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share that is dropped, from 0 to below 1.
    pub share: f32,
    /// Which of the network's dropouts this is.
    pub layer: u64,
}

impl Operator for Dropout {
    fn describe(&self) -> String {
        format!("dropout {}", self.share)
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        match (0.0..1.0).contains(&self.share) && inputs[0].has_rows() {
            true => Ok(inputs[0].clone()),
            false => Err(format!("the share to drop must be at least 0 and below 1, is {}", self.share)),
        }
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let (seed, epoch) = (call.pass.seed, call.pass.batch.epoch);
        let keep = 1.0 / (1.0 - self.share);
        let threshold = (f64::from(self.share) * (1u64 << 32) as f64) as u64;
        let width = call.shape.per_row().max(1);
        for (values, row) in call.output.chunks_exact_mut(width).zip(&call.pass.batch.rows[call.first..]) {
            let mut rng = Rng::keyed(seed, "dropout", &[epoch, *row, self.layer]);
            for pair in values.chunks_mut(2) {
                let mut bits = rng.bits();
                for value in pair {
                    *value *= if bits & 0xffff_ffff < threshold { 0.0 } else { keep };
                    bits >>= 32;
                }
            }
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let gradient = tape.add(Op::Dropout(*self), &[delta]);
        tape.give(tape.input(node, 0), gradient);
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        shape.per_row() as u64
    }
}
