//! Exports a network as an ONNX model, node by node from the inference graph before fusion.
//!
//! The file reads unscaled rows and returns predictions in the data's units: the scaling is part of the graph. Where
//! one ONNX operator covers several nodes (a product and its bias, a normalisation with gain and bias, a recurrent
//! layer), that operator is written.

mod arithmetic;
mod flat;
mod images;
mod input_output;
mod sequences;
mod writer;

use super::proto::{ModelProto, OperatorSetIdProto, StringStringEntryProto};
use super::scaling::{EmbeddedScaling, MEMBERS};
use crate::ensemble;
use crate::flat_order::FlatOrders;
use crate::graph::{Graph, NodeId};
use crate::input::Input;
use crate::network::Network;
use crate::op::Op;
use crate::op::elementwise::ElementwiseStep;
use crate::pass::{dead_code, inference};
use flat::inverse_permutation;
use prost::Message;
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::{Error, FileOrder, Layout, Model as _, Result, Schema};
use writer::GraphWriter;

/// The operator set of exported files: the first with a `Gelu` operator.
const OPERATOR_SET: i64 = 20;
/// The IR version that came with it.
const IR_VERSION: i64 = 9;

/// Keys and values of `metadata_props`, such as class and column names.
pub type Metadata = Vec<(String, String)>;

/// The bytes of an ONNX file that computes the network's predictions.
pub fn export(network: &Network, parameters: &[f32], schema: &Schema, metadata: Metadata) -> Result<Vec<u8>> {
    network.check_buffer("parameter", parameters.len())?;
    write(network, &[parameters], (Combine::Average, &[]), schema, metadata)
}

/// The same of an ensemble: the file holds every member, and combines their predictions. `parameters` are those of one
/// member after the other, and those of a learned combination behind them.
pub fn export_ensemble(
    network: &Network,
    parameters: &[f32],
    combine: Combine,
    schema: &Schema,
    metadata: Metadata,
) -> Result<Vec<u8>> {
    let length = network.layout().len().max(1);
    let (parameters, combiner) = ensemble::parts(combine, parameters, length, network.outputs());
    let members: Vec<&[f32]> = parameters.chunks(length).collect();
    members.iter().try_for_each(|own| network.check_buffer("parameter", own.len()))?;
    if members.is_empty() || schema.reconstruct {
        return Err(Error::internal("an ensemble of predictions has members"));
    }
    write(network, &members, (combine, combiner), schema, metadata)
}

fn write(
    network: &Network,
    members: &[&[f32]],
    (combine, combiner): (Combine, &[f32]),
    schema: &Schema,
    metadata: Metadata,
) -> Result<Vec<u8>> {
    let graph = dead_code::run(&inference::run(&network.graph().without_loss()));
    let mut users = vec![Vec::new(); graph.nodes().len()];
    for (id, node) in graph.nodes() {
        node.inputs.iter().for_each(|input| users[input.0].push(id));
    }
    let mut exporter = Exporter {
        orders: FlatOrders::of(&graph, network.input, schema.reconstruct),
        values: Vec::new(),
        graph: &graph,
        layout: network.layout(),
        parameters: &[],
        users,
        input: network.input,
        scaled: String::new(),
        unscaled_output: String::new(),
        writer: GraphWriter::default(),
    };
    exporter.write_input(schema);
    let mut predictions = Vec::new();
    for (number, parameters) in members.iter().enumerate() {
        exporter.parameters = parameters;
        exporter.values = vec![None; graph.nodes().len()];
        if members.len() > 1 {
            exporter.writer.prefix = format!("members.{number}.");
        }
        for (id, _) in graph.nodes() {
            if exporter.values[id.0].is_none() {
                exporter.write(id)?;
            }
        }
        if !schema.reconstruct {
            predictions.push(exporter.prediction()?);
        }
    }
    let prediction = match combiner {
        [] => exporter.combined(&predictions, combine, network.outputs()),
        _ => exporter.stacked(&predictions, combiner, schema.task),
    };
    exporter.write_output(network, prediction, schema)?;
    exporter.writer.graph.name = "thalweg".into();
    let (rows, output) = (exporter.scaled, exporter.unscaled_output);
    let embedded = EmbeddedScaling { scaling: schema.scaling.clone(), target: schema.target, rows, output };
    let about = match members.len() {
        1 if combiner.is_empty() => embedded.properties(),
        // Nothing to train on.
        count => vec![StringStringEntryProto { key: MEMBERS.into(), value: count.to_string() }],
    };
    let metadata = metadata.into_iter().map(|(key, value)| StringStringEntryProto { key, value });
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "thalweg".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        doc_string: "Rows as the data has them; scaling is part of the graph.".into(),
        graph: Some(exporter.writer.graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPERATOR_SET }],
        metadata_props: metadata.chain(about).collect(),
    };
    Ok(model.encode_to_vec())
}

/// The ONNX value of a node.
#[derive(Clone, Debug)]
struct ExportedValue {
    name: String,
    /// Whether it is an image in NCHW.
    is_nchw: bool,
    /// For a flat value, the index in memory of each element; empty if it is in memory order.
    order: Vec<u32>,
}

struct Exporter<'a> {
    graph: &'a Graph,
    /// File orders of flat nodes.
    orders: FlatOrders,
    layout: &'a Layout,
    parameters: &'a [f32],
    /// The readers of each node.
    users: Vec<Vec<NodeId>>,
    values: Vec<Option<ExportedValue>>,
    input: Input,
    /// Name of the scaled rows.
    scaled: String,
    /// Name of the output before it is converted into the data's units.
    unscaled_output: String,
    writer: GraphWriter,
}

impl Exporter<'_> {
    /// Writes one node, or several that one ONNX operator covers, and records the value of the last.
    fn write(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id).clone();
        let read = |index: usize| node.inputs[index];
        match &node.op {
            // Written by their readers, in the order each of them needs.
            Op::Parameter(_) => {}
            Op::Features(features) => self.features(id, &features.sizes),
            Op::Constant(constant) => {
                let name = self.writer.constant(&constant.sizes, &constant.values);
                self.set_value(id, name);
            }
            // Written as part of the recurrent operator.
            Op::Product(_) | Op::Elementwise(_) if self.is_part_of_recurrent(id) => {}
            Op::Product(product) if product.right_transposed && !product.left_transposed => {
                self.product(id, true)?;
            }
            Op::Product(product) if !product.left_transposed => self.product(id, false)?,
            Op::Elementwise(chain) => self.chain(id, &chain.steps)?,
            Op::Softmax(_) => {
                let value = self.flat_in_order_of(read(0), id)?;
                let name = self.writer.node("Softmax", &[&value], vec![writer::int("axis", -1)]);
                self.set_flat(id, name);
            }
            Op::Reshape(reshape) => self.write_reshape(id, read(0), &reshape.sizes)?,
            Op::Transpose(_) => {
                let value = self.in_memory_order(read(0))?;
                let mut order: Vec<i64> = (0..=node.shape.sizes().len() as i64).collect();
                let count = order.len();
                order.swap(count - 2, count - 1);
                let name = self.writer.transpose(&value, &order);
                self.set_value(id, name);
            }
            Op::Convolution(convolution) => self.convolution(id, convolution)?,
            Op::Pool(pool) => self.pool(id, pool)?,
            Op::PoolGradient(gradient) => self.upsample(id, gradient)?,
            Op::LayerNormalize(normal) => self.normalize(id, normal.epsilon)?,
            Op::RunningNormalize(normal) => self.running_normalize(id, normal)?,
            Op::Concatenate(_) => self.concatenate(id)?,
            Op::Columns(columns) => self.columns(id, columns)?,
            Op::Embedding(_) => {
                let table = self.tensor(read(0))?;
                let symbols = self.scaled.clone();
                let name = self.writer.node("Gather", &[&table, &symbols], vec![]);
                self.set_value(id, name);
            }
            Op::Last(_) => self.last(id)?,
            Op::Attention(attention) => self.attention(id, attention)?,
            Op::Lstm(_) | Op::Gru(_) | Op::Rnn(_) => self.recurrent(id)?,
            op => {
                let name = op.operator().describe();
                return Err(Error::internal(format!("there is no ONNX operator for `{name}`")));
            }
        }
        Ok(())
    }

    /// Records the ONNX value of a node, in memory order.
    fn set_value(&mut self, id: NodeId, name: String) {
        self.values[id.0] = Some(ExportedValue { name, is_nchw: false, order: Vec::new() });
    }

    /// Records the ONNX value of an image node, in NCHW.
    fn set_nchw(&mut self, id: NodeId, name: String) {
        self.values[id.0] = Some(ExportedValue { name, is_nchw: true, order: Vec::new() });
    }

    fn value(&self, id: NodeId) -> Result<&ExportedValue> {
        let value = self.values.get(id.0).and_then(Option::as_ref);
        value.ok_or_else(|| Error::internal("a node is exported before its input"))
    }

    /// A node's value in memory order (NHWC for images).
    fn in_memory_order(&mut self, id: NodeId) -> Result<String> {
        let value = self.value(id)?.clone();
        Ok(match (value.is_nchw, value.order.is_empty()) {
            (true, _) => self.writer.transpose(&value.name, &[0, 2, 3, 1]),
            (_, true) => value.name,
            (_, false) => self.writer.gather_columns(&value.name, &inverse_permutation(&value.order)),
        })
    }

    /// An image node's value in NCHW.
    fn nchw(&mut self, id: NodeId) -> Result<String> {
        let value = self.value(id)?.clone();
        Ok(if value.is_nchw { value.name } else { self.writer.transpose(&value.name, &[0, 3, 1, 2]) })
    }

    /// Name, shape and values of a parameter node.
    fn parameter(&self, id: NodeId) -> Result<(&str, &[usize], &[f32])> {
        let Op::Parameter(index) = self.graph.node(id).op else {
            return Err(Error::internal("expected a parameter"));
        };
        // The layout is in the reverse order of the graph's parameters.
        let tensor = &self.layout.tensors()[self.layout.tensors().len() - 1 - index];
        Ok((&tensor.name, &tensor.shape, &self.parameters[tensor.range()]))
    }

    /// Writes a parameter or constant in memory order.
    fn tensor(&mut self, id: NodeId) -> Result<String> {
        if let Op::Constant(constant) = &self.graph.node(id).op {
            return Ok(self.writer.constant(&constant.sizes, &constant.values));
        }
        let (name, sizes, values) = self.parameter(id)?;
        let (name, sizes, values) = (name.to_string(), sizes.to_vec(), values.to_vec());
        Ok(self.writer.tensor(&name, &sizes, &values))
    }

    /// Writes a parameter or constant with its first two axes permuted; an empty permutation keeps the axis.
    fn permuted_tensor(&mut self, id: NodeId, permutations: [&[u32]; 2]) -> Result<String> {
        if permutations.iter().all(|axis| axis.is_empty()) {
            return self.tensor(id);
        }
        let sizes = self.graph.shape(id).sizes().to_vec();
        let order = FileOrder::Permuted {
            sizes: sizes.clone(),
            permutations: permutations.map(<[u32]>::to_vec).to_vec(),
        };
        if let Op::Constant(constant) = &self.graph.node(id).op {
            let values = order.to_file(&sizes, &constant.values);
            return Ok(self.writer.constant(&sizes, &values));
        }
        let (name, _, values) = self.parameter(id)?;
        let (name, values) = (name.to_string(), order.to_file(&sizes, values));
        Ok(self.writer.tensor(&name, &sizes, &values))
    }

    /// The only reader of a node, if it is a single wanted element-wise step whose operands are parameters.
    fn following_step(&self, id: NodeId, wanted: impl Fn(ElementwiseStep) -> bool) -> Option<NodeId> {
        let &[user] = self.users[id.0].as_slice() else { return None };
        let node = self.graph.node(user);
        match &node.op {
            Op::Elementwise(chain) if node.inputs[0] == id && self.graph.output != Some(id) => {
                let &[step] = chain.steps.as_slice() else { return None };
                let named = |id: &NodeId| matches!(self.graph.node(*id).op, Op::Parameter(_));
                (wanted(step) && node.inputs[1..].iter().all(named)).then_some(user)
            }
            _ => None,
        }
    }
}
