//! Gradient accumulation: a worker's rows of a step, computed in parts one after the other.
//!
//! The step stays the one the job asked for (the same rows, summed, and one update), but only the activations of one
//! part are in memory at a time. What it costs is one more buffer as long as the gradient. Statistics over a batch
//! (batch normalisation) are those of a part.

use thalweg_core::{Result, Tally};
use thalweg_data::even_range;

/// Which part of a step is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Turn<'a> {
    /// One that others follow.
    Early,
    /// The last one: with the sum of those before it, which is empty if there are none, it is the step's gradient.
    Last(&'a [f32]),
}

/// Adds up the parts of a step.
#[derive(Clone, Debug)]
pub(crate) struct Accumulator {
    parts: usize,
    /// The gradient of one part; empty until there is a second one.
    part: Vec<f32>,
}

impl Accumulator {
    pub(crate) fn new(parts: usize) -> Accumulator {
        Accumulator { parts, part: Vec::new() }
    }

    /// Parts of a step with enough rows.
    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// The sum over all rows, asking `compute` for some of them at a time. Without rows it is asked once.
    pub(crate) fn gradient(
        &mut self,
        rows: &[u64],
        gradient: &mut [f32],
        mut compute: impl FnMut(&[u64], &mut [f32], Turn<'_>) -> Result<Tally>,
    ) -> Result<Tally> {
        let parts = self.parts.min(rows.len()).max(1);
        let first = if parts == 1 { Turn::Last(&[]) } else { Turn::Early };
        let mut tally = compute(&rows[even_range(rows.len(), 0, parts)], gradient, first)?;
        for index in 1..parts {
            self.part.resize(gradient.len(), 0.0);
            let turn = if index + 1 == parts { Turn::Last(gradient) } else { Turn::Early };
            tally.add(&compute(&rows[even_range(rows.len(), index, parts)], &mut self.part, turn)?);
            for (sum, part) in gradient.iter_mut().zip(&self.part) {
                *sum += part;
            }
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row's gradient is its number; the buffer is overwritten, as models do.
    fn run(parts: usize, rows: &[u64]) -> (f32, u64, Vec<usize>) {
        let (mut gradient, mut sizes, mut last) = ([f32::NAN], Vec::new(), None);
        let tally = Accumulator::new(parts).gradient(rows, &mut gradient, |rows, gradient, turn| {
            sizes.push(rows.len());
            last = match turn {
                Turn::Early => None,
                Turn::Last(earlier) => {
                    Some(earlier.first().copied().unwrap_or(0.0) + rows.iter().sum::<u64>() as f32)
                }
            };
            gradient[0] = rows.iter().sum::<u64>() as f32;
            Ok(Tally { rows: rows.len() as u64, ..Tally::default() })
        });
        assert_eq!(last, Some(gradient[0]), "the last part knows the sum of the others");
        (gradient[0], tally.unwrap().rows, sizes)
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let rows: Vec<u64> = (1..=10).collect();
        assert_eq!(run(1, &rows), (55.0, 10, vec![10]));
        assert_eq!(run(3, &rows), (55.0, 10, vec![4, 3, 3]));
        assert_eq!(run(99, &rows), (55.0, 10, vec![1; 10]));
    }

    #[test]
    fn a_worker_without_rows_asks_once() {
        assert_eq!(run(4, &[]), (0.0, 0, vec![0]));
    }
}
