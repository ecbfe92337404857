//! `LSTM`, `GRU` and `RNN`, in one direction and from a state of zeros.

use super::importer::Importer;
use super::item::{Item, Weight};
use super::settings::Settings;
use super::tensor::{Constant, Data};
use super::view::{Piece, View};
use crate::graph::NodeId;
use crate::onnx::gates::{GRU_GATES, LSTM_GATES};
use crate::onnx::proto::Node;
use crate::op::elementwise::Step;
use crate::op::product::Product;
use crate::op::{Op, gru, last, lstm, rnn};

/// Blocks of a tensor back from ONNX's order of gates.
fn back(values: &[f32], order: &[usize]) -> Vec<f32> {
    let block = values.len() / order.len();
    let place = |gate: usize| order.iter().position(|other| *other == gate).unwrap_or(gate);
    (0..order.len()).flat_map(|gate| &values[place(gate) * block..][..block]).copied().collect()
}

/// `layers.1.bias` becomes `layers.1.input.bias`.
fn inner_name(name: &str, part: &str) -> String {
    match name.rsplit_once('.') {
        Some((outer, last)) => format!("{outer}.{part}.{last}"),
        None => format!("{name}.{part}"),
    }
}

impl Importer<'_> {
    /// A whole recurrent layer: its answers at every position, then at the last.
    pub fn recurrent(&mut self, node: &Node, settings: Settings<'_>) -> Result<Vec<Item>, String> {
        let name = |index: usize| node.input.get(index).filter(|name| !name.is_empty()).cloned();
        let gates: &[usize] = match node.op_type.as_str() {
            "LSTM" => &LSTM_GATES,
            "GRU" => &GRU_GATES,
            _ => &[0],
        };
        self.check(node, settings)?;
        let view = self.view(&name(0).unwrap_or_default())?;
        if view.axes.len() != 3 || view.axes[1] != [Piece::Rows] {
            return Err("expected a sequence (positions x rows x numbers)".into());
        }
        let (positions, inputs) = (view.size(0)?, view.size(2)?);
        let (view, _) = self.ending_with(&view, &[0, 2])?;
        let read = self.sized(view.node, &[positions, inputs])?;
        let from_input = self.weight(&name(1).unwrap_or_default())?;
        let from_state = self.weight(&name(2).unwrap_or_default())?;
        let units = from_state.own.get(2).copied().unwrap_or(0);
        let wide = gates.len() * units;
        let hidden = settings.int("hidden_size", units as i64);
        if hidden != units as i64 {
            return Err(format!("attribute `hidden_size` = {hidden}, but its weights are for {units}"));
        }
        for (weight, columns) in [(&from_input, inputs), (&from_state, units)] {
            if units == 0 || weight.own != [1, wide, columns] {
                let name = &weight.name;
                return Err(format!("`{name}`: expected sizes [1, {wide}, {columns}], got {:?}", weight.own));
            }
        }
        let weight = self.learned(&from_input, &[wide, inputs], |values| back(values, gates));
        let product = self.assembly.add(Op::Product(Product::with_transposed()), &[read, weight])?;
        let both = match name(3) {
            Some(name) => self.weight(&name)?,
            None => {
                let data = Data::Floats(vec![0.0; 2 * wide].into());
                let name = inner_name(&from_input.name, "bias");
                Weight::new(&name, Constant { sizes: vec![1, 2 * wide], data })
            }
        };
        if both.own != [1, 2 * wide] {
            return Err(format!("`{}`: expected sizes [1, {}], got {:?}", both.name, 2 * wide, both.own));
        }
        let split = node.op_type == "GRU";
        // One bias is enough where the two are only ever added.
        let added = |values: &[f32]| -> Vec<f32> {
            let (input, state) = values.split_at(wide);
            back(&input.iter().zip(state).map(|(input, state)| input + state).collect::<Vec<f32>>(), gates)
        };
        let bias = if split {
            let part = Weight { name: inner_name(&both.name, "input"), ..both.clone() };
            self.learned(&part, &[wide], |values| back(&values[..wide], gates))
        } else {
            self.learned(&both, &[wide], added)
        };
        let read = self.assembly.add(Op::step(Step::Bias), &[product, bias])?;
        let hidden = self.learned(&from_state, &[wide, units], |values| back(values, gates));
        let answers: NodeId = match node.op_type.as_str() {
            "LSTM" => {
                let gates = self.assembly.add(Op::Lstm(lstm::Lstm), &[read, hidden])?;
                self.assembly.add(Op::Part(0), &[gates])?
            }
            "GRU" => {
                let part = Weight { name: inner_name(&both.name, "hidden"), ..both };
                let bias = self.learned(&part, &[wide], |values| back(&values[wide..], gates));
                let gates = self.assembly.add(Op::Gru(gru::Gru), &[read, hidden, bias])?;
                self.assembly.add(Op::Part(0), &[gates])?
            }
            _ => self.assembly.add(Op::Rnn(rnn::Rnn), &[read, hidden])?,
        };
        let mut all = View::new(answers, &[positions, units]);
        let [rows, place, number] = [0, 1, 2].map(|axis| all.axes[axis].clone());
        all.axes = vec![place, vec![], rows, number];
        let mut items = vec![Item::View(all)];
        let is_read = |name: &&String| self.graph.node.iter().any(|node| node.input.contains(name));
        if node.output.get(1).filter(|name| !name.is_empty()).filter(is_read).is_some() {
            let last = self.assembly.add(Op::Last(last::Last), &[answers])?;
            let mut last = View::new(last, &[units]);
            last.axes.insert(0, vec![]);
            items.push(Item::View(last));
        }
        Ok(items)
    }

    /// Refuses what the layers here cannot do.
    fn check(&self, node: &Node, settings: Settings<'_>) -> Result<(), String> {
        if settings.word("direction", "forward") != "forward" {
            return Err("only one direction, forward, is supported".into());
        }
        for name in ["layout", "input_forget"] {
            if settings.int(name, 0) != 0 {
                return Err(format!("attribute `{name}` other than 0 is not supported"));
            }
        }
        if settings.int("linear_before_reset", 0) == 0 && node.op_type == "GRU" {
            return Err("only linear_before_reset 1, as PyTorch has it, is supported".into());
        }
        let usual: &[&str] = match node.op_type.as_str() {
            "LSTM" => &["Sigmoid", "Tanh", "Tanh"],
            "GRU" => &["Sigmoid", "Tanh"],
            _ => &["Tanh"],
        };
        let activations = settings.words("activations");
        let both_directions = [usual, usual].concat();
        if !activations.is_empty() && activations != usual && activations != both_directions {
            return Err(format!("activations {activations:?} are not supported ({usual:?} are)"));
        }
        if node.input.get(4).is_some_and(|name| !name.is_empty()) {
            return Err("rows of different lengths are not supported".into());
        }
        for name in node.input.iter().skip(5).filter(|name| !name.is_empty()) {
            let zero = match self.item(name)? {
                Item::Filled(value) => value == 0.0,
                Item::Constant(Constant { data: Data::Floats(values), .. }) => {
                    values.iter().all(|value| *value == 0.0)
                }
                _ => false,
            };
            if !zero {
                return Err("an initial state other than 0 is not supported".into());
            }
        }
        Ok(())
    }
}
