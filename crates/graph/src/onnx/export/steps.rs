//! Products, normalisations and steps on each element.

use super::Exporter;
use super::writer::{float, int, string};
use crate::activation::Activation;
use crate::graph::NodeId;
use crate::op::batch_normalize::{RunningNormalize, SHARE};
use crate::op::concatenate::Columns;
use crate::op::elementwise::Step;
use thalweg_core::Result;

impl Exporter<'_> {
    /// A product and the bias behind it. Lines of a sequence are multiplied one by one.
    pub fn product(&mut self, id: NodeId, transposed: bool) -> Result<()> {
        let [read, weight] = [self.graph.node(id).inputs[0], self.graph.node(id).inputs[1]];
        if self.graph.shape(read).sizes().len() == 1 {
            return self.product_of_lines(id, transposed);
        }
        let value = self.plain(read)?;
        let mut weight = self.whole(weight)?;
        if transposed {
            weight = self.writer.transpose(&weight, &[1, 0]);
        }
        let name = self.writer.node("MatMul", &[&value, &weight], vec![]);
        self.put(id, name);
        Ok(())
    }

    /// A product of one line per row.
    fn product_of_lines(&mut self, id: NodeId, transposed: bool) -> Result<()> {
        let [read, weight] = [self.graph.node(id).inputs[0], self.graph.node(id).inputs[1]];
        let bias = self.followed_by(id, |step| step == Step::Bias);
        let end = bias.unwrap_or(id);
        let (value, inner) = (self.lined(read, read)?, self.orders.get(read).to_vec());
        let outer = self.orders.get(end).to_vec();
        let places: [&[u32]; 2] = if transposed { [&outer, &inner] } else { [&inner, &outer] };
        let mut inputs = vec![value, self.whole_in_order(weight, places)?];
        if let Some(bias) = bias {
            inputs.push(self.whole_in_order(self.graph.node(bias).inputs[1], [&outer, &[]])?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let name = self.writer.node("Gemm", &inputs, vec![int("transB", i64::from(transposed))]);
        self.put_line(end, name);
        Ok(())
    }

    /// Steps one after another.
    pub fn chain(&mut self, id: NodeId, steps: &[Step]) -> Result<()> {
        let inputs = self.graph.node(id).inputs.clone();
        let first_first = self.value(inputs[0])?.channels_first;
        let mut value = if first_first { self.image(inputs[0])? } else { self.lined(inputs[0], id)? };
        let mut operands = inputs[1..].iter().copied();
        for step in steps {
            value = match (*step, if step.takes_operand() { operands.next() } else { None }) {
                (Step::Bias, Some(operand)) => {
                    let operand = self.per_column(id, operand, first_first)?;
                    self.writer.node("Add", &[&value, &operand], vec![])
                }
                (Step::Gain, Some(operand)) => {
                    let operand = self.per_column(id, operand, first_first)?;
                    self.writer.node("Mul", &[&value, &operand], vec![])
                }
                (Step::Add | Step::Multiply, Some(operand)) => {
                    let other = if first_first { self.image(operand)? } else { self.lined(operand, id)? };
                    let operator = if *step == Step::Add { "Add" } else { "Mul" };
                    self.writer.node(operator, &[&value, &other], vec![])
                }
                (Step::Scale(factor), _) => {
                    let factor = self.writer.constant(&[1], &[factor]);
                    self.writer.node("Mul", &[&value, &factor], vec![])
                }
                (Step::Activate(activation), _) => self.activate(&value, activation),
                (step, _) => {
                    let reason = format!("there is no ONNX operator for {step:?}");
                    return Err(thalweg_core::Error::internal(reason));
                }
            };
        }
        if first_first {
            self.put_image(id, value)
        } else {
            self.put_line(id, value)
        }
        Ok(())
    }

    /// A tensor with one number per column of a value, so that it fits its lines or, channels first, images.
    fn per_column(&mut self, value: NodeId, id: NodeId, image: bool) -> Result<String> {
        let order = self.orders.get(value).to_vec();
        if !order.is_empty() {
            return self.whole_in_order(id, [&order, &[]]);
        }
        let name = self.whole(id)?;
        let sizes = self.graph.shape(id).sizes();
        let (rank, len) = (sizes.len(), self.graph.shape(id).per_row() as i64);
        Ok(match (image, rank) {
            (true, _) => self.writer.reshape(&name, &[len, 1, 1]),
            (false, 1) => name,
            (false, _) => self.writer.reshape(&name, &[len]),
        })
    }

    fn activate(&mut self, value: &str, activation: Activation) -> String {
        let (operator, attributes) = match activation {
            Activation::None => ("Identity", vec![]),
            Activation::Relu => ("Relu", vec![]),
            Activation::Tanh => ("Tanh", vec![]),
            Activation::Sigmoid => ("Sigmoid", vec![]),
            Activation::LeakyRelu => ("LeakyRelu", vec![float("alpha", 0.01)]),
            Activation::Elu => ("Elu", vec![float("alpha", 1.0)]),
            Activation::Gelu => ("Gelu", vec![string("approximate", "tanh")]),
            Activation::GeluErf => ("Gelu", vec![string("approximate", "none")]),
        };
        self.writer.node(operator, &[value], attributes)
    }

    /// Gain and bias behind a normalisation: the node that ends it, and the two tensors' names. What is not there is
    /// written as ones or zeros.
    fn gain_and_bias(&mut self, id: NodeId) -> Result<(NodeId, String, String)> {
        let width = self.graph.shape(id).width();
        let mut end = id;
        let mut names = Vec::new();
        for (step, usual) in [(Step::Gain, 1.0), (Step::Bias, 0.0)] {
            names.push(match self.followed_by(end, |found| found == step) {
                Some(user) => {
                    end = user;
                    // Whoever ends the normalisation has its value; those on the way have no reader besides it.
                    self.put(user, String::new());
                    let order = self.orders.get(id).to_vec();
                    self.whole_in_order(self.graph.node(user).inputs[1], [&order, &[]])?
                }
                None => self.writer.constant(&[width], &vec![usual; width]),
            });
        }
        let bias = names.pop().unwrap_or_default();
        Ok((end, names.pop().unwrap_or_default(), bias))
    }

    /// Normalised lines.
    pub fn normalize(&mut self, id: NodeId, epsilon: f32) -> Result<()> {
        let value = self.lined(self.graph.node(id).inputs[0], id)?;
        let (end, gain, bias) = self.gain_and_bias(id)?;
        let attributes = vec![int("axis", -1), float("epsilon", epsilon)];
        let name = self.writer.node("LayerNormalization", &[&value, &gain, &bias], attributes);
        self.put_line_of(end, id, name);
        Ok(())
    }

    /// Columns normalised by running statistics. ONNX has them behind the rows.
    pub fn running_normalize(&mut self, id: NodeId, op: &RunningNormalize) -> Result<()> {
        let [read, mean, variance] = [0, 1, 2].map(|index| self.graph.node(id).inputs[index]);
        let rank = self.graph.shape(id).sizes().len();
        let value = match rank {
            3 => self.image(read)?,
            _ => self.lined(read, id)?,
        };
        let value = if rank == 2 { self.writer.transpose(&value, &[0, 2, 1]) } else { value };
        let (end, gain, bias) = self.gain_and_bias(id)?;
        let order = self.orders.get(id).to_vec();
        let mean = self.whole_in_order(mean, [&order, &[]])?;
        let variance = self.whole_in_order(variance, [&order, &[]])?;
        let inputs = [value, gain, bias, mean, variance];
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut attributes = vec![float("epsilon", op.epsilon)];
        if op.share != SHARE {
            attributes.push(float("momentum", 1.0 - op.share));
        }
        let name = self.writer.node("BatchNormalization", &inputs, attributes);
        match rank {
            3 => self.put_image(end, name),
            2 => {
                let name = self.writer.transpose(&name, &[0, 2, 1]);
                self.put(end, name);
            }
            _ => self.put_line_of(end, id, name),
        }
        Ok(())
    }

    /// Values side by side.
    pub fn concatenate(&mut self, id: NodeId) -> Result<()> {
        let inputs = self.graph.node(id).inputs.clone();
        let images = self.graph.shape(id).sizes().len() == 3;
        let lines = self.orders.side_by_side(self.graph, self.graph.node(id)) == self.orders.get(id);
        let names = inputs.iter().map(|input| match (images, lines) {
            (true, _) => self.image(*input),
            (false, true) => self.lined(*input, *input),
            (false, false) => self.plain(*input),
        });
        let names = names.collect::<Result<Vec<String>>>()?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let axis = if images { 1 } else { -1 };
        let name = self.writer.node("Concat", &names, vec![int("axis", axis)]);
        match (images, lines) {
            (true, _) => self.put_image(id, name),
            (false, true) => self.put_line(id, name),
            (false, false) => self.put(id, name),
        }
        Ok(())
    }

    /// Some columns.
    pub fn columns(&mut self, id: NodeId, columns: &Columns) -> Result<()> {
        let value = self.plain(self.graph.node(id).inputs[0])?;
        let ends = [columns.begin as i64, (columns.begin + columns.count) as i64, -1];
        let [begin, end, axis] = ends.map(|place| self.writer.integers(&[place], &[1]));
        let name = self.writer.node("Slice", &[&value, &begin, &end, &axis], vec![]);
        self.put(id, name);
        Ok(())
    }
}
