//! Element order in files of flattened images, and so of the weights that read or write them.
//!
//! A flattened image has its channels last in memory, but first in files, as PyTorch flattens it. The order
//! propagates through all elementwise operators: forwards from an image that is flattened, backwards from a vector
//! that is reshaped into an image.

use crate::graph::{Graph, Node, NodeId};
use crate::input::Input;
use crate::op::Op;
use crate::op::elementwise::ElementwiseStep;
use std::sync::Arc;
use thalweg_core::FileOrder;
use thalweg_core::file_order::channels_first;

/// Per node: the index in memory of each element in file order; `None` where the order is not known (yet).
pub(crate) struct FlatOrders {
    known: Vec<Option<Arc<[u32]>>>,
    changed: bool,
}

/// The longest vector whose order is computed, at 4 bytes per element.
const MAX_VECTOR_LEN: usize = 1 << 27;

impl FlatOrders {
    /// Refuses vectors that no layer could read, before their order is allocated.
    pub fn check(graph: &Graph) -> Result<(), String> {
        let mut vectors = graph.nodes().map(|(_, node)| &node.shape).filter(|shape| shape.sizes().len() == 1);
        match vectors.find(|shape| shape.per_row() > MAX_VECTOR_LEN) {
            Some(shape) => {
                Err(format!("a vector of {} numbers is more than a machine can hold", shape.per_row()))
            }
            None => Ok(()),
        }
    }

    /// The orders of a graph for an input; `reconstructs`: whether its output has the layout of the input.
    pub fn of(graph: &Graph, input: Input, reconstructs: bool) -> FlatOrders {
        let mut orders = FlatOrders { known: vec![None; graph.nodes().len()], changed: true };
        if let (Some(output), Input::Image(image), true) = (graph.output, input, reconstructs)
            && graph.shape(output).sizes().len() == 1
        {
            orders.set(output, channels_first(image).into());
        }
        while std::mem::take(&mut orders.changed) {
            for (id, node) in graph.nodes() {
                orders.propagate(graph, id, node, input);
            }
        }
        orders
    }

    /// The order of a node's value; empty for memory order.
    pub fn get(&self, id: NodeId) -> &[u32] {
        self.known[id.0].as_deref().unwrap_or_default()
    }

    /// Propagates orders between a node and its inputs.
    fn propagate(&mut self, graph: &Graph, id: NodeId, node: &Node, input: Input) {
        let sizes = |id: NodeId| graph.shape(id).sizes();
        match (&node.op, sizes(id)) {
            (Op::Features(_), [_]) => {
                if let Input::Image(image) = input {
                    self.set(id, channels_first(image).into());
                }
            }
            (Op::Reshape(_), own) => match (sizes(node.inputs[0]), own) {
                (&[height, width, channels], [_]) => {
                    self.set(id, channels_first([height, width, channels]).into());
                }
                ([_], &[height, width, channels]) => {
                    self.set(node.inputs[0], channels_first([height, width, channels]).into());
                }
                ([_], [_]) => self.unify(id, node.inputs[0]),
                _ => {}
            },
            (Op::Elementwise(chain), [_]) => {
                self.unify(id, node.inputs[0]);
                let steps = chain.steps.iter().filter(|step| step.takes_operand());
                for (step, operand) in steps.zip(&node.inputs[1..]) {
                    if matches!(step, ElementwiseStep::Add | ElementwiseStep::Multiply) {
                        self.unify(id, *operand);
                    }
                }
            }
            (Op::Dropout(_) | Op::Softmax(_) | Op::LayerNormalize(_), [_]) => self.unify(id, node.inputs[0]),
            (Op::BatchNormalize(_) | Op::RunningNormalize(_), [_]) => self.unify(id, node.inputs[0]),
            (Op::Concatenate(_), [_]) => {
                let order = self.concatenated(graph, node);
                if !order.is_empty() {
                    self.set(id, order.into());
                }
            }
            _ => {}
        }
    }

    /// The order of concatenated vectors, each of which keeps its own; empty if all are in memory order.
    pub fn concatenated(&self, graph: &Graph, node: &Node) -> Vec<u32> {
        if node.inputs.iter().all(|input| self.get(*input).is_empty()) {
            return Vec::new();
        }
        let mut order = Vec::new();
        for input in &node.inputs {
            let (begin, len) = (order.len() as u32, graph.shape(*input).per_row() as u32);
            match self.get(*input) {
                [] => order.extend(begin..begin + len),
                own => order.extend(own.iter().map(|index| begin + index)),
            }
        }
        order
    }

    fn set(&mut self, id: NodeId, order: Arc<[u32]>) {
        if self.known[id.0].is_none() {
            self.known[id.0] = Some(order);
            self.changed = true;
        }
    }

    /// Gives two values the same order, if one of them is known.
    fn unify(&mut self, one: NodeId, other: NodeId) {
        match (&self.known[one.0], &self.known[other.0]) {
            (Some(order), None) => self.set(other, Arc::clone(order)),
            (None, Some(order)) => self.set(one, Arc::clone(order)),
            _ => {}
        }
    }

    /// The element order in files of each parameter of the graph.
    pub fn of_parameters(&self, graph: &Graph) -> Vec<Option<FileOrder>> {
        let mut found = vec![None; graph.parameters.len()];
        for (id, node) in graph.nodes() {
            let tensors = node.inputs.iter().enumerate();
            for (position, input) in tensors {
                let Op::Parameter(index) = graph.node(*input).op else { continue };
                if found[index].is_none() {
                    found[index] = self.of_tensor(graph, id, node, position);
                }
            }
        }
        found
    }

    /// The element order in files of a tensor that is input `position` of a node.
    fn of_tensor(&self, graph: &Graph, id: NodeId, node: &Node, position: usize) -> Option<FileOrder> {
        let sizes = graph.shape(node.inputs[position]).sizes().to_vec();
        let permutations = match (&node.op, position) {
            (Op::Convolution(_), 1) => return Some(FileOrder::ChannelsFirst),
            (Op::Product(product), 1) if !product.left_transposed => {
                let (input, output) = (self.get(node.inputs[0]).to_vec(), self.get(id).to_vec());
                if product.right_transposed { vec![output, input] } else { vec![input, output] }
            }
            (Op::Elementwise(_) | Op::BatchNormalize(_) | Op::RunningNormalize(_), 1..) => {
                vec![self.get(id).to_vec()]
            }
            _ => return None,
        };
        permutations
            .iter()
            .any(|axis| !axis.is_empty())
            .then_some(FileOrder::Permuted { sizes, permutations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use thalweg_core::{Model, Task};

    /// The order of a tensor of a network for images of 4 x 4 pixels in 2 channels.
    fn order(layers: &[&str], name: &str) -> Option<FileOrder> {
        let layers: Vec<String> = layers.iter().map(|text| text.to_string()).collect();
        let network = Network::build_for(&layers, Input::Image([4, 4, 2]), 3, Task::Classification).unwrap();
        let tensor = network.layout().tensors().iter().find(|tensor| tensor.name == name);
        tensor.unwrap().file_order.clone()
    }

    fn lengths(order: Option<FileOrder>) -> Vec<usize> {
        match order {
            Some(FileOrder::Permuted { permutations, .. }) => permutations.iter().map(Vec::len).collect(),
            _ => vec![],
        }
    }

    #[test]
    fn vectors_beyond_any_memory_are_refused_before_allocation() {
        let refused = |layers: &[&str], image| {
            let layers: Vec<String> = layers.iter().map(|text| text.to_string()).collect();
            Network::build_for(&layers, Input::Image(image), 3, Task::Classification).unwrap_err().to_string()
        };
        let wide = refused(&["flatten", "dense auto"], [4, 1 << 31, 1]);
        assert!(wide.contains("more than a machine can hold"), "{wide}");
        let deep = refused(&["conv 16777216 3x3 relu", "flatten", "dense auto"], [10, 10, 1]);
        assert!(deep.contains("more than a machine can hold"), "{deep}");
    }

    #[test]
    fn a_flattened_image_reorders_its_readers() {
        let layers = ["conv 5 3x3", "flatten", "batchnorm", "relu", "dense 6", "dense auto"];
        assert_eq!(order(&layers, "layers.0.weight"), Some(FileOrder::ChannelsFirst));
        assert_eq!(order(&layers, "layers.0.bias"), None);
        for name in ["running_mean", "running_var", "weight", "bias"] {
            assert_eq!(lengths(order(&layers, &format!("layers.2.{name}"))), [20], "{name}");
        }
        assert_eq!(lengths(order(&layers, "layers.4.weight")), [0, 20]);
        assert_eq!(order(&layers, "layers.5.weight"), None);
    }

    #[test]
    fn a_vector_reshaped_into_an_image_reorders_its_producers() {
        let layers = ["dense 12 tanh", "reshape 2x2x3", "conv 3 2x2", "dense auto"];
        assert_eq!(lengths(order(&layers, "layers.0.weight")), [12, 32], "rows of an image of two channels");
        assert_eq!(lengths(order(&layers, "layers.0.bias")), [12]);
        assert_eq!(order(&layers, "layers.3.weight"), None, "one pixel");
    }

    #[test]
    fn concatenated_vectors_keep_their_orders() {
        let layers = ["conv 2 1x1", "concat flatten | flatten & dense 3", "dense auto"];
        let Some(FileOrder::Permuted { permutations, .. }) = order(&layers, "layers.2.weight") else {
            panic!()
        };
        assert_eq!(permutations[1].len(), 35);
        assert_eq!(permutations[1][..3], [0, 2, 4]);
        assert_eq!(permutations[1][32..], [32, 33, 34]);
    }

    #[test]
    fn channels_of_an_image_are_not_reordered() {
        let layers = ["conv 4 3x3", "batchnorm", "pool global", "dense auto"];
        assert_eq!(order(&layers, "layers.1.weight"), None);
        assert_eq!(order(&layers, "layers.3.weight"), None);
    }
}
