//! In which order files have the numbers of flat values, and so the weights that read or write them.
//!
//! An image that becomes one line has its channels last in memory and first in files, as where PyTorch flattens it. That
//! order goes along with the line through all that works on each number by itself, forwards from an image that was
//! flattened and backwards from a line that becomes an image.

use crate::graph::{Graph, Node, NodeId};
use crate::input::Input;
use crate::op::Op;
use crate::op::elementwise::Step;
use std::sync::Arc;
use thalweg_core::FileOrder;
use thalweg_core::file_order::channels_first;

/// For each node the place in memory of each number of the file's line: empty where both orders agree, nothing where
/// neither is known.
pub(crate) struct FlatOrders {
    known: Vec<Option<Arc<[u32]>>>,
    changed: bool,
}

/// The longest line whose order is worked out, which takes 4 bytes for each of its numbers.
const LONGEST_LINE: usize = 1 << 27;

impl FlatOrders {
    /// Refuses lines that no layer could read, before memory is taken for their order.
    pub fn check(graph: &Graph) -> Result<(), String> {
        let mut lines = graph.nodes().map(|(_, node)| &node.shape).filter(|shape| shape.sizes().len() == 1);
        match lines.find(|shape| shape.per_row() > LONGEST_LINE) {
            Some(shape) => {
                Err(format!("a line of {} numbers is more than a machine can hold", shape.per_row()))
            }
            None => Ok(()),
        }
    }

    /// The orders of a graph that reads such rows; `reconstructs` says whether it answers with rows as well.
    pub fn of(graph: &Graph, input: Input, reconstructs: bool) -> FlatOrders {
        let mut orders = FlatOrders { known: vec![None; graph.nodes().len()], changed: true };
        if let (Some(answer), Input::Image(image), true) = (graph.answer, input, reconstructs)
            && graph.shape(answer).sizes().len() == 1
        {
            orders.set(answer, channels_first(image).into());
        }
        while std::mem::take(&mut orders.changed) {
            for (id, node) in graph.nodes() {
                orders.look(graph, id, node, input);
            }
        }
        orders
    }

    /// The order of a node's value; empty where it is that of memory.
    pub fn get(&self, id: NodeId) -> &[u32] {
        self.known[id.0].as_deref().unwrap_or_default()
    }

    /// What one node says about its own order and about that of what it reads.
    fn look(&mut self, graph: &Graph, id: NodeId, node: &Node, input: Input) {
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
                ([_], [_]) => self.join(id, node.inputs[0]),
                _ => {}
            },
            (Op::Elementwise(chain), [_]) => {
                self.join(id, node.inputs[0]);
                let steps = chain.steps.iter().filter(|step| step.takes_operand());
                for (step, operand) in steps.zip(&node.inputs[1..]) {
                    if matches!(step, Step::Add | Step::Multiply) {
                        self.join(id, *operand);
                    }
                }
            }
            (Op::Dropout(_) | Op::Softmax(_) | Op::Normalize(_), [_]) => self.join(id, node.inputs[0]),
            (Op::BatchNormalize(_) | Op::RunningNormalize(_), [_]) => self.join(id, node.inputs[0]),
            (Op::Concatenate(_), [_]) => {
                let order = self.side_by_side(graph, node);
                if !order.is_empty() {
                    self.set(id, order.into());
                }
            }
            _ => {}
        }
    }

    /// The order of lines behind each other, each of which keeps its own; empty where all have that of memory.
    pub fn side_by_side(&self, graph: &Graph, node: &Node) -> Vec<u32> {
        if node.inputs.iter().all(|input| self.get(*input).is_empty()) {
            return Vec::new();
        }
        let mut order = Vec::new();
        for input in &node.inputs {
            let (begin, len) = (order.len() as u32, graph.shape(*input).per_row() as u32);
            match self.get(*input) {
                [] => order.extend(begin..begin + len),
                own => order.extend(own.iter().map(|place| begin + place)),
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

    /// Two values have the same order.
    fn join(&mut self, one: NodeId, other: NodeId) {
        match (&self.known[one.0], &self.known[other.0]) {
            (Some(order), None) => self.set(other, Arc::clone(order)),
            (None, Some(order)) => self.set(one, Arc::clone(order)),
            _ => {}
        }
    }

    /// How files order each parameter of the graph.
    pub fn of_parameters(&self, graph: &Graph) -> Vec<Option<FileOrder>> {
        let mut found = vec![None; graph.parameters.len()];
        for (id, node) in graph.nodes() {
            let tensors = node.inputs.iter().enumerate();
            for (place, input) in tensors {
                let Op::Parameter(index) = graph.node(*input).op else { continue };
                if found[index].is_none() {
                    found[index] = self.of_tensor(graph, id, node, place);
                }
            }
        }
        found
    }

    /// How files order a tensor that a node reads at that place.
    fn of_tensor(&self, graph: &Graph, id: NodeId, node: &Node, place: usize) -> Option<FileOrder> {
        let sizes = graph.shape(node.inputs[place]).sizes().to_vec();
        let places = match (&node.op, place) {
            (Op::Convolution(_), 1) => return Some(FileOrder::ChannelsFirst),
            (Op::Product(product), 1) if !product.left_transposed => {
                let (read, own) = (self.get(node.inputs[0]).to_vec(), self.get(id).to_vec());
                if product.right_transposed { vec![own, read] } else { vec![read, own] }
            }
            (Op::Elementwise(_) | Op::BatchNormalize(_) | Op::RunningNormalize(_), 1..) => {
                vec![self.get(id).to_vec()]
            }
            _ => return None,
        };
        places.iter().any(|axis| !axis.is_empty()).then_some(FileOrder::Places { sizes, places })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use thalweg_core::{Model, Task};

    /// The order of a tensor of a network for images of 4 x 4 points in 2 channels.
    fn order(layers: &[&str], name: &str) -> Option<FileOrder> {
        let layers: Vec<String> = layers.iter().map(|text| text.to_string()).collect();
        let network = Network::build_for(&layers, Input::Image([4, 4, 2]), 3, Task::Classification).unwrap();
        let tensor = network.layout().tensors().iter().find(|tensor| tensor.name == name);
        tensor.unwrap().file_order.clone()
    }

    fn places(order: Option<FileOrder>) -> Vec<usize> {
        match order {
            Some(FileOrder::Places { places, .. }) => places.iter().map(Vec::len).collect(),
            _ => vec![],
        }
    }

    #[test]
    fn lines_that_no_machine_holds_are_refused_before_memory_is_taken() {
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
    fn a_flattened_image_reorders_all_that_reads_it() {
        let layers = ["conv 5 3x3", "flatten", "batchnorm", "relu", "dense 6", "dense auto"];
        assert_eq!(order(&layers, "layers.0.weight"), Some(FileOrder::ChannelsFirst));
        assert_eq!(order(&layers, "layers.0.bias"), None);
        for name in ["running_mean", "running_var", "weight", "bias"] {
            assert_eq!(places(order(&layers, &format!("layers.2.{name}"))), [20], "{name}");
        }
        assert_eq!(places(order(&layers, "layers.4.weight")), [0, 20]);
        assert_eq!(order(&layers, "layers.5.weight"), None);
    }

    #[test]
    fn a_line_that_becomes_an_image_reorders_what_made_it() {
        let layers = ["dense 12 tanh", "reshape 2x2x3", "conv 3 2x2", "dense auto"];
        assert_eq!(places(order(&layers, "layers.0.weight")), [12, 32], "rows of an image of two channels");
        assert_eq!(places(order(&layers, "layers.0.bias")), [12]);
        assert_eq!(order(&layers, "layers.3.weight"), None, "one point");
    }

    #[test]
    fn lines_side_by_side_keep_their_orders() {
        let layers = ["conv 2 1x1", "concat flatten | flatten & dense 3", "dense auto"];
        let Some(FileOrder::Places { places, .. }) = order(&layers, "layers.2.weight") else { panic!() };
        assert_eq!(places[1].len(), 35);
        assert_eq!(places[1][..3], [0, 2, 4]);
        assert_eq!(places[1][32..], [32, 33, 34]);
    }

    #[test]
    fn channels_of_an_image_stay() {
        let layers = ["conv 4 3x3", "batchnorm", "pool global", "dense auto"];
        assert_eq!(order(&layers, "layers.1.weight"), None);
        assert_eq!(order(&layers, "layers.3.weight"), None);
    }
}
