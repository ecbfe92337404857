//! Reverse-mode automatic differentiation: extends a graph with a loss by the gradient of every parameter.
//!
//! The graph is walked from the loss to its leaves. Each operator appends the nodes that compute the gradients of its
//! inputs from the gradient of its result; gradients from several readers are accumulated. Nodes that do not depend
//! on a parameter are skipped.

use crate::graph::{Graph, NodeId, Shape};
use crate::op::elementwise::{Elementwise, ElementwiseStep};
use crate::op::{Op, leaf};

/// Collects the gradient nodes that operators append.
pub struct Tape<'a> {
    graph: &'a mut Graph,
    /// Per node of the original graph: whether it depends on a parameter.
    needs_gradient: Vec<bool>,
    /// Per node of the original graph: the gradient accumulated so far.
    deltas: Vec<Option<NodeId>>,
}

impl Tape<'_> {
    pub fn input(&self, node: NodeId, index: usize) -> NodeId {
        self.graph.node(node).inputs[index]
    }

    pub fn input_count(&self, node: NodeId) -> usize {
        self.graph.node(node).inputs.len()
    }

    pub fn shape(&self, node: NodeId) -> &Shape {
        self.graph.shape(node)
    }

    /// Whether most elements of a node are zero by construction.
    pub fn is_mostly_zero(&self, node: NodeId) -> bool {
        matches!(&self.graph.node(node).op, Op::PoolGradient(pool) if pool.is_mostly_zero())
    }

    pub fn needs_gradient(&self, node: NodeId) -> bool {
        self.needs_gradient[node.0]
    }

    pub fn add(&mut self, op: Op, inputs: &[NodeId]) -> NodeId {
        self.graph.must_add(op, inputs)
    }

    /// Adds `delta` to the gradient of a node.
    pub fn accumulate(&mut self, node: NodeId, delta: NodeId) {
        self.deltas[node.0] = Some(match self.deltas[node.0] {
            None => delta,
            Some(before) => self.add(Op::elementwise(ElementwiseStep::Add), &[before, delta]),
        });
    }
}

/// Appends the gradient of the loss with respect to every parameter: zeros where the loss does not depend on it.
pub fn differentiate(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    let needs_gradient = depends_on_parameter(&graph);
    let deltas = vec![None; needs_gradient.len()];
    let forward = needs_gradient.len();
    let mut tape = Tape { graph: &mut graph, needs_gradient, deltas };
    if let Some(loss) = tape.graph.loss {
        tape.deltas[loss.0] = Some(loss);
    }
    for index in (0..forward).rev() {
        if let (true, Some(delta)) = (tape.needs_gradient[index], tape.deltas[index]) {
            let node = tape.graph.node(NodeId(index));
            let (op, inputs) = (node.op.clone(), node.inputs.clone());
            match op {
                // The operator that writes a side output differentiates it.
                Op::SideOutput(side) => {
                    let producer = tape.graph.node(inputs[0]).op.clone();
                    producer.operator().side_output_gradient(&mut tape, inputs[0], side, delta);
                }
                op => op.operator().gradient(&mut tape, NodeId(index), delta),
            }
        }
    }
    let deltas = tape.deltas;
    let mut found: Vec<Option<NodeId>> = vec![None; graph.parameters.len()];
    for ((_, node), delta) in graph.nodes().zip(deltas) {
        if let Op::Parameter(parameter) = node.op {
            found[parameter] = delta;
        }
    }
    let found = found.into_iter().enumerate();
    let gradients = found.map(|(parameter, delta)| gradient_root(&mut graph, parameter, delta)).collect();
    graph.gradients = gradients;
    graph
}

/// A node for this gradient alone, so that its result can be written directly into the gradient buffer.
fn gradient_root(graph: &mut Graph, parameter: usize, delta: Option<NodeId>) -> NodeId {
    match delta {
        // The copy has the sizes of the gradient, which may be grouped differently; usually it is eliminated.
        Some(delta) => graph.must_add(Op::Elementwise(Elementwise::default()), &[delta]),
        None => {
            let sizes = graph.parameters[parameter].shape.clone();
            graph.must_add(Op::Fill(leaf::Fill { value: 0.0, sizes }), &[])
        }
    }
}

/// Per node: whether it depends on a parameter. Running statistics count: their updates are computed like gradients.
fn depends_on_parameter(graph: &Graph) -> Vec<bool> {
    let mut depends: Vec<bool> = Vec::new();
    for (_, node) in graph.nodes() {
        depends.push(match node.op {
            Op::Parameter(_) => true,
            _ => node.inputs.iter().any(|input| depends[input.0]),
        });
    }
    depends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::graph_builder::GraphBuilder;
    use crate::initialize::Initializer;
    use crate::input::Input;
    use crate::network::{Network, Options};
    use crate::op::concatenate::{Columns, Concatenate};
    use crate::op::reshape::Reshape;
    use crate::team::Team;
    use thalweg_core::{Batch, Error, Features, Model, NoHooks, Rng, Targets, Task};

    /// Appends the nodes between two dense layers.
    type Middle = fn(&mut GraphBuilder, NodeId, usize) -> Result<NodeId, String>;

    /// Operators that only ONNX imports append, no layer of a job.
    const MIDDLES: [(&str, Middle); 6] = [
        ("square", |builder, value, _| {
            builder.add(Op::elementwise(ElementwiseStep::Multiply), &[value, value])
        }),
        ("cube", |builder, value, _| {
            let square = builder.add(Op::elementwise(ElementwiseStep::Multiply), &[value, value])?;
            builder.add(Op::elementwise(ElementwiseStep::Multiply), &[square, value])
        }),
        ("gate", |builder, value, _| {
            let gate = builder.activate(value, Activation::Sigmoid)?;
            builder.add(Op::elementwise(ElementwiseStep::Multiply), &[gate, value])
        }),
        ("some columns", |builder, value, width| {
            builder.add(Op::Columns(Columns { begin: width / 2, count: width - width / 2 }), &[value])
        }),
        ("columns exchanged", |builder, value, width| {
            let right = Columns { begin: width / 2, count: width - width / 2 };
            let right = builder.add(Op::Columns(right), &[value])?;
            let left = builder.add(Op::Columns(Columns { begin: 0, count: width.div_ceil(2) }), &[value])?;
            let left = builder.activate(left, Activation::Tanh)?;
            builder.add(Op::Concatenate(Concatenate), &[right, left])
        }),
        ("another shape", |builder, value, width| {
            let value = builder.add(Op::Reshape(Reshape { sizes: vec![width, 1] }), &[value])?;
            let value = builder.activate(value, Activation::GeluErf)?;
            builder.add(Op::Reshape(Reshape { sizes: vec![width] }), &[value])
        }),
    ];

    fn network(middle: Middle, width: usize, threads: usize) -> Network {
        let (mut builder, features) = GraphBuilder::new(Input::Flat(3));
        builder.begin_layer(0);
        let value = builder.affine(features, width, "", Initializer::Uniform(1.0)).unwrap();
        let value = middle(&mut builder, value, width).unwrap();
        builder.begin_layer(1);
        let value = builder.affine(value, 2, "", Initializer::Uniform(1.0)).unwrap();
        let wrong = |reason: String| Error::job(reason);
        Network::finish(builder, value, Vec::new(), Task::Classification, Options::default(), &wrong)
            .unwrap()
            .with_team(Team::eager(threads))
    }

    #[test]
    fn gradients_of_import_only_operators_match_finite_differences() {
        for ((name, middle), width) in MIDDLES.into_iter().flat_map(|it| [1, 2, 3, 5].map(|w| (it, w))) {
            for (threads, rows) in [(1, 0), (1, 1), (2, 5)] {
                let mut network = network(middle, width, threads);
                let mut rng = Rng::keyed(width as u64, name, &[rows as u64]);
                let batch = Batch {
                    epoch: 0,
                    rows: (0..rows as u64).collect(),
                    width: 3,
                    features: Features::Dense((0..rows * 3).map(|_| rng.normal()).collect()),
                    targets: Targets::Classes((0..rows).map(|row| row as u32 % 2).collect()),
                };
                let parameters: Vec<f32> = (0..network.layout().len()).map(|_| 0.5 * rng.normal()).collect();
                let mut gradient = vec![f32::NAN; parameters.len()];
                network.gradient(&parameters, &batch, 1.0, &mut gradient, &mut NoHooks).unwrap();
                for (index, got) in gradient.iter().enumerate() {
                    let mut loss_at = |step: f32| {
                        let mut moved = parameters.clone();
                        moved[index] += step;
                        network.evaluate(&moved, &batch).unwrap().loss
                    };
                    let difference = (loss_at(0.01) - loss_at(-0.01)) / 0.02;
                    let error = (difference - f64::from(*got)).abs();
                    assert!(
                        error < 2e-3 * (1.0 + difference.abs()),
                        "{name} of width {width}, {rows} rows: parameter {index} has gradient {got}, not {difference}"
                    );
                }
            }
        }
    }
}
