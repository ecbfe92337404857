//! Classification losses other than cross-entropy: functions of the scores of all classes and the true class.

use super::softmax::arg_max;
use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Result, Tally, Targets};

/// The loss of a row, as the mean over the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassLossKind {
    /// Binary cross-entropy of the sigmoid of each score.
    Binary,
    /// Multi-class hinge loss with margin 1.
    Hinge,
}

/// The summed loss of the batch. Side output: the gradient of the scores, times the scale of the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassLoss {
    pub kind: ClassLossKind,
}

impl Operator for ClassLoss {
    fn describe(&self) -> String {
        match self.kind {
            ClassLossKind::Binary => "binary cross-entropy".into(),
            ClassLossKind::Hinge => "hinge".into(),
        }
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        match inputs[0].vectors() {
            1 => Ok(Shape::fixed(&[])),
            _ => Err(format!("expected one vector of scores, got {}", inputs[0])),
        }
    }

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].clone()]
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let width = call.shapes[0].width();
        let Targets::Classes(classes) = &call.context.batch.targets else { return Ok(()) };
        let mut tally = Tally { rows: call.rows as u64, ..Tally::default() };
        let mut unread = Vec::new();
        for (row, (scores, class)) in call.inputs[0].chunks_exact(width.max(1)).zip(classes).enumerate() {
            let delta = match call.side_outputs[0].as_deref_mut() {
                Some(deltas) => &mut deltas[row * width..][..width],
                None => crate::executor::scratch_slice(&mut unread, width),
            };
            tally.loss += match self.kind {
                ClassLossKind::Binary => binary(scores, *class as usize, delta),
                ClassLossKind::Hinge => hinge(scores, *class as usize, delta),
            };
            delta.iter_mut().for_each(|delta| *delta *= call.context.scale);
            tally.correct += u64::from(arg_max(scores) == *class as usize);
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
        5 * inputs[0].per_row() as u64
    }
}

/// A row's loss and the gradient of its scores.
fn binary(scores: &[f32], class: usize, delta: &mut [f32]) -> f64 {
    let weight = 1.0 / scores.len() as f64;
    let term = |(index, (score, delta)): (usize, (&f32, &mut f32))| {
        let (score, target) = (f64::from(*score), f64::from(u8::from(index == class)));
        *delta = (weight * (1.0 / (1.0 + (-score).exp()) - target)) as f32;
        // This form does not overflow on either side.
        weight * (score.max(0.0) - score * target + (-score.abs()).exp().ln_1p())
    };
    scores.iter().zip(delta).enumerate().map(term).sum()
}

/// The loss of a row whose classes have these probabilities, the sigmoids of its scores.
pub(crate) fn binary_of_probabilities(probabilities: &[f32], class: usize) -> f64 {
    let term = |(index, probability): (usize, &f32)| {
        let right = if index == class { *probability } else { 1.0 - probability };
        -f64::from(right.max(f32::MIN_POSITIVE)).ln()
    };
    probabilities.iter().enumerate().map(term).sum::<f64>() / probabilities.len() as f64
}

/// A row's loss and the gradient of its scores.
fn hinge(scores: &[f32], class: usize, delta: &mut [f32]) -> f64 {
    let weight = 1.0 / scores.len() as f64;
    let mut loss = 0.0;
    let mut within = 0;
    for (index, (score, delta)) in scores.iter().zip(delta.iter_mut()).enumerate() {
        let margin = 1.0 - f64::from(scores[class]) + f64::from(*score);
        let inside = index != class && margin > 0.0;
        loss += if inside || margin.is_nan() { weight * margin } else { 0.0 };
        within += usize::from(inside);
        *delta = if inside { weight as f32 } else { 0.0 };
    }
    delta[class] = -(weight * within as f64) as f32;
    loss
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let mut delta = [f32::NAN; 2];
        assert!((binary(&[0.0, 0.0], 1, &mut delta) - 2f64.ln()).abs() < 1e-12);
        assert_eq!(delta, [0.25, -0.25]);
        assert_eq!(binary(&[-1e4, 1e4], 1, &mut delta), 0.0);
        let mut delta = [f32::NAN; 4];
        assert_eq!(hinge(&[2.0, 2.5, 0.0, 1.5], 0, &mut delta), 0.5);
        assert_eq!(delta, [-0.5, 0.25, 0.0, 0.25]);
    }

    #[test]
    fn nan_propagates_into_the_loss() {
        let mut delta = [0.0; 2];
        assert!(binary(&[f32::NAN, 0.0], 1, &mut delta).is_nan());
        assert!(hinge(&[f32::NAN, 0.0], 0, &mut delta).is_nan());
    }
}
