//! Translates the nodes of a graph in order, and collects the errors.

use super::attributes::{Attributes, ReadAttributes};
use super::constant::{ConstantTensor, SymInt, TensorData};
use super::value::{Value, Weight};
use super::view::View;
use super::{fold, is_onnx_domain, job_error};
use crate::graph::{NodeId, Shape};
use crate::graph_builder::GraphBuilder;
use crate::input::Input;
use crate::loss::Loss;
use crate::network::{LayerInfo, Options};
use crate::onnx::proto::{GraphProto, NodeProto};
use std::collections::{HashMap, HashSet};
use thalweg_core::{Error, Result};

/// Supported operators besides those of [`fold::OPERATORS`].
const OPERATORS: [&str; 30] = [
    "AveragePool",
    "BatchNormalization",
    "Constant",
    "Conv",
    "Dropout",
    "Elu",
    "Erf",
    "Flatten",
    "GRU",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "LSTM",
    "LayerNormalization",
    "LeakyRelu",
    "LogSoftmax",
    "MatMul",
    "MaxPool",
    "OneHot",
    "RNN",
    "ReduceMean",
    "Relu",
    "Resize",
    "Shape",
    "Sigmoid",
    "Size",
    "Softmax",
    "Split",
    "Tanh",
    "Upsample",
];

/// All supported operators, some of them over constants only.
pub fn operators() -> Vec<&'static str> {
    let mut all = [&OPERATORS[..], &fold::OPERATORS].concat();
    all.sort_unstable();
    all
}

/// The result of an import.
pub struct Translation {
    pub builder: GraphBuilder,
    /// The node whose value the loss reads.
    pub output: NodeId,
    /// Name of the graph's output.
    pub name: String,
    pub summaries: Vec<LayerInfo>,
    /// Initializers that became parameters.
    pub used_initializers: HashSet<String>,
}

pub struct Importer<'a> {
    pub graph: &'a GraphProto,
    pub version: i64,
    pub builder: GraphBuilder,
    loss: Loss,
    /// Values by ONNX name.
    pub values: HashMap<&'a str, Value>,
    /// The batch size that the file was exported for, if it is fixed.
    pub exported_rows: Option<i64>,
    /// The latest parameter of each weight name.
    pub parameter_nodes: HashMap<String, NodeId>,
    pub parameter_names: HashSet<String>,
    /// The next suffix for a parameter whose name exists already.
    pub next_suffix: HashMap<String, usize>,
    /// Initializers that became parameters.
    pub used_initializers: HashSet<String>,
}

impl<'a> Importer<'a> {
    pub fn new(
        graph: &'a GraphProto,
        version: i64,
        weights_optional: bool,
        input: Input,
        loss: Loss,
        options: Options,
    ) -> Result<Importer<'a>> {
        input.check()?;
        let (mut builder, _) = GraphBuilder::new(input);
        builder.synchronized = options.synchronized;
        builder.is_imported = true;
        let mut importer = Importer {
            graph,
            version,
            builder,
            loss,
            values: HashMap::new(),
            exported_rows: None,
            parameter_nodes: HashMap::new(),
            parameter_names: HashSet::new(),
            next_suffix: HashMap::new(),
            used_initializers: HashSet::new(),
        };
        for tensor in &graph.initializer {
            let constant = ConstantTensor::read(tensor, weights_optional).map_err(job_error)?;
            let value = match constant.data {
                TensorData::Ints(_) => Value::Constant(constant),
                _ => Value::Weight(Weight::new(&tensor.name, constant)),
            };
            importer.values.insert(&tensor.name, value);
        }
        importer.bind_input()?;
        Ok(importer)
    }

    /// Translates every node that the output depends on.
    pub fn run(mut self) -> Result<Translation> {
        let graph = self.graph;
        let output = graph.output.first().ok_or_else(|| job_error("it has no output"))?;
        let (logits, activation) = self.logits_of(&output.name);
        let nodes = reachable(graph, &logits);
        let mut summaries = Vec::new();
        let mut errors = Vec::new();
        for node in nodes {
            let before = (self.builder.graph.nodes().len(), self.builder.graph.parameters.len());
            match self.translate(node) {
                Ok(outputs) => {
                    self.summarize(node, &outputs, before, &mut summaries);
                    for (name, value) in node.output.iter().zip(outputs) {
                        self.values.insert(name, value);
                    }
                }
                Err(reason) => {
                    // An empty reason: an input was not translated, which is already reported.
                    if !reason.is_empty() {
                        errors.push(format!("{}: {reason}", node_label(node)));
                    }
                    for name in &node.output {
                        self.values.insert(name, Value::Untranslated);
                    }
                }
            }
        }
        if !errors.is_empty() {
            let hint = "see docs/onnx.md for what is supported";
            return Err(job_error(node_list("cannot be translated", &errors)).hint(hint));
        }
        let of_output = |reason: String| job_error(format!("output `{}`: {reason}", output.name));
        let view = self.view(&logits).map_err(of_output)?;
        if let Some(node) = activation {
            let of_node = |reason: String| job_error(format!("{}: {reason}", node_label(node)));
            self.check_activation(node, view.axes.len()).map_err(of_node)?;
        }
        let node = match (self.loss, self.builder.input) {
            // The reconstruction loss compares with the row in memory, which is NHWC.
            (Loss::Reconstruction, Input::Image(image)) => self.as_nhwc(&view, image).map_err(of_output)?,
            _ => self.contiguous(&view).map_err(of_output)?,
        };
        Ok(Translation {
            builder: self.builder,
            output: node,
            name: output.name.clone(),
            summaries,
            used_initializers: self.used_initializers,
        })
    }

    /// The value that the loss reads, and the softmax or sigmoid applied to it, which the loss computes itself.
    fn logits_of(&self, output: &str) -> (String, Option<&'a NodeProto>) {
        let mut name = output.to_string();
        // Of two nodes with the same output the first counts. Each node is visited once: a hostile graph may be cyclic.
        let nodes = self.graph.node.iter().rev();
        let mut producers: HashMap<&str, &NodeProto> =
            nodes.filter_map(|node| Some((node.output.first()?.as_str(), node))).collect();
        while let Some(node) = producers.remove(name.as_str()) {
            let Some(input) = node.input.first() else { break };
            match (node.op_type.as_str(), self.loss) {
                ("Identity", _) => name.clone_from(input),
                ("Softmax" | "LogSoftmax", Loss::CrossEntropy) | ("Sigmoid", Loss::BinaryCrossEntropy) => {
                    return (input.clone(), Some(node));
                }
                _ => break,
            }
        }
        (name, None)
    }

    /// Rejects a final softmax over another axis than the last.
    fn check_activation(&self, node: &NodeProto, rank: usize) -> Result<(), String> {
        let read_so_far = ReadAttributes::default();
        let attributes = Attributes::new(node, &read_so_far);
        if node.op_type != "Sigmoid" {
            let axis = attributes.int("axis", if self.version < 13 { 1 } else { -1 });
            if super::view::normalize_axis(axis, rank)? + 1 != rank {
                return Err(format!(
                    "attribute `axis` = {axis}: only the last axis of the output is supported"
                ));
            }
        }
        attributes.check_all_read()
    }

    /// Adds a line for `thalweg inspect` if the node added operators.
    fn summarize(
        &self,
        node: &NodeProto,
        outputs: &[Value],
        before: (usize, usize),
        summaries: &mut Vec<LayerInfo>,
    ) {
        let Some(Value::View(view)) = outputs.first() else { return };
        let added = &self.builder.graph.parameters[before.1..];
        if self.builder.graph.nodes().len() == before.0 {
            return;
        }
        let shape = |view: &View| {
            let size = |axis: usize| view.axis(axis).1;
            let rows = view.axes.first().is_some_and(|axis| axis == &[super::view::AxisPart::Rows]);
            Shape::rows(&(usize::from(rows)..view.axes.len()).map(size).collect::<Vec<usize>>())
        };
        let read = node.input.iter().find_map(|name| match self.values.get(name.as_str()) {
            Some(Value::View(view)) => Some(shape(view)),
            Some(Value::Symbols) => Some(Shape::rows(&self.builder.input.sizes()[..1])),
            _ => None,
        });
        summaries.push(LayerInfo {
            text: format!("{} {}", node.op_type, node.name).trim_end().to_string(),
            input: read.unwrap_or_else(|| shape(view)),
            output: shape(view),
            parameters: added.iter().map(|parameter| parameter.shape.iter().product::<usize>()).sum(),
        });
    }

    /// The values of a node's outputs; an empty error if an input was not translated.
    fn translate(&mut self, node: &'a NodeProto) -> Result<Vec<Value>, String> {
        let read_so_far = ReadAttributes::default();
        let attributes = Attributes::new(node, &read_so_far);
        let outputs = self.translate_operator(node, attributes)?;
        attributes.check_all_read().map(|()| outputs)
    }

    fn translate_operator(
        &mut self,
        node: &'a NodeProto,
        attributes: Attributes<'_>,
    ) -> Result<Vec<Value>, String> {
        let read = |index: usize| node.input.get(index).filter(|name| !name.is_empty());
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            match self.values.get(name.as_str()) {
                Some(Value::Untranslated) => return Err(String::new()),
                Some(_) => {}
                None => return Err(format!("reads `{name}`, which is not defined")),
            }
        }
        if let Some(folded) = self.folded(node, attributes) {
            return folded.map(|constant| vec![Value::Constant(constant)]);
        }
        let name = |index: usize| read(index).map(String::as_str).ok_or(format!("input {index} is missing"));
        let one = |value: Result<Value, String>| value.map(|value| vec![value]);
        match node.op_type.as_str() {
            "Constant" => one(ConstantTensor::from_attributes(attributes).map(Value::Constant)),
            "Identity" => one(self.identity(node)),
            "Cast" => one(self.cast(node, attributes)),
            "Dropout" => self.dropout(node, attributes),
            "Shape" => one(self.shape_op(name(0)?, attributes)),
            "Size" => one(self.element_count(name(0)?)),
            "Reshape" => one(self.reshape(name(0)?, name(1)?, attributes)),
            "Flatten" => one(self.flatten(name(0)?, attributes.int("axis", 1))),
            "Transpose" => one(self.transpose(name(0)?, attributes)),
            "Squeeze" => one(self.squeeze(node, attributes)),
            "Unsqueeze" => one(self.unsqueeze(node, attributes)),
            "Expand" | "ConstantOfShape" => one(self.expand(node, attributes)),
            "Slice" => one(self.slice(node, attributes)),
            "Split" => self.split(node, attributes),
            "Concat" => one(self.concat(node, attributes.required_int("axis")?)),
            "Gather" => one(self.gather(name(0)?, name(1)?, attributes.int("axis", 0))),
            "OneHot" => one(self.one_hot(node, attributes)),
            "Add" | "Sub" | "Mul" | "Div" => one(self.arithmetic(node)),
            "Pow" => one(self.pow(name(0)?, name(1)?)),
            "Sqrt" => one(self.sqrt(name(0)?)),
            "Neg" => one(self.scaled(name(0)?, -1.0)),
            "Where" => one(self.where_mask(node)),
            "Relu" | "LeakyRelu" | "Elu" | "Tanh" | "Sigmoid" | "Gelu" => {
                one(self.activate(node, attributes))
            }
            "Erf" => one(self.erf(name(0)?)),
            "Softmax" => one(self.softmax(name(0)?, attributes)),
            "Gemm" => one(self.gemm(node, attributes)),
            "MatMul" => one(self.matmul(name(0)?, name(1)?)),
            "Conv" => one(self.convolution(node, attributes)),
            "MaxPool" | "AveragePool" => one(self.pool(node, attributes)),
            "GlobalAveragePool" => one(self.global_average_pool(name(0)?)),
            "ReduceMean" => one(self.reduce_mean(node, attributes)),
            "Resize" | "Upsample" => one(self.resize(node, attributes)),
            "BatchNormalization" => one(self.batch_normalization(node, attributes)),
            "LayerNormalization" => one(self.layer_normalization(node, attributes)),
            "LSTM" | "GRU" | "RNN" => self.recurrent(node, attributes),
            _ => Err("its inputs depend on the rows; only constants are supported".into()),
        }
    }

    /// The result of a node over constants; `None` if it cannot be folded.
    fn folded(&self, node: &NodeProto, attributes: Attributes<'_>) -> Option<Result<ConstantTensor, String>> {
        let constant = |name: &String| match self.values.get(name.as_str()) {
            Some(Value::Constant(constant)) => Some(constant),
            // A single number is not a weight.
            Some(Value::Weight(weight)) if weight.tensor.len() == 1 => Some(&weight.tensor),
            _ => None,
        };
        // Omitted trailing inputs do not count; an omitted input in between prevents folding.
        let given = node.input.iter().rposition(|name| !name.is_empty())?;
        let inputs = node.input[..=given].iter().map(constant).collect::<Option<Vec<&ConstantTensor>>>()?;
        let by_rows = |input: &&ConstantTensor| matches!(&input.data, TensorData::Ints(values) if values.iter().any(|value| matches!(value, SymInt::TimesRows(_))));
        // Shapes that contain the batch size are not constant.
        if matches!(node.op_type.as_str(), "Expand" | "ConstantOfShape") && inputs.last().is_some_and(by_rows)
        {
            return None;
        }
        fold::fold(&node.op_type, attributes, &inputs)
    }
}

/// The nodes that a value depends on, in the file's order.
fn reachable<'a>(graph: &'a GraphProto, name: &str) -> Vec<&'a NodeProto> {
    let mut wanted: HashSet<&str> = HashSet::from([name]);
    let mut nodes = Vec::new();
    for node in graph.node.iter().rev() {
        if node.output.iter().any(|output| !output.is_empty() && wanted.contains(output.as_str())) {
            wanted.extend(node.input.iter().map(String::as_str));
            nodes.push(node);
        }
    }
    nodes.reverse();
    nodes
}

/// Rejects unsupported operators, all of them in one error.
pub fn check_operators(graph: &GraphProto) -> Result<()> {
    let nodes = graph.output.first().map(|output| reachable(graph, &output.name)).unwrap_or_default();
    let known = |node: &NodeProto| {
        let name = node.op_type.as_str();
        is_onnx_domain(&node.domain) && (OPERATORS.contains(&name) || fold::OPERATORS.contains(&name))
    };
    let unknown: Vec<String> =
        nodes.iter().filter(|node| !known(node)).map(|node| node_label(node)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let error: Error = job_error(node_list("of operators that are not supported", &unknown));
    Err(error.hint("see docs/onnx.md for the supported operators"))
}

/// Operator and name of a node: `Conv (/c1/Conv)`.
fn node_label(node: &NodeProto) -> String {
    let domain = if is_onnx_domain(&node.domain) { String::new() } else { format!("{}::", node.domain) };
    let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
    format!("{domain}{} ({})", node.op_type, name.map_or("", String::as_str))
}

/// The count of nodes, then one per line.
fn node_list(what: &str, lines: &[String]) -> String {
    match lines {
        [one] => format!("1 node {what}: {one}"),
        lines => format!("{} nodes {what}:\n  {}", lines.len(), lines.join("\n  ")),
    }
}
