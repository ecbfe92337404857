//! Adds penalties on weights to a differentiated graph.

use crate::graph::Graph;
use crate::op::Op;
use crate::op::penalty::Penalty;
use thalweg_core::model::Role;

/// The graph with a penalty on every weight: on learned tensors of two sizes or more, not on biases and gains.
pub fn run(graph: &Graph, penalty: Penalty) -> Graph {
    let mut graph = graph.clone();
    for index in 0..graph.gradients.len() {
        let parameter = &graph.parameters[index];
        if parameter.role == Role::Trainable && parameter.shape.len() >= 2 {
            let weight = graph.must_add(Op::Parameter(index), &[]);
            graph.gradients[index] = graph.must_add(Op::Penalty(penalty), &[graph.gradients[index], weight]);
        }
    }
    graph
}
