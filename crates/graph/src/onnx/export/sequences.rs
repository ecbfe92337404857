//! Recurrent layers, attention, and the last position of a sequence.

use super::Exporter;
use super::writer::{int, ints};
use crate::graph::NodeId;
use crate::onnx::gates::{GRU_GATES, LSTM_GATES};
use crate::op::Op;
use crate::op::attention::Attention;
use crate::op::elementwise::ElementwiseStep;
use thalweg_core::{Error, Result};

/// Reorders the gate blocks of a tensor from PyTorch's order to ONNX's.
fn to_onnx_order(values: &[f32], order: &[usize]) -> Vec<f32> {
    let block = values.len() / order.len();
    order.iter().flat_map(|gate| &values[gate * block..(gate + 1) * block]).copied().collect()
}

impl Exporter<'_> {
    /// Whether a node is the input projection of a recurrent layer, or its bias.
    pub fn is_part_of_recurrent(&self, id: NodeId) -> bool {
        let only_user = |id: NodeId| match self.users[id.0].as_slice() {
            &[user] if self.graph.node(user).inputs[0] == id => Some(user),
            _ => None,
        };
        let is_recurrent =
            |id: NodeId| matches!(self.graph.node(id).op, Op::Lstm(_) | Op::Gru(_) | Op::Rnn(_));
        let bias = match self.graph.node(id).op {
            Op::Product(_) => self.following_step(id, |step| step == ElementwiseStep::Bias),
            _ => Some(id),
        };
        bias.and_then(only_user).is_some_and(is_recurrent)
    }

    /// A recurrent layer, including its input projection.
    pub fn recurrent(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id).clone();
        let (operator, gates): (&str, &[usize]) = match node.op {
            Op::Lstm(_) => ("LSTM", &LSTM_GATES),
            Op::Gru(_) => ("GRU", &GRU_GATES),
            _ => ("RNN", &[0]),
        };
        let unexpected = || Error::internal("a recurrent layer does not read a product with a bias");
        let biased = self.graph.node(node.inputs[0]);
        let bias = match &biased.op {
            Op::Elementwise(chain) if chain.steps == [ElementwiseStep::Bias] => biased.inputs[1],
            _ => return Err(unexpected()),
        };
        let product = self.graph.node(biased.inputs[0]);
        let (Op::Product(_), &[read, weight]) = (&product.op, product.inputs.as_slice()) else {
            return Err(unexpected());
        };
        let units = self.graph.shape(node.inputs[1]).width();
        let from_input = self.gates(weight, gates)?;
        let from_state = self.gates(node.inputs[1], gates)?;
        let biases = self.biases(bias, node.inputs.get(2).copied(), gates)?;
        let sequence = self.in_memory_order(read)?;
        let sequence = self.writer.transpose(&sequence, &[1, 0, 2]);
        let mut attributes = vec![int("hidden_size", units as i64)];
        if operator == "GRU" {
            attributes.push(int("linear_before_reset", 1));
        }
        let inputs = [sequence, from_input, from_state, biases];
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let states = self.writer.node(operator, &inputs, attributes);
        let direction = self.writer.integers(&[1], &[1]);
        let states = self.writer.node("Squeeze", &[&states, &direction], vec![]);
        let states = self.writer.transpose(&states, &[1, 0, 2]);
        // LSTM and GRU nodes have several results, which their readers select; the RNN node has one.
        match operator {
            "RNN" => self.set_value(id, states),
            _ => {
                for user in self.users[id.0].clone() {
                    self.set_value(user, states.clone());
                }
                self.set_value(id, states);
            }
        }
        Ok(())
    }

    /// Writes a weight with its gates in ONNX's order.
    fn gates(&mut self, id: NodeId, order: &[usize]) -> Result<String> {
        let (name, sizes, values) = self.parameter(id)?;
        let (name, sizes) = (name.to_string(), [&[1], sizes].concat());
        let values = to_onnx_order(values, order);
        Ok(self.writer.tensor(&name, &sizes, &values))
    }

    /// Writes the biases of input and hidden state as one tensor; a missing second one is 0.
    fn biases(&mut self, input: NodeId, state: Option<NodeId>, order: &[usize]) -> Result<String> {
        let (name, _, values) = self.parameter(input)?;
        let name = if state.is_some() { name.replacen("input.", "", 1) } else { name.to_string() };
        let mut all = to_onnx_order(values, order);
        let len = all.len();
        match state {
            Some(state) => all.extend(to_onnx_order(self.parameter(state)?.2, order)),
            None => all.resize(2 * len, 0.0),
        }
        Ok(self.writer.tensor(&name, &[1, 2 * len], &all))
    }

    pub fn last(&mut self, id: NodeId) -> Result<()> {
        let value = self.in_memory_order(self.graph.node(id).inputs[0])?;
        let index = self.writer.integers(&[-1], &[]);
        let name = self.writer.node("Gather", &[&value, &index], vec![int("axis", 1)]);
        self.set_value(id, name);
        Ok(())
    }

    /// Attention decomposed as PyTorch's exporters do, so that the importer recognises it.
    pub fn attention(&mut self, id: NodeId, attention: &Attention) -> Result<()> {
        let value = self.in_memory_order(self.graph.node(id).inputs[0])?;
        let sizes = self.graph.shape(id).sizes();
        let (positions, width, heads) = (sizes[0], sizes[1], attention.heads);
        let lengths = self.writer.integers(&[width as i64; 3], &[3]);
        let parts = self.writer.node_with_outputs("Split", &[&value, &lengths], vec![int("axis", -1)], 3);
        let by_head = [0, positions, heads, width / heads].map(|size| size as i64);
        let mut heads_first = Vec::new();
        for (part, order) in parts.iter().zip([[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]]) {
            let part = self.writer.reshape(part, &by_head);
            heads_first.push(self.writer.node("Transpose", &[&part], vec![ints("perm", &order)]));
        }
        let scores = self.writer.node("MatMul", &[&heads_first[0], &heads_first[1]], vec![]);
        let factor = self.writer.constant(&[1], &[1.0 / ((width / heads) as f32).sqrt()]);
        let mut scores = self.writer.node("Mul", &[&scores, &factor], vec![]);
        if attention.causal {
            let mask = |index: usize| {
                if index % positions > index / positions { f32::NEG_INFINITY } else { 0.0 }
            };
            let mask: Vec<f32> = (0..positions * positions).map(mask).collect();
            let mask = self.writer.constant(&[positions, positions], &mask);
            scores = self.writer.node("Add", &[&scores, &mask], vec![]);
        }
        let weights = self.writer.node("Softmax", &[&scores], vec![int("axis", -1)]);
        let gathered = self.writer.node("MatMul", &[&weights, &heads_first[2]], vec![]);
        let gathered = self.writer.transpose(&gathered, &[0, 2, 1, 3]);
        let name = self.writer.reshape(&gathered, &[0, positions as i64, width as i64]);
        self.set_value(id, name);
        Ok(())
    }
}
