//! The typed graph: what is computed from what, before anybody decides how.
//!
//! A graph is a list of nodes in which every node stands behind those it reads. It is only ever appended to; a pass
//! that changes something writes a new graph. Its roots are the answer, the loss and one gradient per parameter.

pub mod parameter;
pub mod shape;

use crate::op::Op;
pub use parameter::Parameter;
pub use shape::Shape;

/// Most elements of a value, for each row of the batch: 256 GiB. What a machine really has is looked at where it is known.
pub const MOST_ELEMENTS: usize = 1 << 36;

/// Which node of its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) usize);

/// One operation: what it does, what it reads, how large its result is.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// What it reads, all of it earlier in the graph.
    pub inputs: Vec<NodeId>,
    /// How large its result is.
    pub shape: Shape,
}

/// Nodes in an order in which they can be computed, and which of them somebody wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    nodes: Vec<Node>,
    /// The tensors that `Op::Parameter` names by index, in the order in which the forward pass meets them.
    pub parameters: Vec<Parameter>,
    /// What the model answers.
    pub answer: Option<NodeId>,
    /// What it is blamed for.
    pub loss: Option<NodeId>,
    /// Each parameter's gradient, once the graph is differentiated.
    pub gradients: Vec<NodeId>,
}

impl Graph {
    /// Appends a node, whose shape follows from what it reads; the error says what does not fit.
    pub fn add(&mut self, op: Op, inputs: &[NodeId]) -> Result<NodeId, String> {
        let shapes: Vec<&Shape> = inputs.iter().map(|input| self.shape(*input)).collect();
        let shape = match &op {
            Op::Parameter(index) => Shape::fixed(&self.parameters[*index].shape),
            Op::Part(index) => {
                let producer = &self.nodes[inputs[0].0];
                let read: Vec<&Shape> = producer.inputs.iter().map(|input| self.shape(*input)).collect();
                producer.op.operator().parts(&read)[*index].clone()
            }
            op => op.operator().shape(&shapes)?,
        };
        if shape.per_row() > MOST_ELEMENTS {
            return Err(format!("its result of {shape} is more than a machine can hold"));
        }
        self.nodes.push(Node { op, inputs: inputs.to_vec(), shape });
        Ok(NodeId(self.nodes.len() - 1))
    }

    /// Appends a node that is known to fit: a rule of the engine wrote it, not a user.
    pub fn must_add(&mut self, op: Op, inputs: &[NodeId]) -> NodeId {
        let described = op.operator().describe();
        match self.add(op, inputs) {
            Ok(id) => id,
            Err(reason) => unreachable!("{described}: {reason}"),
        }
    }

    /// Appends a parameter and the node that reads it.
    pub fn add_parameter(&mut self, parameter: Parameter) -> NodeId {
        self.parameters.push(parameter);
        self.must_add(Op::Parameter(self.parameters.len() - 1), &[])
    }

    /// The node of that number.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// The shape of a node's result.
    pub fn shape(&self, id: NodeId) -> &Shape {
        &self.nodes[id.0].shape
    }

    /// The shapes of what a node reads.
    pub fn input_shapes(&self, id: NodeId) -> Vec<&Shape> {
        self.node(id).inputs.iter().map(|input| self.shape(*input)).collect()
    }

    /// All nodes with their numbers, each behind what it reads.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeId(index), node))
    }

    /// The nodes that somebody outside wants.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.answer.into_iter().chain(self.loss).chain(self.gradients.iter().copied())
    }

    /// The same graph with nobody asking for the answer.
    pub fn without_answer(&self) -> Graph {
        Graph { answer: None, ..self.clone() }
    }

    /// The same graph with nobody asking for the loss.
    pub fn without_loss(&self) -> Graph {
        Graph { loss: None, ..self.clone() }
    }

    /// How often each node is read, roots counted.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.nodes.len()];
        let read = self.nodes.iter().flat_map(|node| node.inputs.iter().copied());
        read.chain(self.roots()).for_each(|id| uses[id.0] += 1);
        uses
    }

    /// Writes the graph anew: `place` puts each node, its inputs already renamed, into the new graph and says where it
    /// stands there. Roots follow.
    pub fn rewrite(&self, mut place: impl FnMut(&mut Graph, NodeId, &Op, &[NodeId]) -> NodeId) -> Graph {
        let mut new = Graph { parameters: self.parameters.clone(), ..Graph::default() };
        let mut places = Vec::with_capacity(self.nodes.len());
        for (id, node) in self.nodes() {
            let inputs: Vec<NodeId> = node.inputs.iter().map(|input| places[input.0]).collect();
            places.push(place(&mut new, id, &node.op, &inputs));
        }
        new.answer = self.answer.map(|id| places[id.0]);
        new.loss = self.loss.map(|id| places[id.0]);
        new.gradients = self.gradients.iter().map(|id| places[id.0]).collect();
        new
    }
}
