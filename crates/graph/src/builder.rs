//! Networks built by a program instead of a job.

use crate::activation::Activation;
use crate::input::Input;
use crate::layer::{Dense, Layer, Units};
use crate::loss::Loss;
use crate::network::{Network, Options};
use thalweg_core::{Error, Result, Task};

/// A network in the making, layer by layer.
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
    /// Begins a network that reads `width` numbers per row.
    pub fn with_inputs(width: usize) -> NetworkBuilder {
        Network::with_input(Input::Flat(width))
    }

    /// Begins a network that reads rows of that shape.
    pub fn with_input(input: Input) -> NetworkBuilder {
        NetworkBuilder { input, layers: Vec::new(), options: Options::default() }
    }
}

impl NetworkBuilder {
    /// Adds a dense layer.
    pub fn dense(self, units: usize, activation: Activation) -> NetworkBuilder {
        self.layer(Layer::Dense(Dense { units: Units::Count(units), activation }))
    }

    /// Adds a layer of any kind.
    pub fn layer(mut self, layer: Layer) -> NetworkBuilder {
        self.layers.push(layer);
        self
    }

    /// Chooses the loss, the seed of dropout and more.
    pub fn options(mut self, options: Options) -> NetworkBuilder {
        self.options = options;
        self
    }

    /// Ends with softmax cross-entropy (or another loss of classes): the last layer has one unit per class.
    pub fn classification(self) -> Result<Network> {
        self.finish(Task::Classification)
    }

    /// Ends with the squared error (or another loss of numbers): the last layer has one unit.
    pub fn regression(self) -> Result<Network> {
        let self_judging = self.options.loss == Some(Loss::Reconstruction);
        let network = self.finish(Task::Regression)?;
        match network.outputs() {
            _ if self_judging => Ok(network),
            1 => Ok(network),
            units => {
                Err(Error::job(format!("a regression answers with 1 number, but the last layer has {units}")))
            }
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
    fn what_cannot_be_built_is_refused() {
        let refused = |builder: NetworkBuilder| builder.classification().unwrap_err().message;
        assert!(refused(Network::with_inputs(3)).contains("at least one layer"));
        assert!(refused(Network::with_inputs(0).dense(3, Activation::None)).contains("no columns"));
        assert!(refused(Network::with_inputs(3).dense(0, Activation::None)).contains("between 1 and"));
        let wide = Network::with_inputs(usize::MAX / 2).dense(9, Activation::None);
        assert!(refused(wide).contains("more than a machine can hold"));
        assert!(Network::with_inputs(3).dense(2, Activation::None).regression().is_err());
    }
}
