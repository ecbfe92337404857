//! Cross-entropy with the true class, the usual loss of classification.
//!
//! The loss of a row with a prediction per position is the mean over its positions. If the batch has one class per
//! row, it is the target of the last position, and the target of every other position is the symbol that follows it.

use super::softmax::arg_max;
use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use crate::kernel::flush_to_zero;
use crate::partition;
use crate::team::MAX_CHUNKS;
use std::ops::Range;
use thalweg_core::{Batch, Features, Result, Tally, Targets};

/// The summed loss of the batch. Side output: the gradient of the input, times the scale of the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Whether the input is logits, whose softmax is fused into the loss, or probabilities.
    pub of_logits: bool,
}

/// Rows of a chunk, its slice of the gradient, and its tally.
type LossChunk<'a> = (Range<usize>, Option<&'a mut [f32]>, Tally);

impl CrossEntropy {
    /// The tally of some rows; also writes the gradient of their input.
    fn evaluate_rows(
        self,
        batch: &Batch,
        scale: f32,
        rows: Range<usize>,
        shape: &Shape,
        values: &[f32],
        mut delta: Option<&mut [f32]>,
    ) -> Tally {
        let (classes, positions) = (shape.width(), shape.vectors());
        let mut tally = Tally { rows: rows.len() as u64, ..Tally::default() };
        let weight = 1.0 / positions as f64;
        let scale = (f64::from(scale) * weight) as f32;
        let values = &values[rows.start * shape.per_row()..rows.end * shape.per_row()];
        for (index, vector) in values.chunks_exact(classes).enumerate() {
            let (row, position) = (rows.start + index / positions, index % positions);
            let class = target_class(batch, row, position, positions);
            let delta = delta.as_deref_mut().map(|delta| &mut delta[index * classes..][..classes]);
            let loss = match self.of_logits {
                true => loss_of_logits(vector, class, scale, delta),
                false => loss_of_probabilities(vector, class, scale, delta),
            };
            tally.loss += loss * weight;
            if position + 1 == positions {
                tally.correct += u64::from(arg_max(vector) == class);
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

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].clone()]
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (shape, inputs) = (&call.shapes[0], call.inputs);
        let (batch, scale, team) = (call.context.batch, call.context.scale, call.context.team);
        let count = partition::chunk_count(team, call.rows, inputs[0].len() * 4);
        let mut rest = call.side_outputs[0].take();
        let mut chunks: [Option<LossChunk<'_>>; MAX_CHUNKS] = std::array::from_fn(|index| {
            let rows =
                if index < count { partition::chunk_range(call.rows, count, index) } else { return None };
            let len = rows.len() * shape.per_row();
            let delta = rest.take().map(|values| {
                let (own, others) = values.split_at_mut(len);
                rest = Some(others);
                own
            });
            Some((rows, delta, Tally::default()))
        });
        team.for_each(&mut chunks[..count], |_, chunk| {
            if let Some((rows, delta, tally)) = chunk {
                *tally =
                    self.evaluate_rows(batch, scale, rows.clone(), shape, inputs[0], delta.as_deref_mut());
            }
        });
        let mut tally = Tally::default();
        chunks.iter().flatten().for_each(|(_, _, chunk)| tally.add(chunk));
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

/// The true class of a position.
fn target_class(batch: &Batch, row: usize, position: usize, positions: usize) -> usize {
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

/// The loss of a vector of logits; its gradient is `(softmax - one-hot) * scale`.
fn loss_of_logits(logits: &[f32], class: usize, scale: f32, delta: Option<&mut [f32]>) -> f64 {
    let largest = logits[arg_max(logits)];
    let sum = match delta {
        None => logits.iter().map(|logit| f64::from((logit - largest).exp())).sum(),
        Some(delta) => {
            let mut sum = 0.0;
            for (delta, logit) in delta.iter_mut().zip(logits) {
                *delta = (logit - largest).exp();
                sum += f64::from(*delta);
            }
            let factor = (f64::from(scale) / sum) as f32;
            delta.iter_mut().for_each(|delta| *delta = flush_to_zero::flush(*delta * factor));
            delta[class] -= scale;
            sum
        }
    };
    sum.ln() + f64::from(largest) - f64::from(logits[class])
}

/// The loss of a vector of probabilities; its gradient is `-scale / probability` at the class and 0 elsewhere.
pub(crate) fn loss_of_probabilities(
    probabilities: &[f32],
    class: usize,
    scale: f32,
    delta: Option<&mut [f32]>,
) -> f64 {
    let probability = probabilities[class].max(f32::MIN_POSITIVE);
    if let Some(delta) = delta {
        delta.fill(0.0);
        delta[class] = -scale / probability;
    }
    -f64::from(probability).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_give_equal_probabilities() {
        let mut delta = [f32::NAN; 4];
        let loss = loss_of_logits(&[2.0; 4], 0, 2.0, Some(&mut delta));
        assert!((loss - 4f64.ln()).abs() < 1e-12);
        assert_eq!(delta, [-1.5, 0.5, 0.5, 0.5]);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let logits = [1e30, -1e30, 0.0];
        let mut delta = [f32::NAN; 3];
        assert_eq!(loss_of_logits(&logits, 0, 1.0, Some(&mut delta)), 0.0);
        assert_eq!(delta, [0.0; 3]);
        assert_eq!(loss_of_logits(&logits, 0, 1.0, None), 0.0);
    }

    #[test]
    fn nan_propagates_into_the_loss() {
        assert!(loss_of_logits(&[0.0, f32::NAN], 0, 1.0, None).is_nan());
    }

    #[test]
    fn the_loss_of_probabilities_is_their_negative_logarithm() {
        let mut delta = [f32::NAN; 2];
        let loss = loss_of_probabilities(&[0.75, 0.25], 1, 2.0, Some(&mut delta));
        assert!((loss - 4f64.ln()).abs() < 1e-12);
        assert_eq!(delta, [0.0, -8.0]);
        assert!(loss_of_probabilities(&[1.0, 0.0], 1, 1.0, None).is_finite());
    }
}
