//! Differentiation: from a graph with a loss to a graph that also computes every parameter's gradient.
//!
//! The graph is walked from the loss to its leaves. Each operator appends the nodes that carry the gradient of its
//! result to what it read; what comes from several readers is added up. Only what leads to a parameter is
//! differentiated.

use crate::graph::{Graph, NodeId, Shape};
use crate::op::elementwise::{Elementwise, Step};
use crate::op::{Op, leaf};

/// What operators write their gradient's nodes on.
pub struct Tape<'a> {
    graph: &'a mut Graph,
    /// Per node of the original graph: whether a parameter stands behind it.
    wanted: Vec<bool>,
    /// Per node of the original graph: the gradient so far.
    deltas: Vec<Option<NodeId>>,
}

impl Tape<'_> {
    /// What a node reads.
    pub fn input(&self, node: NodeId, index: usize) -> NodeId {
        self.graph.node(node).inputs[index]
    }

    /// How many inputs a node reads.
    pub fn inputs(&self, node: NodeId) -> usize {
        self.graph.node(node).inputs.len()
    }

    /// The shape of a node's result.
    pub fn shape(&self, node: NodeId) -> &Shape {
        self.graph.shape(node)
    }

    /// Whether most of a node's numbers are zero, whatever is computed.
    pub fn is_scattered(&self, node: NodeId) -> bool {
        matches!(&self.graph.node(node).op, Op::PoolGradient(pool) if pool.is_scattered())
    }

    /// Whether anybody needs the gradient of this node.
    pub fn wants(&self, node: NodeId) -> bool {
        self.wanted[node.0]
    }

    /// Appends a node.
    pub fn add(&mut self, op: Op, inputs: &[NodeId]) -> NodeId {
        self.graph.must_add(op, inputs)
    }

    /// Adds to the gradient of a node.
    pub fn give(&mut self, node: NodeId, delta: NodeId) {
        self.deltas[node.0] = Some(match self.deltas[node.0] {
            None => delta,
            Some(before) => self.add(Op::step(Step::Add), &[before, delta]),
        });
    }
}

/// Appends the gradient of the loss with respect to every parameter. A parameter that the loss does not depend on gets
/// zeros.
pub fn differentiate(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    let wanted = wanted(&graph);
    let deltas = vec![None; wanted.len()];
    let forward = wanted.len();
    let mut tape = Tape { graph: &mut graph, wanted, deltas };
    if let Some(loss) = tape.graph.loss {
        tape.deltas[loss.0] = Some(loss);
    }
    for index in (0..forward).rev() {
        if let (true, Some(delta)) = (tape.wanted[index], tape.deltas[index]) {
            let node = tape.graph.node(NodeId(index));
            let (op, inputs) = (node.op.clone(), node.inputs.clone());
            match op {
                // A part's gradient is a matter of the operator that wrote it.
                Op::Part(part) => {
                    let producer = tape.graph.node(inputs[0]).op.clone();
                    producer.operator().part_gradient(&mut tape, inputs[0], part, delta);
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
    let gradients = found.map(|(parameter, delta)| own_node(&mut graph, parameter, delta)).collect();
    graph.gradients = gradients;
    graph
}

/// A node that computes this gradient and nothing else, so that it can be written straight into its place.
fn own_node(graph: &mut Graph, parameter: usize, delta: Option<NodeId>) -> NodeId {
    match delta {
        // Sizes may be grouped differently; a copy takes the parameter's own.
        Some(delta) => graph.must_add(Op::Elementwise(Elementwise::default()), &[delta]),
        None => {
            let sizes = graph.parameters[parameter].shape.clone();
            graph.must_add(Op::Fill(leaf::Fill { value: 0.0, sizes }), &[])
        }
    }
}

/// Which nodes a parameter stands behind (a running statistic too: its move takes the gradient's way).
fn wanted(graph: &Graph) -> Vec<bool> {
    let mut wanted: Vec<bool> = Vec::new();
    for (_, node) in graph.nodes() {
        wanted.push(match node.op {
            Op::Parameter(_) => true,
            _ => node.inputs.iter().any(|input| wanted[input.0]),
        });
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::assembly::Assembly;
    use crate::initialize::Initializer;
    use crate::input::Input;
    use crate::network::{Network, Options};
    use crate::op::concatenate::{Columns, Concatenate};
    use crate::op::reshape::Reshape;
    use crate::team::Team;
    use thalweg_core::{Batch, Error, Features, Model, NoHooks, Rng, Targets, Task};

    /// What stands between a product with the rows and the loss.
    type Middle = fn(&mut Assembly, NodeId, usize) -> Result<NodeId, String>;

    /// Operators that no layer of a job appends by itself but that files of ONNX do.
    const MIDDLES: [(&str, Middle); 6] = [
        ("square", |assembly, value, _| assembly.add(Op::step(Step::Multiply), &[value, value])),
        ("cube", |assembly, value, _| {
            let square = assembly.add(Op::step(Step::Multiply), &[value, value])?;
            assembly.add(Op::step(Step::Multiply), &[square, value])
        }),
        ("gate", |assembly, value, _| {
            let gate = assembly.activate(value, Activation::Sigmoid)?;
            assembly.add(Op::step(Step::Multiply), &[gate, value])
        }),
        ("some columns", |assembly, value, width| {
            assembly.add(Op::Columns(Columns { begin: width / 2, count: width - width / 2 }), &[value])
        }),
        ("columns exchanged", |assembly, value, width| {
            let right = Columns { begin: width / 2, count: width - width / 2 };
            let right = assembly.add(Op::Columns(right), &[value])?;
            let left = assembly.add(Op::Columns(Columns { begin: 0, count: width.div_ceil(2) }), &[value])?;
            let left = assembly.activate(left, Activation::Tanh)?;
            assembly.add(Op::Concatenate(Concatenate), &[right, left])
        }),
        ("another shape", |assembly, value, width| {
            let value = assembly.add(Op::Reshape(Reshape { sizes: vec![width, 1] }), &[value])?;
            let value = assembly.activate(value, Activation::GeluErf)?;
            assembly.add(Op::Reshape(Reshape { sizes: vec![width] }), &[value])
        }),
    ];

    fn network(middle: Middle, width: usize, threads: usize) -> Network {
        let (mut assembly, features) = Assembly::new(Input::Flat(3));
        assembly.begin_layer(0);
        let value = assembly.affine(features, width, "", Initializer::Uniform(1.0)).unwrap();
        let value = middle(&mut assembly, value, width).unwrap();
        assembly.begin_layer(1);
        let value = assembly.affine(value, 2, "", Initializer::Uniform(1.0)).unwrap();
        let wrong = |reason: String| Error::job(reason);
        Network::finish(assembly, value, Vec::new(), Task::Classification, Options::default(), &wrong)
            .unwrap()
            .with_team(Team::eager(threads))
    }

    #[test]
    fn operators_of_files_have_the_slopes_of_the_loss() {
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
                for (place, slope) in gradient.iter().enumerate() {
                    let mut loss_at = |step: f32| {
                        let mut moved = parameters.clone();
                        moved[place] += step;
                        network.evaluate(&moved, &batch).unwrap().loss
                    };
                    let difference = (loss_at(0.01) - loss_at(-0.01)) / 0.02;
                    let error = (difference - f64::from(*slope)).abs();
                    assert!(
                        error < 2e-3 * (1.0 + difference.abs()),
                        "{name} of width {width}, {rows} rows: parameter {place} has slope {slope}, not {difference}"
                    );
                }
            }
        }
    }
}
