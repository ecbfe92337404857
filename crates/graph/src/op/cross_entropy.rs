//! Cross-entropy: how surprised the model is by the true class. What a classification is blamed for.
//!
//! A model that answers for every position of a sequence is blamed for each of them; a row's loss is the mean over its
//! positions. Where the batch names one class per row, that is the symbol after the last, and the true class of every
//! other position is the symbol that follows it.

use super::softmax::arg_max;
use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use crate::kernel::tiny;
use crate::shares;
use crate::team::MOST_SHARES;
use std::ops::Range;
use thalweg_core::{Batch, Features, Result, Tally, Targets};

/// The summed loss of the batch; beside it, the gradient of what it read, times the pass's scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Whether it reads logits and takes their softmax itself, or reads shares.
    pub of_logits: bool,
}

/// Some rows, room for the gradient of what was read from them, and what they are blamed for.
type Judged<'a> = (Range<usize>, Option<&'a mut [f32]>, Tally);

impl CrossEntropy {
    /// What some rows are blamed for, and the gradient of what was read from them.
    fn judge(
        self,
        batch: &Batch,
        scale: f32,
        rows: Range<usize>,
        shape: &Shape,
        values: &[f32],
        mut delta: Option<&mut [f32]>,
    ) -> Tally {
        let (classes, positions) = (shape.width(), shape.lines());
        let mut tally = Tally { rows: rows.len() as u64, ..Tally::default() };
        let share = 1.0 / positions as f64;
        let scale = (f64::from(scale) * share) as f32;
        let values = &values[rows.start * shape.per_row()..rows.end * shape.per_row()];
        for (index, line) in values.chunks_exact(classes).enumerate() {
            let (row, position) = (rows.start + index / positions, index % positions);
            let class = true_class(batch, row, position, positions);
            let delta = delta.as_deref_mut().map(|delta| &mut delta[index * classes..][..classes]);
            let loss = match self.of_logits {
                true => surprise_of_logits(line, class, scale, delta),
                false => surprise_of_shares(line, class, scale, delta),
            };
            tally.loss += loss * share;
            if position + 1 == positions {
                tally.correct += u64::from(arg_max(line) == class);
            }
        }
        tally
    }
}

impl Operator for CrossEntropy {
    fn describe(&self) -> String {
        if self.of_logits { "softmax cross-entropy".into() } else { "cross-entropy".into() }
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(Shape::fixed(&[]))
    }

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].clone()]
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let (shape, inputs) = (&call.shapes[0], call.inputs);
        let (batch, scale, team) = (call.pass.batch, call.pass.scale, call.pass.team);
        let count = shares::count(team, call.rows, inputs[0].len() * 4);
        let mut rest = call.parts[0].take();
        let mut parts: [Option<Judged<'_>>; MOST_SHARES] = std::array::from_fn(|index| {
            let rows = if index < count { shares::bounds(call.rows, index, count) } else { return None };
            let len = rows.len() * shape.per_row();
            let delta = rest.take().map(|values| {
                let (own, others) = values.split_at_mut(len);
                rest = Some(others);
                own
            });
            Some((rows, delta, Tally::default()))
        });
        team.each(&mut parts[..count], |_, part| {
            if let Some((rows, delta, tally)) = part {
                *tally = self.judge(batch, scale, rows.clone(), shape, inputs[0], delta.as_deref_mut());
            }
        });
        let mut tally = Tally::default();
        parts.iter().flatten().for_each(|(_, _, part)| tally.add(part));
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

/// The class that a position of a row should have got.
fn true_class(batch: &Batch, row: usize, position: usize, positions: usize) -> usize {
    let Targets::Classes(classes) = &batch.targets else { return 0 };
    match &batch.features {
        Features::Tokens { symbols, .. } if positions > 1 && classes.len() == batch.len() => {
            match position + 1 < positions {
                true => symbols[row * positions + position + 1] as usize,
                false => classes[row] as usize,
            }
        }
        _ => classes[row * positions + position] as usize,
    }
}

/// A line's loss; its gradient is `(softmax - one-hot) * scale`.
fn surprise_of_logits(line: &[f32], class: usize, scale: f32, delta: Option<&mut [f32]>) -> f64 {
    let largest = line[arg_max(line)];
    let sum = match delta {
        None => line.iter().map(|logit| f64::from((logit - largest).exp())).sum(),
        Some(delta) => {
            let mut sum = 0.0;
            for (delta, logit) in delta.iter_mut().zip(line) {
                *delta = (logit - largest).exp();
                sum += f64::from(*delta);
            }
            let share = (f64::from(scale) / sum) as f32;
            delta.iter_mut().for_each(|delta| *delta = tiny::kept(*delta * share));
            delta[class] -= scale;
            sum
        }
    };
    sum.ln() + f64::from(largest) - f64::from(line[class])
}

/// A line's loss; its gradient is `-scale / share` at the class and 0 elsewhere.
fn surprise_of_shares(line: &[f32], class: usize, scale: f32, delta: Option<&mut [f32]>) -> f64 {
    let share = line[class].max(f32::MIN_POSITIVE);
    if let Some(delta) = delta {
        delta.fill(0.0);
        delta[class] = -scale / share;
    }
    -f64::from(share).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_share_evenly() {
        let mut delta = [f32::NAN; 4];
        let loss = surprise_of_logits(&[2.0; 4], 0, 2.0, Some(&mut delta));
        assert!((loss - 4f64.ln()).abs() < 1e-12);
        assert_eq!(delta, [-1.5, 0.5, 0.5, 0.5]);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let logits = [1e30, -1e30, 0.0];
        let mut delta = [f32::NAN; 3];
        assert_eq!(surprise_of_logits(&logits, 0, 1.0, Some(&mut delta)), 0.0);
        assert_eq!(delta, [0.0; 3]);
        assert_eq!(surprise_of_logits(&logits, 0, 1.0, None), 0.0);
    }

    #[test]
    fn what_is_not_a_number_shows_in_the_loss() {
        assert!(surprise_of_logits(&[0.0, f32::NAN], 0, 1.0, None).is_nan());
    }

    #[test]
    fn shares_are_blamed_by_their_logarithm() {
        let mut delta = [f32::NAN; 2];
        let loss = surprise_of_shares(&[0.75, 0.25], 1, 2.0, Some(&mut delta));
        assert!((loss - 4f64.ln()).abs() < 1e-12);
        assert_eq!(delta, [0.0, -8.0]);
        assert!(surprise_of_shares(&[1.0, 0.0], 1, 1.0, None).is_finite());
    }
}
