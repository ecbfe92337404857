//! Input and output of the exported graph: unscaled rows in, predictions in the data's units out.

use super::Exporter;
use super::writer::{int, value_info};
use crate::graph::NodeId;
use crate::input::Input;
use crate::network::Network;
use crate::onnx::proto::data_type;
use crate::stacking::LEAST_PROBABILITY;
use thalweg_core::schema::Scaling;
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::{Error, FileOrder, Result, Schema, Task};

impl Exporter<'_> {
    /// Writes the graph input and the scaling of the rows.
    pub fn write_input(&mut self, schema: &Schema) {
        let (elements, sizes) = match self.input {
            Input::Flat(width) => (data_type::FLOAT, vec![width]),
            Input::Image([height, width, channels]) => (data_type::FLOAT, vec![channels, height, width]),
            Input::Symbols { window, .. } => (data_type::INT64, vec![window]),
        };
        self.writer.graph.input.push(value_info("input", elements, &sizes));
        self.scaled = "input".into();
        if !matches!(self.input, Input::Symbols { .. }) {
            let Scaling { shift, factor } = &schema.scaling;
            for (operator, numbers) in [("Sub", &to_f32(shift)), ("Mul", factor)] {
                if !numbers.is_empty() {
                    let numbers = self.scaling_tensor(numbers);
                    self.scaled = self.writer.node(operator, &[&self.scaled, &numbers], vec![]);
                }
            }
        }
    }

    /// Shifts or factors of the scaling as a constant that broadcasts over the input.
    fn scaling_tensor(&mut self, numbers: &[f32]) -> String {
        match (self.input, numbers.len()) {
            (_, 1) => self.writer.constant(&[1], numbers),
            (Input::Image([height, width, channels]), _) => {
                let numbers = FileOrder::ChannelsFirst.to_file(&[1, height, width, channels], numbers);
                self.writer.constant(&[channels, height, width], &numbers)
            }
            (_, len) => self.writer.constant(&[len], numbers),
        }
    }

    /// The scaled rows in the shape of a `Features` node.
    pub fn features(&mut self, id: NodeId, sizes: &[usize]) {
        let scaled = self.scaled.clone();
        match self.input {
            Input::Image(image) if *sizes == image => self.set_nchw(id, scaled),
            // Flat rows keep NCHW order; the weights that read them are permuted instead.
            Input::Image(_) if sizes.len() == 1 => {
                let name = self.writer.node("Flatten", &[&scaled], vec![int("axis", 1)]);
                self.set_flat(id, name);
            }
            Input::Image(_) => {
                let plain = self.writer.transpose(&scaled, &[0, 2, 3, 1]);
                let name = self.reshape_rows(&plain, sizes);
                self.set_value(id, name);
            }
            Input::Symbols { window, vocabulary } => {
                let depth = self.writer.integers(&[vocabulary as i64], &[]);
                let values = self.writer.constant(&[2], &[0.0, 1.0]);
                let mut name = self.writer.node("OneHot", &[&scaled, &depth, &values], vec![int("axis", -1)]);
                if sizes.len() == 1 {
                    name = self.writer.node("Flatten", &[&name], vec![int("axis", 1)]);
                } else if sizes != [window, vocabulary] {
                    name = self.reshape_rows(&name, sizes);
                }
                self.set_value(id, name);
            }
            Input::Flat(_) if sizes.len() == 1 => self.set_value(id, scaled),
            Input::Flat(_) => {
                let name = self.reshape_rows(&scaled, sizes);
                self.set_value(id, name);
            }
        }
    }

    /// Reshapes a value that is in memory order.
    pub fn reshape_rows(&mut self, value: &str, sizes: &[usize]) -> String {
        let sizes: Vec<i64> = std::iter::once(0).chain(sizes.iter().map(|size| *size as i64)).collect();
        self.writer.reshape(value, &sizes)
    }

    fn output(&self) -> Result<NodeId> {
        self.graph.output.ok_or_else(|| Error::internal("the network has no output"))
    }

    /// What the network predicts, before it is converted into the data's units.
    pub fn prediction(&mut self) -> Result<String> {
        self.in_memory_order(self.output()?)
    }

    /// What members with these predictions of `classes` numbers predict together.
    pub fn combined(&mut self, predictions: &[String], combine: Combine, classes: usize) -> String {
        let [_, _, ..] = predictions else { return predictions.first().cloned().unwrap_or_default() };
        let count = predictions.len();
        let sum = self.mean(predictions, count);
        if combine != Combine::Vote {
            return sum;
        }
        let depth = self.writer.integers(&[classes as i64], &[]);
        let values = self.writer.constant(&[2], &[0.0, 1.0]);
        let mut votes = vec![sum];
        for prediction in predictions {
            let class = self.writer.node("ArgMax", &[prediction], vec![int("axis", -1), int("keepdims", 0)]);
            votes.push(self.writer.node("OneHot", &[&class, &depth, &values], vec![int("axis", -1)]));
        }
        self.mean(&votes, count + 1)
    }

    /// What members with these predictions predict together by a learned combination.
    pub fn stacked(&mut self, predictions: &[String], combiner: &[f32], task: Task) -> String {
        let (weights, biases) = combiner.split_at(predictions.len());
        let mut sum = self.writer.constant(&[biases.len()], biases);
        for (prediction, weight) in predictions.iter().zip(weights) {
            let mut input = prediction.clone();
            if task == Task::Classification {
                let least = self.writer.constant(&[1], &[LEAST_PROBABILITY]);
                let above = self.writer.node("Max", &[&input, &least], vec![]);
                input = self.writer.node("Log", &[&above], vec![]);
            }
            let weight = self.writer.constant(&[1], &[*weight]);
            let weighted = self.writer.node("Mul", &[&input, &weight], vec![]);
            sum = self.writer.node("Add", &[&weighted, &sum], vec![]);
        }
        match task {
            Task::Classification => self.writer.node("Softmax", &[&sum], vec![int("axis", -1)]),
            Task::Regression => sum,
        }
    }

    /// The sum of the values, divided by `count`.
    fn mean(&mut self, values: &[String], count: usize) -> String {
        let mut sum = values[0].clone();
        for value in &values[1..] {
            sum = self.writer.node("Add", &[&sum, value], vec![]);
        }
        let count = self.writer.constant(&[1], &[count as f32]);
        self.writer.node("Div", &[&sum, &count], vec![])
    }

    /// Writes the output, converted back into the data's units.
    pub fn write_output(&mut self, network: &Network, prediction: String, schema: &Schema) -> Result<()> {
        let (value, name) = if schema.reconstruct {
            (self.reconstruction(self.output()?, &schema.scaling)?, "reconstruction")
        } else {
            let value = prediction;
            self.unscaled_output.clone_from(&value);
            match schema.task {
                Task::Classification => (value, "probabilities"),
                Task::Regression => {
                    let target = schema.target;
                    let factor = self.writer.constant(&[1], &[target.factor]);
                    let shift = self.writer.constant(&[1], &[target.shift as f32]);
                    let value = self.writer.node("Div", &[&value, &factor], vec![]);
                    (self.writer.node("Add", &[&value, &shift], vec![]), "prediction")
                }
            }
        };
        self.writer.node("Identity", &[&value], vec![]);
        self.writer.rename_last(name);
        let sizes = match self.input {
            Input::Image([height, width, channels]) if schema.reconstruct => vec![channels, height, width],
            _ => vec![network.outputs()],
        };
        self.writer.graph.output.push(value_info(name, data_type::FLOAT, &sizes));
        Ok(())
    }

    /// The reconstructed row, in the shape of the input.
    fn reconstruction(&mut self, output: NodeId, scaling: &Scaling) -> Result<String> {
        let mut value = match self.input {
            Input::Image(image) => match self.graph.shape(output).sizes().len() {
                3 => self.nchw(output)?,
                _ => self.nchw_of_flat(output, image)?,
            },
            input => {
                let value = self.in_memory_order(output)?;
                let is_flat = self.graph.shape(output).sizes().len() == 1;
                if is_flat { value } else { self.reshape_rows(&value, &[input.width()]) }
            }
        };
        self.unscaled_output.clone_from(&value);
        for (operator, numbers) in [("Div", &scaling.factor), ("Add", &to_f32(&scaling.shift))] {
            if !numbers.is_empty() {
                let numbers = self.scaling_tensor(numbers);
                value = self.writer.node(operator, &[&value, &numbers], vec![]);
            }
        }
        Ok(value)
    }
}

fn to_f32(numbers: &[f64]) -> Vec<f32> {
    numbers.iter().map(|&number| number as f32).collect()
}
