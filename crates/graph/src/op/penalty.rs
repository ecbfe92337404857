//! Penalties on the size of weights, added to a weight's gradient and to the loss while training.

use super::{Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use thalweg_core::Result;

/// In place on a weight's gradient; the second input is the weight. The penalty is `l1 * |w| + l2 / 2 * w^2` per step, of
/// which a worker adds its rows' share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalty {
    /// Per unit of size.
    pub l1: f32,
    /// Per unit of half the square.
    pub l2: f32,
}

impl Operator for Penalty {
    fn describe(&self) -> String {
        format!("penalty l1 {} l2 {}", self.l1, self.l2)
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 2)?;
        Ok(inputs[1].clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let rows = call.rows as f32;
        let (l1, l2) = (self.l1 * rows * call.pass.scale, self.l2 * rows * call.pass.scale);
        let (mut sizes, mut squares) = (0.0, 0.0);
        for (gradient, weight) in call.output.iter_mut().zip(call.inputs[1]) {
            let sign = if *weight == 0.0 { 0.0 } else { weight.signum() };
            *gradient += l1 * sign + l2 * weight;
            sizes += f64::from(weight.abs());
            squares += f64::from(weight * weight);
        }
        let penalty = f64::from(self.l1) * sizes + 0.5 * f64::from(self.l2) * squares;
        call.pass.tally.loss += f64::from(rows) * penalty;
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        4 * shape.len(0) as u64
    }
}
