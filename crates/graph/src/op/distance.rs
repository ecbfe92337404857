//! Losses of numbers: how far the answers are from the targets, or from the features themselves.

use super::{Op, Operator};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Result, Tally, Targets};

/// How a distance is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Its square.
    Squared,
    /// Its size.
    Absolute,
    /// Half its square up to 1, then its size less a half.
    Huber,
}

impl Judgement {
    /// Loss and slope at a distance.
    fn of(self, distance: f64) -> (f64, f64) {
        match self {
            Judgement::Squared => (distance * distance, 2.0 * distance),
            Judgement::Absolute => (distance.abs(), if distance == 0.0 { 0.0 } else { distance.signum() }),
            Judgement::Huber if distance.abs() <= 1.0 => (0.5 * distance * distance, distance),
            Judgement::Huber => (distance.abs() - 0.5, distance.signum()),
        }
    }
}

/// The summed loss of the batch; beside it, the gradient of the answers, times the pass's scale. A second input, if there
/// is one, stands for the targets: what the answers should have been.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// How a distance is judged.
    pub judgement: Judgement,
}

impl Operator for Distance {
    fn describe(&self) -> String {
        match self.judgement {
            Judgement::Squared => "squared error".into(),
            Judgement::Absolute => "absolute error".into(),
            Judgement::Huber => "huber error".into(),
        }
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        match inputs {
            [_] => Ok(Shape::fixed(&[])),
            [answers, truth] if answers.per_row() == truth.per_row() => Ok(Shape::fixed(&[])),
            [answers, truth] => Err(format!("expected {} numbers, got {answers}", truth.per_row())),
            _ => Err("expected answers".into()),
        }
    }

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].clone()]
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let truth: &[f32] = match (call.inputs.get(1), &call.pass.batch.targets) {
            (Some(truth), _) => truth,
            (None, Targets::Values(values)) => values,
            (None, Targets::Classes(_)) => &[],
        };
        let share = 1.0 / call.shapes[0].per_row().max(1) as f64;
        let scale = f64::from(call.pass.scale) * share;
        let mut tally = Tally { rows: call.rows as u64, ..Tally::default() };
        let mut deltas = call.parts[0].as_deref_mut().unwrap_or_default().iter_mut();
        for (answer, truth) in call.inputs[0].iter().zip(truth) {
            let distance = f64::from(*answer) - f64::from(*truth);
            let (loss, slope) = self.judgement.of(distance);
            tally.loss += share * loss;
            tally.absolute += share * distance.abs();
            tally.squared += share * distance * distance;
            if let Some(delta) = deltas.next() {
                *delta = (scale * slope) as f32;
            }
        }
        call.output[0] = tally.loss as f32;
        call.pass.tally.add(&tally);
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, _: NodeId) {
        let delta = tape.add(Op::Part(0), &[node]);
        tape.give(tape.input(node, 0), delta);
    }

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        4 * inputs[0].per_row() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(Judgement::Squared.of(-3.0), (9.0, -6.0));
        assert_eq!(Judgement::Absolute.of(-3.0), (3.0, -1.0));
        assert_eq!(Judgement::Absolute.of(0.0), (0.0, 0.0));
        assert_eq!(Judgement::Huber.of(0.5), (0.125, 0.5));
        assert_eq!(Judgement::Huber.of(-3.0), (2.5, -1.0));
        assert!(Judgement::Huber.of(f64::NAN).0.is_nan());
    }
}
