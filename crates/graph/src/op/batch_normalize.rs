//! Batch normalisation without gain and bias: each column gets mean 0 and variance 1 over the rows of the batch.
//!
//! In training, the statistics are those of the batch: of this worker's rows, or of all workers' rows, synchronized
//! by the `reduce` hook. With local statistics results depend on how rows are split. The running statistics are
//! tensors of the model; their "gradient" is `momentum * (running - batch)`, weighted by this worker's fraction of
//! the rows, so that subtracting the sum over workers gives the new running value. Evaluation normalises by the
//! running statistics.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::{OperatorCall, scratch_slice};
use crate::graph::{NodeId, Shape};
use thalweg_core::Result;

/// The usual value of `epsilon`.
pub const EPSILON: f32 = 1e-5;
/// The usual value of `momentum`, as in PyTorch: the weight of a batch in the running statistics.
pub const MOMENTUM: f32 = 0.1;

/// In place on the first input; the others are the running mean and variance. Side output: per column the mean, the
/// variance and the inverse standard deviation of the batch, then the number of vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormalize {
    /// Whether the statistics are taken over the rows of all workers.
    pub synchronized: bool,
    /// Added to the variance.
    pub epsilon: f32,
    /// The weight of a batch in the running statistics.
    pub momentum: f32,
}

/// In place on the gradient; the other inputs are the normalised values and the statistics of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormalizeGradient {
    /// Whether the statistics are taken over the rows of all workers.
    pub synchronized: bool,
}

/// The update of a running statistic; the inputs are the statistic and those of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunningStatisticUpdate {
    /// 0 for the mean, 1 for the variance.
    pub which: usize,
    pub momentum: f32,
    /// Whether the statistics are those of all workers' rows.
    pub synchronized: bool,
}

/// Normalisation in evaluation: in place on the first input, by the running mean and variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunningNormalize {
    /// Added to the variance.
    pub epsilon: f32,
    /// Unused here; exported with the model.
    pub momentum: f32,
}

/// Sums two quantities per column, and the number of vectors, into the scratch buffer; over all workers if
/// `synchronized`.
fn column_pairs(
    call: &mut OperatorCall<'_, '_>,
    synchronized: bool,
    pair: impl Fn(usize, f64) -> (f64, f64),
) -> Result<()> {
    let width = call.shape.width();
    let crate::executor::Workspace { sums, scratch, .. } = &mut *call.context.workspace;
    sums.clear();
    sums.resize(2 * width, 0.0);
    let (first, second) = sums.split_at_mut(width);
    for (vector, values) in call.output.chunks_exact(width.max(1)).enumerate() {
        for column in 0..width {
            let (a, b) = pair(vector * width + column, f64::from(values[column]));
            first[column] += a;
            second[column] += b;
        }
    }
    let vectors = call.output.len().checked_div(width).unwrap_or(0);
    let totals = scratch_slice(scratch, 2 * width + 1);
    totals.iter_mut().zip(sums.iter()).for_each(|(total, sum)| *total = *sum as f32);
    totals[2 * width] = vectors as f32;
    if synchronized {
        call.context.hooks.reduce(totals)?;
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

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![Shape::fixed(&[3 * inputs[0].width() + 1])]
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let width = call.shape.width();
        // Deviations from the running mean: sums of squares stay accurate where the mean is far from 0.
        let center = call.inputs[1];
        column_pairs(call, self.synchronized, |index, value| {
            let deviation = value - f64::from(center[index % width]);
            (deviation, deviation * deviation)
        })?;
        let totals = &call.context.workspace.scratch[..2 * width + 1];
        let count = f64::from(totals[2 * width]).max(1.0);
        let mut own = Vec::new();
        let statistics = match call.side_outputs[0].as_deref_mut() {
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
        for vector in call.output.chunks_exact_mut(width.max(1)) {
            for ((value, mean), inverse) in vector.iter_mut().zip(means).zip(inverses) {
                *value = (*value - mean) * inverse;
            }
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let statistics = tape.add(Op::SideOutput(0), &[node]);
        for which in [0, 1] {
            let running = tape.input(node, 1 + which);
            let op =
                RunningStatisticUpdate { which, momentum: self.momentum, synchronized: self.synchronized };
            let update = tape.add(Op::RunningStatisticUpdate(op), &[running, statistics]);
            tape.accumulate(running, update);
        }
        let input = tape.input(node, 0);
        if tape.needs_gradient(input) {
            let op = BatchNormalizeGradient { synchronized: self.synchronized };
            let gradient = tape.add(Op::BatchNormalizeGradient(op), &[delta, node, statistics]);
            tape.accumulate(input, gradient);
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

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let width = call.shape.width();
        let (normal, statistics) = (call.inputs[1], call.inputs[2]);
        column_pairs(call, self.synchronized, |index, delta| (delta, delta * f64::from(normal[index])))?;
        let totals = &call.context.workspace.scratch[..2 * width + 1];
        let weight = 1.0 / totals[2 * width].max(1.0);
        let inverses = &statistics[2 * width..3 * width];
        let vectors = call.output.chunks_exact_mut(width.max(1)).zip(normal.chunks_exact(width.max(1)));
        for (delta, normal) in vectors {
            for column in 0..width {
                let mean = totals[column] * weight;
                let projection = totals[width + column] * weight;
                delta[column] = (delta[column] - mean - normal[column] * projection) * inverses[column];
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        8 * shape.per_row() as u64
    }
}

impl Operator for RunningStatisticUpdate {
    fn describe(&self) -> String {
        "running statistic update".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 2)?;
        Ok(inputs[0].clone())
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (running, statistics) = (call.inputs[0], call.inputs[1]);
        let width = running.len();
        let count = statistics[3 * width];
        // Bessel's correction: the running variance is the unbiased estimate.
        let correction = if self.which == 1 && count > 1.0 { count / (count - 1.0) } else { 1.0 };
        let share = call.context.scale * call.rows as f32;
        let weight = if self.synchronized { share } else { call.context.hooks.statistics_weight(share) };
        let weight = self.momentum * weight;
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

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (means, variances) = (call.inputs[1], call.inputs[2]);
        for vector in call.output.chunks_exact_mut(means.len().max(1)) {
            for ((value, mean), variance) in vector.iter_mut().zip(means).zip(variances) {
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
