//! Where a model begins and ends: rows as the data has them, answers in its units.

use super::Exporter;
use super::writer::{int, value_info};
use crate::graph::NodeId;
use crate::input::Input;
use crate::network::Network;
use crate::onnx::proto::data_type;
use thalweg_core::schema::Scaling;
use thalweg_core::{Error, FileOrder, Result, Schema, Task};

impl Exporter<'_> {
    /// The input, and the scaling behind it.
    pub fn begin(&mut self, schema: &Schema) {
        let (elements, sizes) = match self.input {
            Input::Flat(width) => (data_type::FLOAT, vec![width]),
            Input::Image([height, width, channels]) => (data_type::FLOAT, vec![channels, height, width]),
            Input::Symbols { window, .. } => (data_type::INT64, vec![window]),
        };
        self.writer.graph.input.push(value_info("input", elements, &sizes));
        self.scaled = "input".into();
        if !matches!(self.input, Input::Symbols { .. }) {
            let Scaling { shift, factor } = &schema.scaling;
            for (operator, numbers) in [("Sub", &single(shift)), ("Mul", factor)] {
                if !numbers.is_empty() {
                    let numbers = self.scaling_tensor(numbers);
                    self.scaled = self.writer.node(operator, &[&self.scaled, &numbers], vec![]);
                }
            }
        }
    }

    /// Numbers of the scaling as a tensor that fits the input.
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

    /// The rows in the shape in which a node reads them.
    pub fn features(&mut self, id: NodeId, sizes: &[usize]) {
        let scaled = self.scaled.clone();
        match self.input {
            Input::Image(image) if *sizes == image => self.put_image(id, scaled),
            // A line of the rows has the order of the rows themselves.
            Input::Image(_) if sizes.len() == 1 => {
                let name = self.writer.node("Flatten", &[&scaled], vec![int("axis", 1)]);
                self.put_line(id, name);
            }
            Input::Image(_) => {
                let plain = self.writer.transpose(&scaled, &[0, 2, 3, 1]);
                let name = self.in_sizes(&plain, sizes);
                self.put(id, name);
            }
            Input::Symbols { window, vocabulary } => {
                let depth = self.writer.integers(&[vocabulary as i64], &[]);
                let values = self.writer.constant(&[2], &[0.0, 1.0]);
                let mut name = self.writer.node("OneHot", &[&scaled, &depth, &values], vec![int("axis", -1)]);
                if sizes.len() == 1 {
                    name = self.writer.node("Flatten", &[&name], vec![int("axis", 1)]);
                } else if sizes != [window, vocabulary] {
                    name = self.in_sizes(&name, sizes);
                }
                self.put(id, name);
            }
            Input::Flat(_) if sizes.len() == 1 => self.put(id, scaled),
            Input::Flat(_) => {
                let name = self.in_sizes(&scaled, sizes);
                self.put(id, name);
            }
        }
    }

    /// A value in the order of memory under other sizes.
    pub fn in_sizes(&mut self, value: &str, sizes: &[usize]) -> String {
        let sizes: Vec<i64> = std::iter::once(0).chain(sizes.iter().map(|size| *size as i64)).collect();
        self.writer.reshape(value, &sizes)
    }

    /// The answer in the data's units, under a name that says what it is.
    pub fn end(&mut self, network: &Network, schema: &Schema) -> Result<()> {
        let answer = self.graph.answer.ok_or_else(|| Error::internal("the network has no answer"))?;
        let (value, name) = if schema.reconstruct {
            (self.reconstruction(answer, &schema.scaling)?, "reconstruction")
        } else {
            let value = self.plain(answer)?;
            self.answer.clone_from(&value);
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

    /// The row made again, in the shape of the input.
    fn reconstruction(&mut self, answer: NodeId, scaling: &Scaling) -> Result<String> {
        let mut value = match self.input {
            Input::Image(image) => match self.graph.shape(answer).sizes().len() {
                3 => self.image(answer)?,
                _ => self.image_of_line(answer, image)?,
            },
            input => {
                let value = self.plain(answer)?;
                let is_line = self.graph.shape(answer).sizes().len() == 1;
                if is_line { value } else { self.in_sizes(&value, &[input.width()]) }
            }
        };
        self.answer.clone_from(&value);
        for (operator, numbers) in [("Div", &scaling.factor), ("Add", &single(&scaling.shift))] {
            if !numbers.is_empty() {
                let numbers = self.scaling_tensor(numbers);
                value = self.writer.node(operator, &[&value, &numbers], vec![]);
            }
        }
        Ok(value)
    }
}

/// Numbers as the file's input has them.
fn single(numbers: &[f64]) -> Vec<f32> {
    numbers.iter().map(|&number| number as f32).collect()
}
