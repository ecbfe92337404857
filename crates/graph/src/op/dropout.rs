//! Dropout: in training, each element is zeroed with a probability, and the others are scaled to keep the expected
//! value.
//!
//! The mask is a function of (seed, epoch, row, layer): it does not depend on the rank that computes the row. The
//! gradient is the same operator on the gradient of the result, so no mask is saved. Evaluation omits dropout.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result, Rng};

/// In place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability of zeroing an element, at least 0 and below 1.
    pub probability: f32,
    /// Index among the dropouts of the network.
    pub layer: u64,
}

impl Operator for Dropout {
    fn describe(&self) -> String {
        format!("dropout {}", self.probability)
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        match (0.0..1.0).contains(&self.probability) && inputs[0].has_rows() {
            true => Ok(inputs[0].clone()),
            false => Err(format!(
                "the dropout probability must be at least 0 and below 1, is {}",
                self.probability
            )),
        }
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (seed, epoch) = (call.context.seed, call.context.batch.epoch);
        let keep = 1.0 / (1.0 - self.probability);
        let threshold = (f64::from(self.probability) * (1u64 << 32) as f64) as u64;
        let width = call.shape.per_row().max(1);
        for (values, row) in
            call.output.chunks_exact_mut(width).zip(&call.context.batch.rows[call.first_row..])
        {
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
        tape.accumulate(tape.input(node, 0), gradient);
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        shape.per_row() as u64
    }
}
