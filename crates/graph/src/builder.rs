//! Networks built by a program instead of a job.

use crate::activation::Activation;
use crate::network::Network;
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
    width: usize,
    layers: Vec<(usize, Activation)>,
}

impl Network {
    /// Begins a network that reads `width` numbers per row.
    pub fn with_inputs(width: usize) -> NetworkBuilder {
        NetworkBuilder { width, layers: Vec::new() }
    }
}

impl NetworkBuilder {
    /// Adds a dense layer.
    pub fn dense(mut self, units: usize, activation: Activation) -> NetworkBuilder {
        self.layers.push((units, activation));
        self
    }

    /// Ends with softmax cross-entropy: the last layer has one unit per class.
    pub fn classification(self) -> Result<Network> {
        self.finish(Task::Classification)
    }

    /// Ends with the squared error: the last layer has one unit.
    pub fn regression(self) -> Result<Network> {
        if let Some(&(units, _)) = self.layers.last()
            && units != 1
        {
            return Err(Error::job(format!(
                "a regression answers with 1 number, but the last layer has {units}"
            )));
        }
        self.finish(Task::Regression)
    }

    fn finish(self, task: Task) -> Result<Network> {
        if self.layers.is_empty() {
            return Err(Error::job("a network must have at least one layer"));
        }
        Network::assemble(self.width, &self.layers, task)
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
