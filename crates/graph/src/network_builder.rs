//! Builder for networks defined in code instead of a job file.

use crate::activation::Activation;
use crate::input::Input;
use crate::layer::{DenseLayer, Layer, Units};
use crate::loss::Loss;
use crate::network::{Network, Options};
use thalweg_core::{Error, Result, Task};

/// Builds a network layer by layer.
///
/// ```
/// use thalweg_graph::{Activation, Network};
/// let network = Network::with_inputs(64).dense(32, Activation::Relu).dense(10, Activation::None).classification()?;
/// assert_eq!(network.outputs(), 10);
/// # Ok::<(), thalweg_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NetworkBuilder {
    input: Input,
    layers: Vec<Layer>,
    options: Options,
}

impl Network {
    /// Starts a network for rows of `width` numbers.
    pub fn with_inputs(width: usize) -> NetworkBuilder {
        Network::with_input(Input::Flat(width))
    }

    /// Starts a network for rows of any shape.
    fn with_input(input: Input) -> NetworkBuilder {
        NetworkBuilder { input, layers: Vec::new(), options: Options::default() }
    }
}

impl NetworkBuilder {
    pub fn dense(self, units: usize, activation: Activation) -> NetworkBuilder {
        self.layer(Layer::Dense(DenseLayer { units: Units::Count(units), activation }))
    }

    fn layer(mut self, layer: Layer) -> NetworkBuilder {
        self.layers.push(layer);
        self
    }

    pub fn options(mut self, options: Options) -> NetworkBuilder {
        self.options = options;
        self
    }

    /// Builds a classifier: softmax cross-entropy unless the options name a loss; one unit per class in the last layer.
    pub fn classification(self) -> Result<Network> {
        self.finish(Task::Classification)
    }

    /// Builds a regression: squared error unless the options name a loss; one unit in the last layer.
    pub fn regression(self) -> Result<Network> {
        let reconstructs = self.options.loss == Some(Loss::Reconstruction);
        let network = self.finish(Task::Regression)?;
        match network.outputs() {
            _ if reconstructs => Ok(network),
            1 => Ok(network),
            units => Err(Error::job(format!(
                "a regression predicts 1 number, but the last layer has {units} units"
            ))),
        }
    }

    fn finish(self, task: Task) -> Result<Network> {
        if self.layers.is_empty() {
            return Err(Error::job("a network must have at least one layer"));
        }
        Network::assemble(self.input, &self.layers, task, self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_networks_are_refused() {
        let refused = |builder: NetworkBuilder| builder.classification().unwrap_err().message;
        assert!(refused(Network::with_inputs(3)).contains("at least one layer"));
        assert!(refused(Network::with_inputs(0).dense(3, Activation::None)).contains("no columns"));
        assert!(refused(Network::with_inputs(3).dense(0, Activation::None)).contains("between 1 and"));
        let wide = Network::with_inputs(usize::MAX / 2).dense(9, Activation::None);
        assert!(refused(wide).contains("more than a machine can hold"));
        assert!(Network::with_inputs(3).dense(2, Activation::None).regression().is_err());
    }
}
