//! What a network is made of, for people and tools: operators, shapes, costs, memory, and a picture.

use crate::graph::{Graph, Shape};
use crate::network::Network;
use crate::op::Op;
use crate::plan::{Place, Plan};
use std::fmt::Write;
use thalweg_core::Model;

/// One operator of the training plan, in the order in which it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorLine {
    /// What it does.
    pub operator: String,
    /// The shape of its result.
    pub shape: String,
    /// Floating-point operations per row.
    pub flops: u64,
    /// The tensor whose gradient it completes.
    pub completes: Option<String>,
}

/// One layer, as a job or a file names it.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerLine {
    /// `conv 32 5x5 relu`.
    pub layer: String,
    /// The shape of what it reads, without the rows.
    pub input: String,
    /// The shape of its answer, without the rows.
    pub output: String,
    /// Elements of its tensors.
    pub parameters: usize,
}

/// A network at a glance.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Its layers.
    pub layers: Vec<LayerLine>,
    /// What it is blamed for.
    pub loss: &'static str,
    /// The operators of one training pass.
    pub operators: Vec<OperatorLine>,
    /// Elements of all tensors.
    pub parameters: usize,
    /// Floating-point operations of one training pass over one row.
    pub flops_per_row: u64,
    /// Bytes of all results of a training pass over that many rows, if each had memory of its own.
    pub activation_bytes: usize,
    /// Bytes that the plan keeps for them instead.
    pub peak_bytes: usize,
}

impl Network {
    /// What one training pass over that many rows is made of.
    pub fn describe(&self, rows: usize) -> Description {
        let plan = &self.training;
        let line = |step: &crate::plan::Step| OperatorLine {
            operator: step.op.operator().describe(),
            shape: step.shape.to_string(),
            flops: step.op.operator().flops(&step.shapes.iter().collect::<Vec<_>>(), &step.shape),
            completes: step.announce.map(|tensor| self.layout.tensors()[tensor].name.clone()),
        };
        Description {
            layers: self.layer_lines(),
            loss: self.loss().name(),
            operators: plan.steps.iter().map(line).collect(),
            parameters: self.layout.len(),
            flops_per_row: self.flops_per_row(),
            activation_bytes: 4 * written(plan, rows),
            peak_bytes: 4 * plan.peak(rows),
        }
    }

    /// What each layer does to the shape.
    fn layer_lines(&self) -> Vec<LayerLine> {
        let sizes = |shape: &Shape| {
            let sizes: Vec<String> = shape.sizes().iter().map(usize::to_string).collect();
            sizes.join(" x ")
        };
        let line = |summary: &crate::network::Summary| LayerLine {
            layer: summary.text.clone(),
            input: sizes(&summary.input),
            output: sizes(&summary.output),
            parameters: summary.parameters,
        };
        self.summaries.iter().map(line).collect()
    }

    /// The graph of answer and loss in the language of Graphviz.
    pub fn dot(&self) -> String {
        dot(self.graph())
    }
}

/// Elements of all results that live in slots.
fn written(plan: &Plan, rows: usize) -> usize {
    let of = |step: &crate::plan::Step| {
        let own = if matches!(step.output, Place::Slot(_)) { step.shape.len(rows) } else { 0 };
        own + step.parts.iter().flatten().map(|(_, shape)| shape.len(rows)).sum::<usize>()
    };
    plan.steps.iter().map(of).sum()
}

/// A graph in the language of Graphviz: boxes compute, ellipses are given, parameters carry their names, and a double
/// frame marks answer and loss.
pub fn dot(graph: &Graph) -> String {
    let mut text = String::from("digraph network {\n  rankdir = TB;\n  node [fontname = \"sans-serif\"];\n");
    for (id, node) in graph.nodes() {
        let (name, form) = match &node.op {
            Op::Parameter(index) => (graph.parameters[*index].name.clone(), "ellipse"),
            Op::Features(_) => ("features".into(), "ellipse"),
            Op::Part(index) => (format!("part {index}"), "box"),
            op => (op.operator().describe(), "box"),
        };
        let (name, frames) = match Some(id) {
            root if root == graph.answer => (format!("answer: {name}"), 2),
            root if root == graph.loss => (format!("loss: {name}"), 2),
            _ => (name, 1),
        };
        let name = name.replace('\\', "/").replace('"', "'");
        // Writing to a text cannot fail.
        let label = format!("label = \"{name}\\n{}\"", node.shape);
        let _ = writeln!(text, "  n{} [shape = {form}, peripheries = {frames}, {label}];", id.0);
        for input in &node.inputs {
            let _ = writeln!(text, "  n{} -> n{};", input.0, id.0);
        }
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Input, Options, zoo};
    use thalweg_core::Task;

    #[test]
    fn a_network_tells_what_it_costs() {
        let input = Input::Image([28, 28, 1]);
        let network = zoo::network("lenet", input, 10, Task::Classification, Options::default()).unwrap();
        let description = network.describe(64);
        assert_eq!(description.parameters, 582_026);
        let products = 2 * 2 * 576 * 25 * 32 + 3 * 2 * (64 * 800 * 64 + 1024 * 512 + 512 * 10);
        let share = description.flops_per_row as f64 / f64::from(products);
        assert!((1.0..1.05).contains(&share), "{share}");
        assert!(description.peak_bytes < description.activation_bytes);
        let completed: Vec<&str> =
            description.operators.iter().filter_map(|line| line.completes.as_deref()).collect();
        assert_eq!(completed[..2], ["layers.6.bias", "layers.6.weight"]);
    }

    #[test]
    fn a_picture_names_every_parameter() {
        let input = Input::Symbols { window: 8, vocabulary: 5 };
        let network = zoo::network("gpt-mini", input, 5, Task::Classification, Options::default()).unwrap();
        let dot = network.dot();
        assert!(dot.starts_with("digraph") && dot.ends_with("}\n"));
        for tensor in network.layout().tensors() {
            assert!(dot.contains(&tensor.name), "{}", tensor.name);
        }
    }
}
