//! `Model` for networks: checks buffers and batches, then runs the plan of the operation.

use crate::input::{check_features, check_symbols, check_targets};
use crate::loss::Loss;
use crate::network::Network;
use crate::op::Op;
use crate::op::batch_normalize::BatchNormalize;
use thalweg_core::{Batch, Error, Hooks, Layout, Model, NoHooks, Result, Tally};

impl Network {
    pub(crate) fn check_features(&self, batch: &Batch) -> Result<()> {
        check_features(batch, self.inputs())?;
        if self.needs_symbols { check_symbols(batch, self.input) } else { Ok(()) }
    }

    fn check_targets(&self, batch: &Batch) -> Result<()> {
        match self.options.loss {
            Some(Loss::Reconstruction) => Ok(()),
            _ => check_targets(batch, self.outputs(), self.positions, self.task),
        }
    }

    /// Refuses buffers of another length than the layout.
    pub(crate) fn check_buffer(&self, what: &str, len: usize) -> Result<()> {
        match len == self.layout.len() {
            true => Ok(()),
            false => Err(Error::internal(format!(
                "the {what} buffer holds {len} numbers, but the layout {}",
                self.layout.len()
            ))),
        }
    }
}

impl Model for Network {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initialize(&self, seed: u64, parameters: &mut [f32]) {
        let tensors = self.layout.tensors().iter().rev();
        for (tensor, parameter) in tensors.zip(&self.graph().parameters) {
            parameter.initializer.fill(&mut parameters[tensor.range()], seed, &parameter.key);
        }
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<Tally> {
        self.check_buffer("parameter", parameters.len())?;
        self.check_buffer("gradient", gradient.len())?;
        self.check_features(batch)?;
        self.check_targets(batch)?;
        let Network { executor, training, layout, options, .. } = self;
        executor.run(training, layout, parameters, gradient, batch, scale, options.seed, hooks)
    }

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally> {
        self.check_buffer("parameter", parameters.len())?;
        self.check_features(batch)?;
        self.check_targets(batch)?;
        let Network { executor, evaluation, layout, options, .. } = self;
        executor.run(evaluation, layout, parameters, &mut [], batch, 1.0, options.seed, &mut NoHooks)
    }

    /// Ignores the targets: rows to predict have none.
    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()> {
        self.check_buffer("parameter", parameters.len())?;
        self.check_features(batch)?;
        let Network { executor, prediction, layout, options, .. } = self;
        executor.run(prediction, layout, parameters, &mut [], batch, 1.0, options.seed, &mut NoHooks)?;
        outputs.extend_from_slice(executor.output(prediction, batch.len()));
        Ok(())
    }

    fn predicts_sequences(&self) -> bool {
        self.positions > 1
    }

    fn synchronizes(&self) -> bool {
        let synchronized =
            |op: &Op| matches!(op, Op::BatchNormalize(BatchNormalize { synchronized: true, .. }));
        self.training.steps.iter().any(|step| synchronized(&step.op))
    }

    fn mixes_rows(&self) -> bool {
        self.training.steps.iter().any(|step| matches!(step.op, Op::BatchNormalize(_)))
    }

    /// The memory of a prediction pass; evaluation and training need at least as much.
    fn pass_bytes(&self, rows: usize) -> u64 {
        (self.prediction.peak(rows) as u64).saturating_mul(4)
    }

    fn largest_value(&self) -> Option<String> {
        let largest = self.summaries.iter().max_by_key(|layer| layer.output.per_row())?;
        Some(format!("`{}` gives {}", largest.text, largest.output))
    }

    /// The sum over the operators of a training pass.
    fn flops_per_row(&self) -> u64 {
        let flops = |step: &crate::plan::PlannedOp| {
            let shapes: Vec<_> = step.shapes.iter().collect();
            step.op.operator().flops(&shapes, &step.shape)
        };
        self.training.steps.iter().map(flops).fold(0, u64::saturating_add)
    }
}
