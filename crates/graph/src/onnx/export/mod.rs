//! A network as an ONNX model: node by node of the graph that prediction uses, before anything is fused.
//!
//! The file takes rows as the data has them: the scaling that was learned with the data stands in front, and the answers
//! are in the data's units. Where ONNX has one operator for what is several nodes here (a product and its bias, a
//! normalisation with gain and bias, a whole recurrent layer), that one is written.

mod ends;
mod images;
mod lines;
mod sequences;
mod steps;
mod writer;

use super::proto::{Model, OperatorSet, Property};
use super::scaling::Embedded;
use crate::flat_order::FlatOrders;
use crate::graph::{Graph, NodeId};
use crate::input::Input;
use crate::network::Network;
use crate::op::Op;
use crate::op::elementwise::Step;
use crate::pass::{dead_code, inference};
use lines::inverse;
use prost::Message;
use thalweg_core::{Error, FileOrder, Layout, Model as _, Result, Schema};
use writer::Writer;

/// The operator set that files are written against: the first with a GELU of its own.
const OPERATORS: i64 = 20;
/// The version of the format that came with it.
const IR_VERSION: i64 = 9;

/// Names and texts that go along: classes, columns.
pub type Metadata = Vec<(String, String)>;

/// The bytes of an ONNX file that answers as the network does.
pub fn export(network: &Network, parameters: &[f32], schema: &Schema, metadata: Metadata) -> Result<Vec<u8>> {
    network.check_buffer("parameter", parameters.len())?;
    let graph = dead_code::run(&inference::run(&network.graph().without_loss()));
    let mut users = vec![Vec::new(); graph.nodes().len()];
    for (id, node) in graph.nodes() {
        node.inputs.iter().for_each(|input| users[input.0].push(id));
    }
    let mut exporter = Exporter {
        orders: FlatOrders::of(&graph, network.input, schema.reconstruct),
        values: vec![None; graph.nodes().len()],
        graph: &graph,
        layout: network.layout(),
        parameters,
        users,
        input: network.input,
        scaled: String::new(),
        answer: String::new(),
        writer: Writer::default(),
    };
    exporter.begin(schema);
    for (id, _) in graph.nodes() {
        if exporter.values[id.0].is_none() {
            exporter.write(id)?;
        }
    }
    exporter.end(network, schema)?;
    exporter.writer.graph.name = "thalweg".into();
    let (rows, answer) = (exporter.scaled, exporter.answer);
    let embedded = Embedded { scaling: schema.scaling.clone(), target: schema.target, rows, answer };
    let metadata = metadata.into_iter().map(|(key, value)| Property { key, value });
    let model = Model {
        ir_version: IR_VERSION,
        producer_name: "thalweg".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        doc_string: "Rows as the data has them; scaling is part of the graph.".into(),
        graph: Some(exporter.writer.graph),
        opset_import: vec![OperatorSet { domain: String::new(), version: OPERATORS }],
        metadata_props: metadata.chain(embedded.properties()).collect(),
    };
    Ok(model.encode_to_vec())
}

/// A value of the ONNX graph.
#[derive(Clone, Debug)]
struct Value {
    name: String,
    /// Whether an image stands with its channels first.
    channels_first: bool,
    /// Where in memory each number of a line is; empty where it has the order of memory.
    order: Vec<u32>,
}

/// The way from one graph to the other.
struct Exporter<'a> {
    graph: &'a Graph,
    /// The orders in which lines are written.
    orders: FlatOrders,
    layout: &'a Layout,
    parameters: &'a [f32],
    /// Who reads each node.
    users: Vec<Vec<NodeId>>,
    /// What has become of each node.
    values: Vec<Option<Value>>,
    input: Input,
    /// The rows as the model sees them.
    scaled: String,
    /// The answer before it is brought back into the data's units.
    answer: String,
    writer: Writer,
}

impl Exporter<'_> {
    /// Writes one node; its result, or that of the node it was joined with, is known then.
    fn write(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id).clone();
        let read = |index: usize| node.inputs[index];
        match &node.op {
            // Tensors are written where they are read, in the order their reader wants.
            Op::Parameter(_) => {}
            Op::Features(features) => self.features(id, &features.sizes),
            Op::Constant(constant) => {
                let name = self.writer.constant(&constant.sizes, &constant.values);
                self.put(id, name);
            }
            // Their reader brings them along.
            Op::Product(_) | Op::Elementwise(_) if self.is_part_of_recurrent(id) => {}
            Op::Product(product) if product.right_transposed && !product.left_transposed => {
                self.product(id, true)?;
            }
            Op::Product(product) if !product.left_transposed => self.product(id, false)?,
            Op::Elementwise(chain) => self.chain(id, &chain.steps)?,
            Op::Softmax(_) => {
                let value = self.lined(read(0), id)?;
                let name = self.writer.node("Softmax", &[&value], vec![writer::int("axis", -1)]);
                self.put_line(id, name);
            }
            Op::Reshape(reshape) => self.write_reshape(id, read(0), &reshape.sizes)?,
            Op::Transpose(_) => {
                let value = self.plain(read(0))?;
                let mut order: Vec<i64> = (0..=node.shape.sizes().len() as i64).collect();
                let count = order.len();
                order.swap(count - 2, count - 1);
                let name = self.writer.transpose(&value, &order);
                self.put(id, name);
            }
            Op::Convolution(convolution) => self.convolution(id, convolution)?,
            Op::Pool(pool) => self.pool(id, pool)?,
            Op::PoolGradient(spread) => self.upsample(id, spread)?,
            Op::Normalize(normal) => self.normalize(id, normal.epsilon)?,
            Op::RunningNormalize(normal) => self.running_normalize(id, normal)?,
            Op::Concatenate(_) => self.concatenate(id)?,
            Op::Columns(columns) => self.columns(id, columns)?,
            Op::Embedding(_) => {
                let table = self.whole(read(0))?;
                let symbols = self.scaled.clone();
                let name = self.writer.node("Gather", &[&table, &symbols], vec![]);
                self.put(id, name);
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

    /// Says what has become of a node.
    fn put(&mut self, id: NodeId, name: String) {
        self.values[id.0] = Some(Value { name, channels_first: false, order: Vec::new() });
    }

    /// The same for an image with its channels first.
    fn put_image(&mut self, id: NodeId, name: String) {
        self.values[id.0] = Some(Value { name, channels_first: true, order: Vec::new() });
    }

    fn value(&self, id: NodeId) -> Result<&Value> {
        let value = self.values.get(id.0).and_then(Option::as_ref);
        value.ok_or_else(|| Error::internal("a value is read before it is written"))
    }

    /// A value in the order it has here.
    fn plain(&mut self, id: NodeId) -> Result<String> {
        let value = self.value(id)?.clone();
        Ok(match (value.channels_first, value.order.is_empty()) {
            (true, _) => self.writer.transpose(&value.name, &[0, 2, 3, 1]),
            (_, true) => value.name,
            (_, false) => self.writer.pick(&value.name, &inverse(&value.order)),
        })
    }

    /// An image with its channels first.
    fn image(&mut self, id: NodeId) -> Result<String> {
        let value = self.value(id)?.clone();
        Ok(if value.channels_first { value.name } else { self.writer.transpose(&value.name, &[0, 3, 1, 2]) })
    }

    /// The tensor that a node names: its name, sizes and values.
    fn parameter(&self, id: NodeId) -> Result<(&str, &[usize], &[f32])> {
        let Op::Parameter(index) = self.graph.node(id).op else {
            return Err(Error::internal("a tensor is expected where something is computed"));
        };
        // The layout begins with what the graph names last.
        let tensor = &self.layout.tensors()[self.layout.tensors().len() - 1 - index];
        Ok((&tensor.name, &tensor.shape, &self.parameters[tensor.range()]))
    }

    /// Writes a tensor as it is.
    fn whole(&mut self, id: NodeId) -> Result<String> {
        if let Op::Constant(constant) = &self.graph.node(id).op {
            return Ok(self.writer.constant(&constant.sizes, &constant.values));
        }
        let (name, sizes, values) = self.parameter(id)?;
        let (name, sizes, values) = (name.to_string(), sizes.to_vec(), values.to_vec());
        Ok(self.writer.tensor(&name, &sizes, &values))
    }

    /// Writes a tensor with the places of some axes in another order.
    fn whole_in_order(&mut self, id: NodeId, places: [&[u32]; 2]) -> Result<String> {
        if places.iter().all(|axis| axis.is_empty()) {
            return self.whole(id);
        }
        let sizes = self.graph.shape(id).sizes().to_vec();
        let order = FileOrder::Places { sizes: sizes.clone(), places: places.map(<[u32]>::to_vec).to_vec() };
        if let Op::Constant(constant) = &self.graph.node(id).op {
            let values = order.to_file(&sizes, &constant.values);
            return Ok(self.writer.constant(&sizes, &values));
        }
        let (name, _, values) = self.parameter(id)?;
        let (name, values) = (name.to_string(), order.to_file(&sizes, values));
        Ok(self.writer.tensor(&name, &sizes, &values))
    }

    /// The step behind a node, and its operand, if the node is read by nobody else.
    fn followed_by(&self, id: NodeId, wanted: impl Fn(Step) -> bool) -> Option<NodeId> {
        let &[user] = self.users[id.0].as_slice() else { return None };
        let node = self.graph.node(user);
        match &node.op {
            Op::Elementwise(chain) if node.inputs[0] == id && self.graph.answer != Some(id) => {
                let &[step] = chain.steps.as_slice() else { return None };
                let named = |id: &NodeId| matches!(self.graph.node(*id).op, Op::Parameter(_));
                (wanted(step) && node.inputs[1..].iter().all(named)).then_some(user)
            }
            _ => None,
        }
    }
}
