//! Batch normalisation without its gain and bias: each column gets mean 0 and variance 1 over the rows of the batch.
//!
//! While training, the statistics are those of the batch: of this worker's rows, or of all workers' where they are
//! synchronized through the boundary's `reduce` hook. With local statistics results depend on how rows are split. The
//! running statistics are tensors of the model; their "gradient" is the move `share * (running - batch)`, weighted by
//! this worker's share of the rows, so that the sum over workers, taken away from them, makes the new running value.
//! Evaluation normalises with the running statistics.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::{Call, room};
use crate::graph::{NodeId, Shape};
use thalweg_core::Result;

/// Usually added to the variance.
pub const EPSILON: f32 = 1e-5;
/// The usual share of a batch in the running statistics.
pub const SHARE: f32 = 0.1;

/// In place on the first input; the others are the running mean and variance. Beside the result: per column the batch's
/// mean, variance and one over its deviation, then the number of lines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormalize {
    /// Whether the statistics are those of all workers' rows.
    pub synchronized: bool,
    /// Added to the variance.
    pub epsilon: f32,
    /// The share of a batch in the running statistics.
    pub share: f32,
}

/// The way back, in place on the gradient; the other inputs are the normalised values and the batch's statistics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormalizeGradient {
    /// Whether the statistics are those of all workers' rows.
    pub synchronized: bool,
}

/// The move of a running statistic, from the statistic and the batch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatisticMove {
    /// Which: 0 is the mean, 1 the variance.
    pub which: usize,
    /// The share of a batch in it.
    pub share: f32,
}

/// Evaluation: in place on the first input, with the running mean and variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunningNormalize {
    /// Added to the variance.
    pub epsilon: f32,
    /// The share of a batch in the running statistics, when they are learned.
    pub share: f32,
}

/// Adds up two quantities per column, across workers if asked for, and the number of lines: into the scratch memory.
fn column_pairs(
    call: &mut Call<'_, '_>,
    synchronized: bool,
    pair: impl Fn(usize, f64) -> (f64, f64),
) -> Result<()> {
    let width = call.shape.width();
    let crate::executor::Memory { sums, scratch, .. } = &mut *call.pass.memory;
    sums.clear();
    sums.resize(2 * width, 0.0);
    let (first, second) = sums.split_at_mut(width);
    for (line, values) in call.output.chunks_exact(width.max(1)).enumerate() {
        for column in 0..width {
            let (a, b) = pair(line * width + column, f64::from(values[column]));
            first[column] += a;
            second[column] += b;
        }
    }
    let lines = call.output.len().checked_div(width).unwrap_or(0);
    let totals = room(scratch, 2 * width + 1);
    totals.iter_mut().zip(sums.iter()).for_each(|(total, sum)| *total = *sum as f32);
    totals[2 * width] = lines as f32;
    if synchronized {
        call.pass.hooks.reduce(totals)?;
    }
    Ok(())
}

impl Operator for BatchNormalize {
    fn describe(&self) -> String {
        format!("normalize columns{}", if self.synchronized { " synchronized" } else { "" })
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 3)?;
        Ok(inputs[0].clone())
    }

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![Shape::fixed(&[3 * inputs[0].width() + 1])]
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let width = call.shape.width();
        // Distances from the running mean lose nothing where the mean is far from 0.
        let center = call.inputs[1];
        column_pairs(call, self.synchronized, |place, value| {
            let distance = value - f64::from(center[place % width]);
            (distance, distance * distance)
        })?;
        let totals = &call.pass.memory.scratch[..2 * width + 1];
        let count = f64::from(totals[2 * width]).max(1.0);
        let mut own = Vec::new();
        let statistics = match call.parts[0].as_deref_mut() {
            Some(part) => part,
            None => {
                own.resize(3 * width + 1, 0.0);
                &mut own
            }
        };
        for column in 0..width {
            let shift = f64::from(totals[column]) / count;
            let variance = (f64::from(totals[width + column]) / count - shift * shift).max(0.0);
            statistics[column] = (f64::from(center[column]) + shift) as f32;
            statistics[width + column] = variance as f32;
            statistics[2 * width + column] = (1.0 / (variance + f64::from(self.epsilon)).sqrt()) as f32;
        }
        statistics[3 * width] = totals[2 * width];
        let (means, inverses) = (&statistics[..width], &statistics[2 * width..3 * width]);
        for line in call.output.chunks_exact_mut(width.max(1)) {
            for ((value, mean), inverse) in line.iter_mut().zip(means).zip(inverses) {
                *value = (*value - mean) * inverse;
            }
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let statistics = tape.add(Op::Part(0), &[node]);
        for which in [0, 1] {
            let running = tape.input(node, 1 + which);
            let change = tape
                .add(Op::StatisticMove(StatisticMove { which, share: self.share }), &[running, statistics]);
            tape.give(running, change);
        }
        let input = tape.input(node, 0);
        if tape.wants(input) {
            let op = BatchNormalizeGradient { synchronized: self.synchronized };
            let gradient = tape.add(Op::BatchNormalizeGradient(op), &[delta, node, statistics]);
            tape.give(input, gradient);
        }
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        6 * shape.per_row() as u64
    }
}

impl Operator for BatchNormalizeGradient {
    fn describe(&self) -> String {
        "normalize columns'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 3)?;
        Ok(inputs[0].clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let width = call.shape.width();
        let (normal, statistics) = (call.inputs[1], call.inputs[2]);
        column_pairs(call, self.synchronized, |place, delta| (delta, delta * f64::from(normal[place])))?;
        let totals = &call.pass.memory.scratch[..2 * width + 1];
        let share = 1.0 / totals[2 * width].max(1.0);
        let inverses = &statistics[2 * width..3 * width];
        let lines = call.output.chunks_exact_mut(width.max(1)).zip(normal.chunks_exact(width.max(1)));
        for (delta, normal) in lines {
            for column in 0..width {
                let mean = totals[column] * share;
                let slope = totals[width + column] * share;
                delta[column] = (delta[column] - mean - normal[column] * slope) * inverses[column];
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        8 * shape.per_row() as u64
    }
}

impl Operator for StatisticMove {
    fn describe(&self) -> String {
        "move of running statistic".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 2)?;
        Ok(inputs[0].clone())
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let (running, statistics) = (call.inputs[0], call.inputs[1]);
        let width = running.len();
        let lines = statistics[3 * width];
        // The variance of all is larger than that of a sample.
        let correction = if self.which == 1 && lines > 1.0 { lines / (lines - 1.0) } else { 1.0 };
        let weight = self.share * call.pass.scale * call.rows as f32;
        let batch = &statistics[self.which * width..][..width];
        for ((output, running), batch) in call.output.iter_mut().zip(running).zip(batch) {
            *output = weight * (running - batch * correction);
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}

impl Operator for RunningNormalize {
    fn describe(&self) -> String {
        "normalize columns by running statistics".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 3)?;
        Ok(inputs[0].clone())
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let (means, variances) = (call.inputs[1], call.inputs[2]);
        for line in call.output.chunks_exact_mut(means.len().max(1)) {
            for ((value, mean), variance) in line.iter_mut().zip(means).zip(variances) {
                *value = (*value - mean) / (variance + self.epsilon).sqrt();
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        3 * shape.per_row() as u64
    }
}
