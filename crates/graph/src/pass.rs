//! The passes of a network: forward through the layers, backward from the loss, announcing what is finished.

use crate::initialize::glorot_uniform;
use crate::input::{check_features, check_targets};
use crate::network::{Dense, Network};
use crate::op::sparse::SparseInput;
use crate::op::{activate, cross_entropy, dense, squared_error};
use thalweg_core::{Batch, Error, Features, Gradient, Hooks, Layout, Model, Result, Tally, Targets, Task};

/// The memory of a pass, kept from step to step: once a batch size was seen, nothing is allocated
/// for it again (but for what a matrix product packs for itself).
#[derive(Clone, Debug, Default)]
pub(crate) struct Workspace {
    /// Each layer's results, row-major.
    outputs: Vec<Vec<f32>>,
    /// The gradient of the results of the layer at hand, and of the one before it.
    delta: Vec<f32>,
    delta_before: Vec<f32>,
    /// Column sums.
    sums: Vec<f64>,
    /// The network's input, where it is sparse.
    sparse: SparseInput,
}

impl Workspace {
    pub(crate) fn new(layers: usize) -> Workspace {
        Workspace { outputs: vec![Vec::new(); layers], ..Workspace::default() }
    }
}

impl Network {
    /// Fills every layer's results for a batch that has been checked.
    fn forward(&mut self, parameters: &[f32], batch: &Batch) {
        let rows = batch.len();
        let Workspace { outputs, sparse, .. } = &mut self.workspace;
        if !matches!(batch.features, Features::Dense(_)) {
            sparse.read(&batch.features, batch.width);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let Dense { inputs, units, activation, .. } = *layer;
            let weight = &parameters[self.layout.tensors()[layer.weight].range()];
            let bias = &parameters[self.layout.tensors()[layer.bias].range()];
            let (before, after) = outputs.split_at_mut(index);
            let output = &mut after[0];
            output.resize(rows * units, 0.0);
            match (before.last(), &batch.features) {
                (Some(input), _) => dense::forward(output, input, weight, rows, units, inputs),
                (None, Features::Dense(input)) => dense::forward(output, input, weight, rows, units, inputs),
                (None, _) => sparse.forward(output, weight, units, inputs),
            }
            activate::forward(output, bias, activation);
        }
    }

    /// The last layer's results of the forward pass.
    fn answers(&self) -> &[f32] {
        self.workspace.outputs.last().map_or(&[], Vec::as_slice)
    }

    /// Compares the answers with the targets and begins the backward pass.
    fn loss_gradient(&mut self, targets: &Targets, scale: f32) -> Tally {
        let outputs = self.outputs();
        let Workspace { outputs: results, delta, .. } = &mut self.workspace;
        let answers = results.last().map_or(&[][..], Vec::as_slice);
        delta.resize(answers.len(), 0.0);
        match targets {
            Targets::Classes(classes) => cross_entropy::gradient(answers, classes, outputs, scale, delta),
            Targets::Values(values) => squared_error::gradient(answers, values, scale, delta),
        }
    }

    /// Walks from the last layer to the first, writing and announcing gradients.
    fn backward(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<()> {
        let rows = batch.len();
        let Workspace { outputs, delta, delta_before, sums, sparse } = &mut self.workspace;
        let mut announce = |tensor: usize, values: &[f32]| hooks.gradient(Gradient::Dense { tensor, values });
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let Dense { inputs, units, activation, .. } = *layer;
            activate::backward(delta, &outputs[index], activation);

            let place = self.layout.tensors()[layer.bias].range();
            dense::bias_gradient(&mut gradient[place.clone()], delta, sums);
            announce(layer.bias, &gradient[place])?;

            let place = self.layout.tensors()[layer.weight].range();
            let values = &mut gradient[place.clone()];
            match (index.checked_sub(1), &batch.features) {
                (Some(before), _) => {
                    dense::weight_gradient(values, delta, &outputs[before], rows, units, inputs);
                }
                (None, Features::Dense(input)) => {
                    dense::weight_gradient(values, delta, input, rows, units, inputs);
                }
                (None, _) => sparse.weight_gradient(values, delta, units, inputs),
            }
            announce(layer.weight, &gradient[place])?;

            if index > 0 {
                let weight = &parameters[self.layout.tensors()[layer.weight].range()];
                delta_before.resize(rows * inputs, 0.0);
                dense::input_gradient(delta_before, delta, weight, rows, units, inputs);
                std::mem::swap(delta, delta_before);
            }
        }
        Ok(())
    }

    /// Refuses buffers that were not made for this layout.
    fn check_buffer(&self, what: &str, len: usize) -> Result<()> {
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
        for (index, layer) in self.layers.iter().enumerate() {
            let tensors = self.layout.tensors();
            parameters[tensors[layer.bias].range()].fill(0.0);
            let weight = &mut parameters[tensors[layer.weight].range()];
            glorot_uniform(weight, layer.inputs, layer.units, seed, index);
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
        check_features(batch, self.inputs())?;
        check_targets(batch, self.outputs(), self.task)?;
        self.forward(parameters, batch);
        let tally = self.loss_gradient(&batch.targets, scale);
        self.backward(parameters, batch, gradient, hooks)?;
        Ok(tally)
    }

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally> {
        self.check_buffer("parameter", parameters.len())?;
        check_features(batch, self.inputs())?;
        check_targets(batch, self.outputs(), self.task)?;
        self.forward(parameters, batch);
        Ok(match &batch.targets {
            Targets::Classes(classes) => cross_entropy::evaluate(self.answers(), classes, self.outputs()),
            Targets::Values(values) => squared_error::evaluate(self.answers(), values),
        })
    }

    /// Targets are not looked at: rows to predict need none.
    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()> {
        self.check_buffer("parameter", parameters.len())?;
        check_features(batch, self.inputs())?;
        self.forward(parameters, batch);
        let begin = outputs.len();
        outputs.extend_from_slice(self.answers());
        if self.task == Task::Classification {
            cross_entropy::softmax(&mut outputs[begin..], self.outputs());
        }
        Ok(())
    }

    /// Two operations per weight and product: forward, the weights' gradient, and (but for the first layer) the
    /// input's.
    fn flops_per_row(&self) -> u64 {
        let products = |index: usize| if index == 0 { 2 } else { 3 };
        let layers = self.layers.iter().enumerate();
        layers.map(|(index, layer)| 2 * products(index) * (layer.inputs * layer.units) as u64).sum()
    }
}
