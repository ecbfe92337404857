//! A chain of dense layers with a loss at its end.

use crate::activation::Activation;
use crate::layer::{self, Layer, Units};
use crate::pass::Workspace;
use std::fmt;
use thalweg_core::model::{Density, Role};
use thalweg_core::{Error, Layout, Result, Task};

/// A dense layer in its place: its sizes, and where its tensors stand in the layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    pub inputs: usize,
    pub units: usize,
    pub activation: Activation,
    /// Index of the `[units, inputs]` weight in the layout.
    pub weight: usize,
    /// Index of the `[units]` bias in the layout.
    pub bias: usize,
}

/// A feed-forward network: dense layers, then softmax cross-entropy (classification) or the squared error
/// (regression).
///
/// Its tensors are called `layers.0.weight` (`[units, inputs]`) and `layers.0.bias`, and stand in the layout last
/// layer first, bias before weight: the order in which back-propagation finishes them. Softmax belongs to the loss of
/// a classification; an activation on its last layer is allowed, and comes before the softmax.
#[derive(Clone, Debug)]
pub struct Network {
    pub(crate) task: Task,
    pub(crate) layers: Vec<Dense>,
    pub(crate) layout: Layout,
    pub(crate) workspace: Workspace,
}

impl Network {
    /// The network of a job's layer list, for rows of `width` numbers and a task that needs `outputs` numbers.
    pub fn build(layers: &[String], width: usize, outputs: usize, task: Task) -> Result<Network> {
        let layers = layer::parse(layers)?;
        let answers = match layers.last() {
            Some(Layer { units: Units::Count(count), .. }) => *count,
            Some(Layer { units: Units::Auto, .. }) => outputs,
            None => return Err(Error::job("model.layers: must have at least one layer")),
        };
        if answers != outputs {
            let asked = match task {
                Task::Classification => format!("the data has {}", counted(outputs, "class", "classes")),
                Task::Regression => format!("the data asks for {}", counted(outputs, "number", "numbers")),
            };
            let answered = counted(answers, "number", "numbers");
            let reason = format!("the model answers with {answered}, but {asked}");
            return Err(layer::wrong(layers.len() - 1, reason)
                .hint(format!("make the last layer \"dense auto\" or \"dense {outputs}\"")));
        }
        let sized = layers.iter().map(|layer| match layer.units {
            Units::Count(count) => (count, layer.activation),
            Units::Auto => (outputs, layer.activation),
        });
        Network::assemble(width, &sized.collect::<Vec<_>>(), task)
    }

    /// Puts layers of known size into a row.
    pub(crate) fn assemble(width: usize, sizes: &[(usize, Activation)], task: Task) -> Result<Network> {
        if width == 0 {
            return Err(Error::data("the rows have no columns to learn from"));
        }
        let mut layers = Vec::with_capacity(sizes.len());
        let mut inputs = width;
        for (index, &(units, activation)) in sizes.iter().enumerate() {
            layer::check_units(units).map_err(|reason| layer::wrong(index, reason))?;
            if inputs.checked_mul(units).is_none_or(|weights| weights > isize::MAX as usize / 64) {
                let reason = format!("{inputs} x {units} weights are more than a machine can hold");
                return Err(layer::wrong(index, reason));
            }
            layers.push(Dense { inputs, units, activation, weight: 0, bias: 0 });
            inputs = units;
        }
        let mut layout = Layout::default();
        for (index, layer) in layers.iter_mut().enumerate().rev() {
            let mut push = |name: &str, shape: &[usize]| {
                layout.push(format!("layers.{index}.{name}"), shape, Role::Trainable, Density::Dense)
            };
            layer.bias = push("bias", &[layer.units]);
            layer.weight = push("weight", &[layer.units, layer.inputs]);
        }
        let workspace = Workspace::new(layers.len());
        Ok(Network { task, layers, layout, workspace })
    }

    /// Numbers the network reads per row.
    pub fn inputs(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.inputs)
    }

    /// Numbers the network answers with per row.
    pub fn outputs(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.units)
    }

    /// What it learns.
    pub fn task(&self) -> Task {
        self.task
    }
}

/// One line per layer with its shape and its number of parameters, then the sum.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for layer in &self.layers {
            let Dense { inputs, units, activation, .. } = *layer;
            let text = Layer { units: Units::Count(units), activation }.to_string();
            let shape = format!("{inputs} -> {units}");
            writeln!(f, "{text:<20} {shape:<16} {:>12} parameters", inputs * units + units)?;
        }
        let loss = match self.task {
            Task::Classification => "softmax cross-entropy",
            Task::Regression => "squared error",
        };
        write!(f, "{loss:<37} {:>12} parameters", self.layout.len())
    }
}

/// `1 class`, `10 classes`.
fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(layers: &[&str], outputs: usize, task: Task) -> Result<Network> {
        let layers: Vec<String> = layers.iter().map(|text| text.to_string()).collect();
        Network::build(&layers, 784, outputs, task)
    }

    #[test]
    fn tensors_stand_in_the_order_in_which_they_are_finished() {
        let network = build(&["dense 128 relu", "dense auto"], 10, Task::Classification).unwrap();
        let names: Vec<&str> = network.layout.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["layers.1.bias", "layers.1.weight", "layers.0.bias", "layers.0.weight"]);
        assert_eq!(network.layout.tensors()[3].shape, [128, 784]);
        assert_eq!((network.inputs(), network.outputs(), network.layout.len()), (784, 10, 101_770));
    }

    #[test]
    fn a_wrong_number_of_answers_is_explained() {
        let error = build(&["dense 4", "dense 8"], 10, Task::Classification).unwrap_err();
        let expected = "model.layers[1]: the model answers with 8 numbers, but the data has 10 classes";
        assert_eq!(error.message, expected);
        assert!(error.hint.unwrap().contains("\"dense auto\" or \"dense 10\""));
        let error = build(&["dense 8"], 1, Task::Regression).unwrap_err();
        assert!(error.message.ends_with("but the data asks for 1 number"));
        assert!(build(&[], 1, Task::Regression).unwrap_err().message.contains("at least one layer"));
    }

    #[test]
    fn a_network_shows_shapes_and_sizes() {
        let network = build(&["dense 128 relu", "dense auto"], 10, Task::Classification).unwrap();
        let text = network.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), "dense 128 relu 784 -> 128 100480 parameters");
        assert_eq!(lines[1].join(" "), "dense 10 128 -> 10 1290 parameters");
        assert_eq!(lines[2].join(" "), "softmax cross-entropy 101770 parameters");
    }
}
