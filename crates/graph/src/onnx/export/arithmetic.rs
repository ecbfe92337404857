//! Products, normalisations, concatenation and element-wise operators.

use super::Exporter;
use super::writer::{float, int, string};
use crate::activation::Activation;
use crate::graph::NodeId;
use crate::op::batch_normalize::{MOMENTUM, RunningNormalize};
use crate::op::concatenate::Columns;
use crate::op::elementwise::ElementwiseStep;
use thalweg_core::Result;

impl Exporter<'_> {
    /// `Gemm` with its bias for flat rows, `MatMul` for sequences.
    pub fn product(&mut self, id: NodeId, transposed: bool) -> Result<()> {
        let [read, weight] = [self.graph.node(id).inputs[0], self.graph.node(id).inputs[1]];
        if self.graph.shape(read).sizes().len() == 1 {
            return self.flat_product(id, transposed);
        }
        let value = self.in_memory_order(read)?;
        let mut weight = self.tensor(weight)?;
        if transposed {
            weight = self.writer.transpose(&weight, &[1, 0]);
        }
        let name = self.writer.node("MatMul", &[&value, &weight], vec![]);
        self.set_value(id, name);
        Ok(())
    }

    /// A product of flat rows. The weight is permuted so that input and output keep their file order.
    fn flat_product(&mut self, id: NodeId, transposed: bool) -> Result<()> {
        let [read, weight] = [self.graph.node(id).inputs[0], self.graph.node(id).inputs[1]];
        let bias = self.following_step(id, |step| step == ElementwiseStep::Bias);
        let end = bias.unwrap_or(id);
        let (value, inner) = (self.flat_in_order_of(read, read)?, self.orders.get(read).to_vec());
        let outer = self.orders.get(end).to_vec();
        let permutations: [&[u32]; 2] = if transposed { [&outer, &inner] } else { [&inner, &outer] };
        let mut inputs = vec![value, self.permuted_tensor(weight, permutations)?];
        if let Some(bias) = bias {
            inputs.push(self.permuted_tensor(self.graph.node(bias).inputs[1], [&outer, &[]])?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let name = self.writer.node("Gemm", &inputs, vec![int("transB", i64::from(transposed))]);
        self.set_flat(end, name);
        Ok(())
    }

    /// A chain of element-wise steps.
    pub fn chain(&mut self, id: NodeId, steps: &[ElementwiseStep]) -> Result<()> {
        let inputs = self.graph.node(id).inputs.clone();
        let is_nchw = self.value(inputs[0])?.is_nchw;
        let mut value = if is_nchw { self.nchw(inputs[0])? } else { self.flat_in_order_of(inputs[0], id)? };
        let mut operands = inputs[1..].iter().copied();
        for step in steps {
            value = match (*step, if step.takes_operand() { operands.next() } else { None }) {
                (ElementwiseStep::Bias, Some(operand)) => {
                    let operand = self.per_column(id, operand, is_nchw)?;
                    self.writer.node("Add", &[&value, &operand], vec![])
                }
                (ElementwiseStep::Gain, Some(operand)) => {
                    let operand = self.per_column(id, operand, is_nchw)?;
                    self.writer.node("Mul", &[&value, &operand], vec![])
                }
                (ElementwiseStep::Add | ElementwiseStep::Multiply, Some(operand)) => {
                    let other =
                        if is_nchw { self.nchw(operand)? } else { self.flat_in_order_of(operand, id)? };
                    let operator = if *step == ElementwiseStep::Add { "Add" } else { "Mul" };
                    self.writer.node(operator, &[&value, &other], vec![])
                }
                (ElementwiseStep::Scale(factor), _) => {
                    let factor = self.writer.constant(&[1], &[factor]);
                    self.writer.node("Mul", &[&value, &factor], vec![])
                }
                (ElementwiseStep::Activate(activation), _) => self.activate(&value, activation),
                (step, _) => {
                    let reason = format!("there is no ONNX operator for {step:?}");
                    return Err(thalweg_core::Error::internal(reason));
                }
            };
        }
        if is_nchw {
            self.set_nchw(id, value)
        } else {
            self.set_flat(id, value)
        }
        Ok(())
    }

    /// A tensor with one element per column, so that it broadcasts over a flat value or an NCHW image.
    fn per_column(&mut self, value: NodeId, id: NodeId, image: bool) -> Result<String> {
        let order = self.orders.get(value).to_vec();
        if !order.is_empty() {
            return self.permuted_tensor(id, [&order, &[]]);
        }
        let name = self.tensor(id)?;
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

    /// Gain and bias that follow a normalisation: the last node covered, and the names of the two tensors. A missing
    /// one is written as ones or zeros.
    fn gain_and_bias(&mut self, id: NodeId) -> Result<(NodeId, String, String)> {
        let width = self.graph.shape(id).width();
        let mut end = id;
        let mut names = Vec::new();
        for (step, default) in [(ElementwiseStep::Gain, 1.0), (ElementwiseStep::Bias, 0.0)] {
            names.push(match self.following_step(end, |found| found == step) {
                Some(user) => {
                    end = user;
                    // Marks the node as written; the caller sets the value of the last one.
                    self.set_value(user, String::new());
                    let order = self.orders.get(id).to_vec();
                    self.permuted_tensor(self.graph.node(user).inputs[1], [&order, &[]])?
                }
                None => self.writer.constant(&[width], &vec![default; width]),
            });
        }
        let bias = names.pop().unwrap_or_default();
        Ok((end, names.pop().unwrap_or_default(), bias))
    }

    pub fn normalize(&mut self, id: NodeId, epsilon: f32) -> Result<()> {
        let value = self.flat_in_order_of(self.graph.node(id).inputs[0], id)?;
        let (end, gain, bias) = self.gain_and_bias(id)?;
        let attributes = vec![int("axis", -1), float("epsilon", epsilon)];
        let name = self.writer.node("LayerNormalization", &[&value, &gain, &bias], attributes);
        self.set_flat_like(end, id, name);
        Ok(())
    }

    /// Batch normalisation by running statistics; ONNX expects the channels right after the rows.
    pub fn running_normalize(&mut self, id: NodeId, op: &RunningNormalize) -> Result<()> {
        let [read, mean, variance] = [0, 1, 2].map(|index| self.graph.node(id).inputs[index]);
        let rank = self.graph.shape(id).sizes().len();
        let value = match rank {
            3 => self.nchw(read)?,
            _ => self.flat_in_order_of(read, id)?,
        };
        let value = if rank == 2 { self.writer.transpose(&value, &[0, 2, 1]) } else { value };
        let (end, gain, bias) = self.gain_and_bias(id)?;
        let order = self.orders.get(id).to_vec();
        let mean = self.permuted_tensor(mean, [&order, &[]])?;
        let variance = self.permuted_tensor(variance, [&order, &[]])?;
        let inputs = [value, gain, bias, mean, variance];
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut attributes = vec![float("epsilon", op.epsilon)];
        if op.momentum != MOMENTUM {
            attributes.push(float("momentum", 1.0 - op.momentum));
        }
        let name = self.writer.node("BatchNormalization", &inputs, attributes);
        match rank {
            3 => self.set_nchw(end, name),
            2 => {
                let name = self.writer.transpose(&name, &[0, 2, 1]);
                self.set_value(end, name);
            }
            _ => self.set_flat_like(end, id, name),
        }
        Ok(())
    }

    pub fn concatenate(&mut self, id: NodeId) -> Result<()> {
        let inputs = self.graph.node(id).inputs.clone();
        let is_image = self.graph.shape(id).sizes().len() == 3;
        let is_flat = self.orders.concatenated(self.graph, self.graph.node(id)) == self.orders.get(id);
        let names = inputs.iter().map(|input| match (is_image, is_flat) {
            (true, _) => self.nchw(*input),
            (false, true) => self.flat_in_order_of(*input, *input),
            (false, false) => self.in_memory_order(*input),
        });
        let names = names.collect::<Result<Vec<String>>>()?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let axis = if is_image { 1 } else { -1 };
        let name = self.writer.node("Concat", &names, vec![int("axis", axis)]);
        match (is_image, is_flat) {
            (true, _) => self.set_nchw(id, name),
            (false, true) => self.set_flat(id, name),
            (false, false) => self.set_value(id, name),
        }
        Ok(())
    }

    pub fn columns(&mut self, id: NodeId, columns: &Columns) -> Result<()> {
        let value = self.in_memory_order(self.graph.node(id).inputs[0])?;
        let ends = [columns.begin as i64, (columns.begin + columns.count) as i64, -1];
        let [begin, end, axis] = ends.map(|index| self.writer.integers(&[index], &[1]));
        let name = self.writer.node("Slice", &[&value, &begin, &end, &axis], vec![]);
        self.set_value(id, name);
        Ok(())
    }
}
