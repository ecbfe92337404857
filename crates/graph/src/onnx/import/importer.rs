//! The walk over a file's nodes.

use super::item::{Item, Weight};
use super::settings::{Settings, Taken};
use super::tensor::{Constant, Data, Whole};
use super::view::View;
use super::{fold, is_own, wrong};
use crate::assembly::Assembly;
use crate::graph::{NodeId, Shape};
use crate::input::Input;
use crate::loss::Loss;
use crate::network::{Options, Summary};
use crate::onnx::proto::{Graph, Node};
use std::collections::{HashMap, HashSet};
use thalweg_core::{Error, Result};

/// The operators that are understood, besides those of [`fold::OPERATORS`].
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

/// All operators that are understood, some of them over known numbers only.
pub fn operators() -> Vec<&'static str> {
    let mut all = [&OPERATORS[..], &fold::OPERATORS].concat();
    all.sort_unstable();
    all
}

/// What a file has become.
pub struct Translated {
    pub assembly: Assembly,
    /// The value that answers.
    pub end: NodeId,
    /// Its name in the file.
    pub name: String,
    pub summaries: Vec<Summary>,
    /// The tensors of the file that became parameters.
    pub weights: HashSet<String>,
}

/// A translation under way.
pub struct Importer<'a> {
    pub graph: &'a Graph,
    /// The version of the operator set.
    pub version: i64,
    pub assembly: Assembly,
    /// What the network is blamed for.
    loss: Loss,
    /// What each name stands for.
    pub items: HashMap<&'a str, Item>,
    /// The number of rows the file was written for, if it was for one only.
    pub written_for: Option<i64>,
    /// Parameters by the tensor and the order they were made from.
    pub made: HashMap<String, NodeId>,
    /// Names of parameters.
    pub names: HashSet<String>,
    /// The number that the next parameter of a name gets.
    pub numbers: HashMap<String, usize>,
    /// Tensors of the file that became parameters.
    pub weights: HashSet<String>,
}

impl<'a> Importer<'a> {
    /// Begins with what the file is given: tensors and rows.
    pub fn new(
        graph: &'a Graph,
        version: i64,
        partial: bool,
        input: Input,
        loss: Loss,
        options: Options,
    ) -> Result<Importer<'a>> {
        input.check()?;
        let (mut assembly, _) = Assembly::new(input);
        assembly.synchronized = options.synchronized;
        assembly.is_imported = true;
        let mut importer = Importer {
            graph,
            version,
            assembly,
            loss,
            items: HashMap::new(),
            written_for: None,
            made: HashMap::new(),
            names: HashSet::new(),
            numbers: HashMap::new(),
            weights: HashSet::new(),
        };
        for tensor in &graph.initializer {
            let constant = Constant::read(tensor, partial).map_err(wrong)?;
            let item = match constant.data {
                Data::Wholes(_) => Item::Constant(constant),
                _ => Item::Weight(Weight::new(&tensor.name, constant)),
            };
            importer.items.insert(&tensor.name, item);
        }
        importer.begin()?;
        Ok(importer)
    }

    /// Translates every node that the answer depends on.
    pub fn run(mut self) -> Result<Translated> {
        let graph = self.graph;
        let output = graph.output.first().ok_or_else(|| wrong("it has no output"))?;
        let (end, closing) = self.end_of(&output.name);
        let nodes = needed(graph, &end);
        let mut summaries = Vec::new();
        let mut complaints = Vec::new();
        for node in nodes {
            let before = (self.assembly.graph.nodes().len(), self.assembly.graph.parameters.len());
            match self.translate(node) {
                Ok(items) => {
                    self.summarize(node, &items, before, &mut summaries);
                    for (name, item) in node.output.iter().zip(items) {
                        self.items.insert(name, item);
                    }
                }
                Err(reason) => {
                    // What a node reads that was not translated is told already.
                    if !reason.is_empty() {
                        complaints.push(format!("{}: {reason}", named(node)));
                    }
                    for name in &node.output {
                        self.items.insert(name, Item::Unknown);
                    }
                }
            }
        }
        if !complaints.is_empty() {
            let hint = "see docs/onnx.md for what can be read";
            return Err(wrong(listed("cannot be translated", &complaints)).hint(hint));
        }
        let told = |reason: String| wrong(format!("output `{}`: {reason}", output.name));
        let view = self.view(&end).map_err(told)?;
        if let Some(node) = closing {
            let told = |reason: String| wrong(format!("{}: {reason}", named(node)));
            self.check_closing(node, view.axes.len()).map_err(told)?;
        }
        let end = match (self.loss, self.assembly.input) {
            // A row made again is judged by the row as it lies in memory.
            (Loss::Reconstruction, Input::Image(image)) => self.as_row(&view, image).map_err(told)?,
            _ => self.in_order(&view).map_err(told)?,
        };
        Ok(Translated {
            assembly: self.assembly,
            end,
            name: output.name.clone(),
            summaries,
            weights: self.weights,
        })
    }

    /// The name of what the loss is to judge: the function that turns scores into probabilities belongs to the loss, and
    /// is given beside it.
    fn end_of(&self, output: &str) -> (String, Option<&'a Node>) {
        let mut name = output.to_string();
        // The first of two nodes with the same result counts. Each is passed once: they may stand in a circle.
        let nodes = self.graph.node.iter().rev();
        let mut makers: HashMap<&str, &Node> =
            nodes.filter_map(|node| Some((node.output.first()?.as_str(), node))).collect();
        while let Some(node) = makers.remove(name.as_str()) {
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

    /// Refuses a function at the end that is not over the scores of each line.
    fn check_closing(&self, node: &Node, rank: usize) -> Result<(), String> {
        let taken = Taken::default();
        let settings = Settings::new(node, &taken);
        if node.op_type != "Sigmoid" {
            let axis = settings.int("axis", if self.version < 13 { 1 } else { -1 });
            if super::view::place(axis, rank)? + 1 != rank {
                return Err(format!(
                    "attribute `axis` = {axis}: only the last axis of the output is supported"
                ));
            }
        }
        settings.finish()
    }

    /// A line for people, where a node became something.
    fn summarize(&self, node: &Node, items: &[Item], before: (usize, usize), summaries: &mut Vec<Summary>) {
        let Some(Item::View(view)) = items.first() else { return };
        let own = &self.assembly.graph.parameters[before.1..];
        if self.assembly.graph.nodes().len() == before.0 {
            return;
        }
        let shape = |view: &View| {
            let size = |axis: usize| view.axis(axis).1;
            let rows = view.axes.first().is_some_and(|axis| axis == &[super::view::Piece::Rows]);
            Shape::rows(&(usize::from(rows)..view.axes.len()).map(size).collect::<Vec<usize>>())
        };
        let read = node.input.iter().find_map(|name| match self.items.get(name.as_str()) {
            Some(Item::View(view)) => Some(shape(view)),
            Some(Item::Symbols) => Some(Shape::rows(&self.assembly.input.sizes()[..1])),
            _ => None,
        });
        summaries.push(Summary {
            text: format!("{} {}", node.op_type, node.name).trim_end().to_string(),
            input: read.unwrap_or_else(|| shape(view)),
            output: shape(view),
            parameters: own.iter().map(|own| own.shape.iter().product::<usize>()).sum(),
        });
    }

    /// What a node's names stand for; an empty error where it reads what could not be translated.
    fn translate(&mut self, node: &'a Node) -> Result<Vec<Item>, String> {
        let taken = Taken::default();
        let settings = Settings::new(node, &taken);
        let items = self.items_of(node, settings)?;
        settings.finish().map(|()| items)
    }

    fn items_of(&mut self, node: &'a Node, settings: Settings<'_>) -> Result<Vec<Item>, String> {
        let read = |index: usize| node.input.get(index).filter(|name| !name.is_empty());
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            match self.items.get(name.as_str()) {
                Some(Item::Unknown) => return Err(String::new()),
                Some(_) => {}
                None => return Err(format!("reads `{name}`, which nothing gives")),
            }
        }
        if let Some(folded) = self.folded(node, settings) {
            return folded.map(|constant| vec![Item::Constant(constant)]);
        }
        let name = |index: usize| read(index).map(String::as_str).ok_or(format!("reads no input {index}"));
        let one = |item: Result<Item, String>| item.map(|item| vec![item]);
        match node.op_type.as_str() {
            "Constant" => one(constant(settings)),
            "Identity" => one(self.passed_on(node)),
            "Cast" => one(self.cast(node, settings)),
            "Dropout" => self.dropout(node, settings),
            "Shape" => one(self.shape_of(name(0)?, settings)),
            "Size" => one(self.size_of(name(0)?)),
            "Reshape" => one(self.reshape(name(0)?, name(1)?, settings)),
            "Flatten" => one(self.flatten(name(0)?, settings.int("axis", 1))),
            "Transpose" => one(self.transpose(name(0)?, settings)),
            "Squeeze" => one(self.squeeze(node, settings)),
            "Unsqueeze" => one(self.unsqueeze(node, settings)),
            "Expand" | "ConstantOfShape" => one(self.expand(node, settings)),
            "Slice" => one(self.slice(node, settings)),
            "Split" => self.split(node, settings),
            "Concat" => one(self.concat(node, settings.needed("axis")?)),
            "Gather" => one(self.gather(name(0)?, name(1)?, settings.int("axis", 0))),
            "OneHot" => one(self.one_hot(node, settings)),
            "Add" | "Sub" | "Mul" | "Div" => one(self.arithmetic(node)),
            "Pow" => one(self.power(name(0)?, name(1)?)),
            "Sqrt" => one(self.root(name(0)?)),
            "Neg" => one(self.scaled(name(0)?, -1.0)),
            "Where" => one(self.masked(node)),
            "Relu" | "LeakyRelu" | "Elu" | "Tanh" | "Sigmoid" | "Gelu" => one(self.activate(node, settings)),
            "Erf" => one(self.erf(name(0)?)),
            "Softmax" => one(self.softmax(name(0)?, settings)),
            "Gemm" => one(self.gemm(node, settings)),
            "MatMul" => one(self.matmul(name(0)?, name(1)?)),
            "Conv" => one(self.convolution(node, settings)),
            "MaxPool" | "AveragePool" => one(self.pool(node, settings)),
            "GlobalAveragePool" => one(self.global_mean(name(0)?)),
            "ReduceMean" => one(self.mean(node, settings)),
            "Resize" | "Upsample" => one(self.resize(node, settings)),
            "BatchNormalization" => one(self.batch_normalization(node, settings)),
            "LayerNormalization" => one(self.layer_normalization(node, settings)),
            "LSTM" | "GRU" | "RNN" => self.recurrent(node, settings),
            _ => Err("reads values that depend on the rows, which is not supported".into()),
        }
    }

    /// The result of a node over constants, if it is one.
    fn folded(&self, node: &Node, settings: Settings<'_>) -> Option<Result<Constant, String>> {
        let constant = |name: &String| match self.items.get(name.as_str()) {
            Some(Item::Constant(constant)) => Some(constant),
            // Numbers without axes are no weights.
            Some(Item::Weight(weight)) if weight.tensor.len() == 1 => Some(&weight.tensor),
            _ => None,
        };
        // What is left out at the end is not there; what is left out in between is for the reader to tell.
        let given = node.input.iter().rposition(|name| !name.is_empty())?;
        let inputs = node.input[..=given].iter().map(constant).collect::<Option<Vec<&Constant>>>()?;
        let by_rows = |input: &&Constant| matches!(&input.data, Data::Wholes(values) if values.iter().any(|value| matches!(value, Whole::Rows(_))));
        // As many as there are rows: no constant.
        if matches!(node.op_type.as_str(), "Expand" | "ConstantOfShape") && inputs.last().is_some_and(by_rows)
        {
            return None;
        }
        fold::fold(&node.op_type, settings, &inputs)
    }
}

/// A constant of the node itself.
fn constant(settings: Settings<'_>) -> Result<Item, String> {
    let floats = |values: &[f32], sizes| Constant { sizes, data: Data::Floats(values.into()) };
    let wholes = |values: &[i64], sizes| {
        let values = values.iter().map(|value| Whole::Known(*value)).collect();
        Constant { sizes, data: Data::Wholes(values) }
    };
    Ok(Item::Constant(if let Some(tensor) = settings.tensor("value") {
        Constant::read(tensor, false)?
    } else if let Some(values) = settings.ints("value_ints") {
        wholes(values, vec![values.len()])
    } else if let Some(values) = settings.floats("value_floats") {
        floats(values, vec![values.len()])
    } else if let Some(value) = settings.given("value_int") {
        wholes(&[value], vec![])
    } else if let Some(value) = settings.given_float("value_float") {
        floats(&[value], vec![])
    } else {
        settings.finish()?;
        return Err("attribute `value` is missing".into());
    }))
}

/// The nodes that a name depends on, in the file's order.
fn needed<'a>(graph: &'a Graph, name: &str) -> Vec<&'a Node> {
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

/// Refuses operators that nobody here knows, all of them at once.
pub fn refuse_unknown(graph: &Graph) -> Result<()> {
    let nodes = graph.output.first().map(|output| needed(graph, &output.name)).unwrap_or_default();
    let known = |node: &Node| {
        let name = node.op_type.as_str();
        is_own(&node.domain) && (OPERATORS.contains(&name) || fold::OPERATORS.contains(&name))
    };
    let unknown: Vec<String> = nodes.iter().filter(|node| !known(node)).map(|node| named(node)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let error: Error = wrong(listed("of operators that are not supported", &unknown));
    Err(error.hint("see docs/onnx.md for the operators that can be read"))
}

/// `Conv (/c1/Conv)`.
fn named(node: &Node) -> String {
    let domain = if is_own(&node.domain) { String::new() } else { format!("{}::", node.domain) };
    let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
    format!("{domain}{} ({})", node.op_type, name.map_or("", String::as_str))
}

/// A complaint per line, with their number in front.
fn listed(what: &str, lines: &[String]) -> String {
    match lines {
        [one] => format!("1 node {what}: {one}"),
        lines => format!("{} nodes {what}:\n  {}", lines.len(), lines.join("\n  ")),
    }
}
