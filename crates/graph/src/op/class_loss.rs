//! Losses of classes besides cross-entropy: each takes the scores of all classes and the true one.

use super::softmax::arg_max;
use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Result, Tally, Targets};

/// How scores are judged; the mean over the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contest {
    /// Cross-entropy of each class's sigmoid with whether it is the true one.
    Binary,
    /// How far each wrong class comes within 1 of the true one.
    Hinge,
}

/// The summed loss of the batch; beside it, the gradient of the scores, times the pass's scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassLoss {
    /// How scores are judged.
    pub contest: Contest,
}

impl Operator for ClassLoss {
    fn describe(&self) -> String {
        match self.contest {
            Contest::Binary => "binary cross-entropy".into(),
            Contest::Hinge => "hinge".into(),
        }
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        match inputs[0].lines() {
            1 => Ok(Shape::fixed(&[])),
            _ => Err(format!("expected one line of scores, got {}", inputs[0])),
        }
    }

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].clone()]
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let width = call.shapes[0].width();
        let Targets::Classes(classes) = &call.pass.batch.targets else { return Ok(()) };
        let mut tally = Tally { rows: call.rows as u64, ..Tally::default() };
        let mut unread = Vec::new();
        for (row, (scores, class)) in call.inputs[0].chunks_exact(width.max(1)).zip(classes).enumerate() {
            let delta = match call.parts[0].as_deref_mut() {
                Some(deltas) => &mut deltas[row * width..][..width],
                None => crate::executor::room(&mut unread, width),
            };
            tally.loss += match self.contest {
                Contest::Binary => binary(scores, *class as usize, delta),
                Contest::Hinge => hinge(scores, *class as usize, delta),
            };
            delta.iter_mut().for_each(|delta| *delta *= call.pass.scale);
            tally.correct += u64::from(arg_max(scores) == *class as usize);
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
        5 * inputs[0].per_row() as u64
    }
}

/// A row's loss and the gradient of its scores.
fn binary(scores: &[f32], class: usize, delta: &mut [f32]) -> f64 {
    let share = 1.0 / scores.len() as f64;
    let judge = |(place, (score, delta)): (usize, (&f32, &mut f32))| {
        let (score, truth) = (f64::from(*score), f64::from(u8::from(place == class)));
        *delta = (share * (1.0 / (1.0 + (-score).exp()) - truth)) as f32;
        // Without overflow on either side.
        share * (score.max(0.0) - score * truth + (-score.abs()).exp().ln_1p())
    };
    scores.iter().zip(delta).enumerate().map(judge).sum()
}

/// A row's loss and the gradient of its scores.
fn hinge(scores: &[f32], class: usize, delta: &mut [f32]) -> f64 {
    let share = 1.0 / scores.len() as f64;
    let mut loss = 0.0;
    let mut within = 0;
    for (place, (score, delta)) in scores.iter().zip(delta.iter_mut()).enumerate() {
        let distance = 1.0 - f64::from(scores[class]) + f64::from(*score);
        let inside = place != class && distance > 0.0;
        loss += if inside || distance.is_nan() { share * distance } else { 0.0 };
        within += usize::from(inside);
        *delta = if inside { share as f32 } else { 0.0 };
    }
    delta[class] = -(share * within as f64) as f32;
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
    fn what_is_not_a_number_shows_in_the_loss() {
        let mut delta = [0.0; 2];
        assert!(binary(&[f32::NAN, 0.0], 1, &mut delta).is_nan());
        assert!(hinge(&[f32::NAN, 0.0], 0, &mut delta).is_nan());
    }
}
