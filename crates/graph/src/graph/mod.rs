//! The typed data-flow graph, before scheduling and buffer planning.
//!
//! A graph is a list of nodes in topological order. It is append-only: a pass that changes something writes a new
//! graph. Its roots are the output, the loss and one gradient per parameter.

pub mod parameter;
pub mod shape;

use crate::op::Op;
pub use parameter::Parameter;
pub use shape::Shape;

/// Most elements of a value per row of the batch: 256 GiB. The actual memory of the machine is checked before a job
/// starts.
pub const MAX_ELEMENTS: usize = 1 << 36;

/// Index of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) usize);

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub op: Op,
    /// Earlier nodes of the graph.
    pub inputs: Vec<NodeId>,
    /// Shape of the result.
    pub shape: Shape,
}

/// Nodes in topological order, and the roots among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    nodes: Vec<Node>,
    /// The tensors that `Op::Parameter` refers to by index, in the order of their first use in the forward pass.
    pub parameters: Vec<Parameter>,
    /// The prediction of the model.
    pub output: Option<NodeId>,
    pub loss: Option<NodeId>,
    /// The gradient of each parameter; empty before differentiation.
    pub gradients: Vec<NodeId>,
}

impl Graph {
    /// Appends a node and infers its shape; the error names the mismatch.
    pub fn add(&mut self, op: Op, inputs: &[NodeId]) -> Result<NodeId, String> {
        let shapes: Vec<&Shape> = inputs.iter().map(|input| self.shape(*input)).collect();
        let shape = match &op {
            Op::Parameter(index) => Shape::fixed(&self.parameters[*index].shape),
            Op::SideOutput(index) => {
                let producer = &self.nodes[inputs[0].0];
                let shapes: Vec<&Shape> = producer.inputs.iter().map(|input| self.shape(*input)).collect();
                producer.op.operator().side_outputs(&shapes)[*index].clone()
            }
            op => op.operator().shape(&shapes)?,
        };
        if shape.per_row() > MAX_ELEMENTS {
            return Err(format!("its result of {shape} is more than a machine can hold"));
        }
        self.nodes.push(Node { op, inputs: inputs.to_vec(), shape });
        Ok(NodeId(self.nodes.len() - 1))
    }

    /// Appends a node that the engine itself wrote: a mismatch is a bug, not a user's error.
    pub fn must_add(&mut self, op: Op, inputs: &[NodeId]) -> NodeId {
        let described = op.operator().describe();
        match self.add(op, inputs) {
            Ok(id) => id,
            Err(reason) => unreachable!("{described}: {reason}"),
        }
    }

    /// Appends a parameter and its node.
    pub fn add_parameter(&mut self, parameter: Parameter) -> NodeId {
        self.parameters.push(parameter);
        self.must_add(Op::Parameter(self.parameters.len() - 1), &[])
    }

    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    pub fn shape(&self, id: NodeId) -> &Shape {
        &self.nodes[id.0].shape
    }

    pub fn input_shapes(&self, id: NodeId) -> Vec<&Shape> {
        self.node(id).inputs.iter().map(|input| self.shape(*input)).collect()
    }

    /// All nodes in topological order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeId(index), node))
    }

    /// Output, loss and gradients.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.output.into_iter().chain(self.loss).chain(self.gradients.iter().copied())
    }

    /// The graph with the output removed from its roots.
    pub fn without_output(&self) -> Graph {
        Graph { output: None, ..self.clone() }
    }

    /// The graph with the loss removed from its roots.
    pub fn without_loss(&self) -> Graph {
        Graph { loss: None, ..self.clone() }
    }

    /// The number of readers of each node; being a root counts as one.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.nodes.len()];
        let inputs = self.nodes.iter().flat_map(|node| node.inputs.iter().copied());
        inputs.chain(self.roots()).for_each(|id| uses[id.0] += 1);
        uses
    }

    /// Copies the graph node by node: `emit` appends each node, given its inputs in the new graph, and returns its
    /// new id. Roots are mapped.
    pub fn rewrite(&self, mut emit: impl FnMut(&mut Graph, NodeId, &Op, &[NodeId]) -> NodeId) -> Graph {
        let mut new = Graph { parameters: self.parameters.clone(), ..Graph::default() };
        let mut ids = Vec::with_capacity(self.nodes.len());
        for (id, node) in self.nodes() {
            let inputs: Vec<NodeId> = node.inputs.iter().map(|input| ids[input.0]).collect();
            ids.push(emit(&mut new, id, &node.op, &inputs));
        }
        new.output = self.output.map(|id| ids[id.0]);
        new.loss = self.loss.map(|id| ids[id.0]);
        new.gradients = self.gradients.iter().map(|id| ids[id.0]).collect();
        new
    }
}
