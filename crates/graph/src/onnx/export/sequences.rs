//! Recurrent layers, attention, and the last position of a sequence.

use super::Exporter;
use super::writer::{int, ints};
use crate::graph::NodeId;
use crate::onnx::gates::{GRU_GATES, LSTM_GATES};
use crate::op::Op;
use crate::op::attention::Attention;
use crate::op::elementwise::Step;
use thalweg_core::{Error, Result};

/// Blocks of a tensor's first size in another order.
fn ordered(values: &[f32], order: &[usize]) -> Vec<f32> {
    let block = values.len() / order.len();
    order.iter().flat_map(|gate| &values[gate * block..(gate + 1) * block]).copied().collect()
}

impl Exporter<'_> {
    /// Whether a node is the product with the input, or its bias, of a recurrent layer.
    pub fn is_part_of_recurrent(&self, id: NodeId) -> bool {
        let only_user = |id: NodeId| match self.users[id.0].as_slice() {
            &[user] if self.graph.node(user).inputs[0] == id => Some(user),
            _ => None,
        };
        let is_recurrent =
            |id: NodeId| matches!(self.graph.node(id).op, Op::Lstm(_) | Op::Gru(_) | Op::Rnn(_));
        let bias = match self.graph.node(id).op {
            Op::Product(_) => self.followed_by(id, |step| step == Step::Bias),
            _ => Some(id),
        };
        bias.and_then(only_user).is_some_and(is_recurrent)
    }

    /// A whole recurrent layer: what it reads from the input is part of ONNX's operator.
    pub fn recurrent(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id).clone();
        let (operator, gates): (&str, &[usize]) = match node.op {
            Op::Lstm(_) => ("LSTM", &LSTM_GATES),
            Op::Gru(_) => ("GRU", &GRU_GATES),
            _ => ("RNN", &[0]),
        };
        let broken = || Error::internal("a recurrent layer does not read a product with a bias");
        let biased = self.graph.node(node.inputs[0]);
        let bias = match &biased.op {
            Op::Elementwise(chain) if chain.steps == [Step::Bias] => biased.inputs[1],
            _ => return Err(broken()),
        };
        let product = self.graph.node(biased.inputs[0]);
        let (Op::Product(_), &[read, weight]) = (&product.op, product.inputs.as_slice()) else {
            return Err(broken());
        };
        let units = self.graph.shape(node.inputs[1]).width();
        let from_input = self.gates(weight, gates)?;
        let from_state = self.gates(node.inputs[1], gates)?;
        let biases = self.biases(bias, node.inputs.get(2).copied(), gates)?;
        let sequence = self.plain(read)?;
        let sequence = self.writer.transpose(&sequence, &[1, 0, 2]);
        let mut attributes = vec![int("hidden_size", units as i64)];
        if operator == "GRU" {
            attributes.push(int("linear_before_reset", 1));
        }
        let inputs = [sequence, from_input, from_state, biases];
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let answers = self.writer.node(operator, &inputs, attributes);
        let direction = self.writer.integers(&[1], &[1]);
        let answers = self.writer.node("Squeeze", &[&answers, &direction], vec![]);
        let answers = self.writer.transpose(&answers, &[1, 0, 2]);
        // The answers are a part of LSTM and gated unit, and the result of the plain cell.
        match operator {
            "RNN" => self.put(id, answers),
            _ => {
                for user in self.users[id.0].clone() {
                    self.put(user, answers.clone());
                }
                self.put(id, answers);
            }
        }
        Ok(())
    }

    /// A weight with its gates in ONNX's order.
    fn gates(&mut self, id: NodeId, order: &[usize]) -> Result<String> {
        let (name, sizes, values) = self.parameter(id)?;
        let (name, sizes) = (name.to_string(), [&[1], sizes].concat());
        let values = ordered(values, order);
        Ok(self.writer.tensor(&name, &sizes, &values))
    }

    /// The biases of input and state as one tensor; the second is 0 where there is none.
    fn biases(&mut self, input: NodeId, state: Option<NodeId>, order: &[usize]) -> Result<String> {
        let (name, _, values) = self.parameter(input)?;
        let name = if state.is_some() { name.replacen("input.", "", 1) } else { name.to_string() };
        let mut all = ordered(values, order);
        let len = all.len();
        match state {
            Some(state) => all.extend(ordered(self.parameter(state)?.2, order)),
            None => all.resize(2 * len, 0.0),
        }
        Ok(self.writer.tensor(&name, &[1, 2 * len], &all))
    }

    /// The last position of a sequence.
    pub fn last(&mut self, id: NodeId) -> Result<()> {
        let value = self.plain(self.graph.node(id).inputs[0])?;
        let place = self.writer.integers(&[-1], &[]);
        let name = self.writer.node("Gather", &[&value, &place], vec![int("axis", 1)]);
        self.put(id, name);
        Ok(())
    }

    /// Scaled products of queries and keys, their shares, and what these gather of the values.
    pub fn attention(&mut self, id: NodeId, attention: &Attention) -> Result<()> {
        let value = self.plain(self.graph.node(id).inputs[0])?;
        let sizes = self.graph.shape(id).sizes();
        let (positions, width, heads) = (sizes[0], sizes[1], attention.heads);
        let lengths = self.writer.integers(&[width as i64; 3], &[3]);
        let parts = self.writer.node_of("Split", &[&value, &lengths], vec![int("axis", -1)], 3);
        let by_head = [0, positions, heads, width / heads].map(|size| size as i64);
        let mut turned = Vec::new();
        for (part, order) in parts.iter().zip([[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]]) {
            let part = self.writer.reshape(part, &by_head);
            turned.push(self.writer.node("Transpose", &[&part], vec![ints("perm", &order)]));
        }
        let scores = self.writer.node("MatMul", &[&turned[0], &turned[1]], vec![]);
        let factor = self.writer.constant(&[1], &[1.0 / ((width / heads) as f32).sqrt()]);
        let mut scores = self.writer.node("Mul", &[&scores, &factor], vec![]);
        if attention.causal {
            let seen =
                |place: usize| if place % positions > place / positions { f32::NEG_INFINITY } else { 0.0 };
            let mask: Vec<f32> = (0..positions * positions).map(seen).collect();
            let mask = self.writer.constant(&[positions, positions], &mask);
            scores = self.writer.node("Add", &[&scores, &mask], vec![]);
        }
        let shares = self.writer.node("Softmax", &[&scores], vec![int("axis", -1)]);
        let gathered = self.writer.node("MatMul", &[&shares, &turned[2]], vec![]);
        let gathered = self.writer.transpose(&gathered, &[0, 2, 1, 3]);
        let name = self.writer.reshape(&gathered, &[0, positions as i64, width as i64]);
        self.put(id, name);
        Ok(())
    }
}
