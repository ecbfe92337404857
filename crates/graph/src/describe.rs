//! Summaries of a network: layers, operators, shapes, FLOPs, memory, and a Graphviz drawing.

use crate::graph::{Graph, Shape};
use crate::network::Network;
use crate::op::Op;
use crate::plan::{ExecutionPlan, ValueLocation};
use std::fmt::Write;
use thalweg_core::Model;

/// One operator of the training plan.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorSummary {
    pub operator: String,
    /// The shape of its result.
    pub shape: String,
    /// Floating-point operations per row.
    pub flops: u64,
    /// Name of the tensor whose gradient it completes.
    pub completes: Option<String>,
}

/// One layer of a job, or one node of an imported file.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSummary {
    /// `conv 32 5x5 relu`.
    pub layer: String,
    /// Shape of its input, without the batch dimension.
    pub input: String,
    /// Shape of its output, without the batch dimension.
    pub output: String,
    /// Elements of all its tensors.
    pub parameters: usize,
}

/// What `thalweg inspect` shows of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkSummary {
    pub layers: Vec<LayerSummary>,
    pub loss: &'static str,
    /// The operators of one training pass, in execution order.
    pub operators: Vec<OperatorSummary>,
    /// Elements of all tensors.
    pub parameters: usize,
    /// Floating-point operations of one training pass over one row.
    pub flops_per_row: u64,
    /// Bytes of all results of a training pass if each had its own buffer.
    pub activation_bytes: usize,
    /// Bytes of the buffer plan for them.
    pub peak_bytes: usize,
}

impl Network {
    /// Summary of one training pass over `rows` rows.
    pub fn describe(&self, rows: usize) -> NetworkSummary {
        let plan = &self.training;
        let operator = |step: &crate::plan::PlannedOp| OperatorSummary {
            operator: step.op.operator().describe(),
            shape: step.shape.to_string(),
            flops: step.op.operator().flops(&step.shapes.iter().collect::<Vec<_>>(), &step.shape),
            completes: step.completes.map(|tensor| self.layout.tensors()[tensor].name.clone()),
        };
        NetworkSummary {
            layers: self.layer_summaries(),
            loss: self.loss().name(),
            operators: plan.steps.iter().map(operator).collect(),
            parameters: self.layout.len(),
            flops_per_row: self.flops_per_row(),
            activation_bytes: 4 * activations(plan, rows),
            peak_bytes: 4 * plan.peak(rows),
        }
    }

    fn layer_summaries(&self) -> Vec<LayerSummary> {
        let sizes = |shape: &Shape| {
            let sizes: Vec<String> = shape.sizes().iter().map(usize::to_string).collect();
            sizes.join(" x ")
        };
        let layer = |layer: &crate::network::LayerInfo| LayerSummary {
            layer: layer.text.clone(),
            input: sizes(&layer.input),
            output: sizes(&layer.output),
            parameters: layer.parameters,
        };
        self.summaries.iter().map(layer).collect()
    }

    /// The graph of output and loss in Graphviz's DOT language.
    pub fn dot(&self) -> String {
        dot(self.graph())
    }
}

/// Elements of all results in slots.
fn activations(plan: &ExecutionPlan, rows: usize) -> usize {
    let of = |step: &crate::plan::PlannedOp| {
        let own = if matches!(step.output, ValueLocation::Slot(_)) { step.shape.len(rows) } else { 0 };
        own + step.side_outputs.iter().flatten().map(|(_, shape)| shape.len(rows)).sum::<usize>()
    };
    plan.steps.iter().map(of).sum()
}

/// A graph in DOT: boxes are operators, ellipses are features and parameters, a double frame marks output and loss.
fn dot(graph: &Graph) -> String {
    let mut text = String::from("digraph network {\n  rankdir = TB;\n  node [fontname = \"sans-serif\"];\n");
    for (id, node) in graph.nodes() {
        let (name, form) = match &node.op {
            Op::Parameter(index) => (graph.parameters[*index].name.clone(), "ellipse"),
            Op::Features(_) => ("features".into(), "ellipse"),
            Op::SideOutput(index) => (format!("side output {index}"), "box"),
            op => (op.operator().describe(), "box"),
        };
        let (name, frames) = match Some(id) {
            root if root == graph.output => (format!("output: {name}"), 2),
            root if root == graph.loss => (format!("loss: {name}"), 2),
            _ => (name, 1),
        };
        let name = name.replace('\\', "/").replace('"', "'");
        // Writing to a `String` cannot fail.
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
    fn costs_match_the_layers() {
        let input = Input::Image([28, 28, 1]);
        let network = zoo::network("lenet", input, 10, Task::Classification, Options::default()).unwrap();
        let description = network.describe(64);
        assert_eq!(description.parameters, 582_026);
        let products = 2 * 2 * 576 * 25 * 32 + 3 * 2 * (64 * 800 * 64 + 1024 * 512 + 512 * 10);
        let ratio = description.flops_per_row as f64 / f64::from(products);
        assert!((1.0..1.05).contains(&ratio), "{ratio}");
        assert!(description.peak_bytes < description.activation_bytes);
        let completed: Vec<&str> =
            description.operators.iter().filter_map(|line| line.completes.as_deref()).collect();
        assert_eq!(completed[..2], ["layers.6.bias", "layers.6.weight"]);
    }

    #[test]
    fn the_drawing_names_every_parameter() {
        let input = Input::Symbols { window: 8, vocabulary: 5 };
        let network = zoo::network("gpt-mini", input, 5, Task::Classification, Options::default()).unwrap();
        let dot = network.dot();
        assert!(dot.starts_with("digraph") && dot.ends_with("}\n"));
        for tensor in network.layout().tensors() {
            assert!(dot.contains(&tensor.name), "{}", tensor.name);
        }
    }
}
