//! Regression losses: functions of the difference between prediction and target, which may be the features themselves.

use super::{Op, Operator};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Result, Tally, Targets};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegressionLossKind {
    Squared,
    Absolute,
    /// Half the squared error up to 1, then the absolute error minus 1/2.
    Huber,
}

impl RegressionLossKind {
    /// Loss and derivative at a difference.
    pub(crate) fn evaluate(self, error: f64) -> (f64, f64) {
        match self {
            RegressionLossKind::Squared => (error * error, 2.0 * error),
            RegressionLossKind::Absolute => (error.abs(), if error == 0.0 { 0.0 } else { error.signum() }),
            RegressionLossKind::Huber if error.abs() <= 1.0 => (0.5 * error * error, error),
            RegressionLossKind::Huber => (error.abs() - 0.5, error.signum()),
        }
    }
}

/// The summed loss of the batch. Side output: the gradient of the predictions, times the scale of the pass. An
/// optional second input replaces the targets of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegressionLoss {
    pub kind: RegressionLossKind,
}

impl Operator for RegressionLoss {
    fn describe(&self) -> String {
        match self.kind {
            RegressionLossKind::Squared => "squared error".into(),
            RegressionLossKind::Absolute => "absolute error".into(),
            RegressionLossKind::Huber => "huber error".into(),
        }
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        match inputs {
            [_] => Ok(Shape::fixed(&[])),
            [predictions, targets] if predictions.per_row() == targets.per_row() => Ok(Shape::fixed(&[])),
            [predictions, targets] => {
                Err(format!("expected {} numbers, got {predictions}", targets.per_row()))
            }
            _ => Err("expected predictions".into()),
        }
    }

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].clone()]
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let targets: &[f32] = match (call.inputs.get(1), &call.context.batch.targets) {
            (Some(targets), _) => targets,
            (None, Targets::Values(values)) => values,
            (None, Targets::Classes(_)) => &[],
        };
        let weight = 1.0 / call.shapes[0].per_row().max(1) as f64;
        let scale = f64::from(call.context.scale) * weight;
        let mut tally = Tally { rows: call.rows as u64, ..Tally::default() };
        let mut deltas = call.side_outputs[0].as_deref_mut().unwrap_or_default().iter_mut();
        for (prediction, target) in call.inputs[0].iter().zip(targets) {
            let error = f64::from(*prediction) - f64::from(*target);
            let (loss, derivative) = self.kind.evaluate(error);
            tally.loss += weight * loss;
            tally.absolute += weight * error.abs();
            tally.squared += weight * error * error;
            if let Some(delta) = deltas.next() {
                *delta = (scale * derivative) as f32;
            }
        }
        call.output[0] = tally.loss as f32;
        call.context.tally.add(&tally);
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, _: NodeId) {
        let delta = tape.add(Op::SideOutput(0), &[node]);
        tape.accumulate(tape.input(node, 0), delta);
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
        assert_eq!(RegressionLossKind::Squared.evaluate(-3.0), (9.0, -6.0));
        assert_eq!(RegressionLossKind::Absolute.evaluate(-3.0), (3.0, -1.0));
        assert_eq!(RegressionLossKind::Absolute.evaluate(0.0), (0.0, 0.0));
        assert_eq!(RegressionLossKind::Huber.evaluate(0.5), (0.125, 0.5));
        assert_eq!(RegressionLossKind::Huber.evaluate(-3.0), (2.5, -1.0));
        assert!(RegressionLossKind::Huber.evaluate(f64::NAN).0.is_nan());
    }
}
