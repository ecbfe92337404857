//! `LSTM`, `GRU` and `RNN`: forward direction, zero initial state.

use super::attributes::Attributes;
use super::constant::{ConstantTensor, TensorData};
use super::importer::Importer;
use super::value::{Value, Weight};
use super::view::{AxisPart, View};
use crate::graph::NodeId;
use crate::onnx::gates::{GRU_GATES, LSTM_GATES};
use crate::onnx::proto::NodeProto;
use crate::op::elementwise::ElementwiseStep;
use crate::op::product::Product;
use crate::op::{Op, gru, last, lstm, rnn};

/// Reorders the gate blocks of a tensor from ONNX's order to PyTorch's.
fn to_pytorch_order(values: &[f32], order: &[usize]) -> Vec<f32> {
    let block = values.len() / order.len();
    let index = |gate: usize| order.iter().position(|other| *other == gate).unwrap_or(gate);
    (0..order.len()).flat_map(|gate| &values[index(gate) * block..][..block]).copied().collect()
}

/// `layers.1.bias` becomes `layers.1.input.bias`.
fn inner_name(name: &str, part: &str) -> String {
    match name.rsplit_once('.') {
        Some((outer, last)) => format!("{outer}.{part}.{last}"),
        None => format!("{name}.{part}"),
    }
}

impl Importer<'_> {
    /// A recurrent layer: hidden states at every position, then at the last.
    pub fn recurrent(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Vec<Value>, String> {
        let name = |index: usize| node.input.get(index).filter(|name| !name.is_empty()).cloned();
        let gates: &[usize] = match node.op_type.as_str() {
            "LSTM" => &LSTM_GATES,
            "GRU" => &GRU_GATES,
            _ => &[0],
        };
        self.check(node, attributes)?;
        let view = self.view(&name(0).unwrap_or_default())?;
        if view.axes.len() != 3 || view.axes[1] != [AxisPart::Rows] {
            return Err("expected a sequence (positions x rows x features)".into());
        }
        let (positions, inputs) = (view.size(0)?, view.size(2)?);
        let (view, _) = self.with_innermost(&view, &[0, 2])?;
        let read = self.reshape_node(view.node, &[positions, inputs])?;
        let from_input = self.weight(&name(1).unwrap_or_default())?;
        let from_state = self.weight(&name(2).unwrap_or_default())?;
        let units = from_state.file_shape.get(2).copied().unwrap_or(0);
        let gate_units = gates.len() * units;
        let hidden = attributes.int("hidden_size", units as i64);
        if hidden != units as i64 {
            return Err(format!("attribute `hidden_size` = {hidden}, but its weights have {units} units"));
        }
        for (weight, columns) in [(&from_input, inputs), (&from_state, units)] {
            if units == 0 || weight.file_shape != [1, gate_units, columns] {
                let name = &weight.name;
                return Err(format!(
                    "`{name}`: expected shape [1, {gate_units}, {columns}], got {:?}",
                    weight.file_shape
                ));
            }
        }
        let weight =
            self.trainable(&from_input, &[gate_units, inputs], |values| to_pytorch_order(values, gates));
        let product = self.builder.add(Op::Product(Product::transposed_right()), &[read, weight])?;
        let both = match name(3) {
            Some(name) => self.weight(&name)?,
            None => {
                let data = TensorData::Floats(vec![0.0; 2 * gate_units].into());
                let name = inner_name(&from_input.name, "bias");
                Weight::new(&name, ConstantTensor { sizes: vec![1, 2 * gate_units], data })
            }
        };
        if both.file_shape != [1, 2 * gate_units] {
            return Err(format!(
                "`{}`: expected shape [1, {}], got {:?}",
                both.name,
                2 * gate_units,
                both.file_shape
            ));
        }
        let split = node.op_type == "GRU";
        // LSTM and RNN only ever use the sum of the two biases: one parameter.
        let added = |values: &[f32]| -> Vec<f32> {
            let (input, state) = values.split_at(gate_units);
            to_pytorch_order(
                &input.iter().zip(state).map(|(input, state)| input + state).collect::<Vec<f32>>(),
                gates,
            )
        };
        let bias = if split {
            let part = Weight { name: inner_name(&both.name, "input"), ..both.clone() };
            self.trainable(&part, &[gate_units], |values| to_pytorch_order(&values[..gate_units], gates))
        } else {
            self.trainable(&both, &[gate_units], added)
        };
        let read = self.builder.add(Op::elementwise(ElementwiseStep::Bias), &[product, bias])?;
        let hidden =
            self.trainable(&from_state, &[gate_units, units], |values| to_pytorch_order(values, gates));
        let states: NodeId = match node.op_type.as_str() {
            "LSTM" => {
                let gates = self.builder.add(Op::Lstm(lstm::Lstm), &[read, hidden])?;
                self.builder.add(Op::SideOutput(0), &[gates])?
            }
            "GRU" => {
                let part = Weight { name: inner_name(&both.name, "hidden"), ..both };
                let bias = self
                    .trainable(&part, &[gate_units], |values| to_pytorch_order(&values[gate_units..], gates));
                let gates = self.builder.add(Op::Gru(gru::Gru), &[read, hidden, bias])?;
                self.builder.add(Op::SideOutput(0), &[gates])?
            }
            _ => self.builder.add(Op::Rnn(rnn::Rnn), &[read, hidden])?,
        };
        let mut all = View::new(states, &[positions, units]);
        let [rows, position, feature] = [0, 1, 2].map(|axis| all.axes[axis].clone());
        all.axes = vec![position, vec![], rows, feature];
        let mut outputs = vec![Value::View(all)];
        let is_read = |name: &&String| self.graph.node.iter().any(|node| node.input.contains(name));
        if node.output.get(1).filter(|name| !name.is_empty()).filter(is_read).is_some() {
            let last = self.builder.add(Op::Last(last::Last), &[states])?;
            let mut last = View::new(last, &[units]);
            last.axes.insert(0, vec![]);
            outputs.push(Value::View(last));
        }
        Ok(outputs)
    }

    /// Rejects attributes and inputs that the layers here do not support.
    fn check(&self, node: &NodeProto, attributes: Attributes<'_>) -> Result<(), String> {
        if attributes.string("direction", "forward") != "forward" {
            return Err("attribute `direction`: only \"forward\" is supported".into());
        }
        for name in ["layout", "input_forget"] {
            if attributes.int(name, 0) != 0 {
                return Err(format!("attribute `{name}` other than 0 is not supported"));
            }
        }
        if attributes.int("linear_before_reset", 0) == 0 && node.op_type == "GRU" {
            return Err("attribute `linear_before_reset`: only 1, as PyTorch exports it, is supported".into());
        }
        let supported: &[&str] = match node.op_type.as_str() {
            "LSTM" => &["Sigmoid", "Tanh", "Tanh"],
            "GRU" => &["Sigmoid", "Tanh"],
            _ => &["Tanh"],
        };
        let activations = attributes.strings("activations");
        let both_directions = [supported, supported].concat();
        if !activations.is_empty() && activations != supported && activations != both_directions {
            return Err(format!(
                "attribute `activations` = {activations:?} is not supported ({supported:?} is)"
            ));
        }
        if node.input.get(4).is_some_and(|name| !name.is_empty()) {
            return Err("input `sequence_lens` (rows of different lengths) is not supported".into());
        }
        for name in node.input.iter().skip(5).filter(|name| !name.is_empty()) {
            let zero = match self.value(name)? {
                Value::Filled(value) => value == 0.0,
                Value::Constant(ConstantTensor { data: TensorData::Floats(values), .. }) => {
                    values.iter().all(|value| *value == 0.0)
                }
                _ => false,
            };
            if !zero {
                return Err("a nonzero initial state is not supported".into());
            }
        }
        Ok(())
    }
}
