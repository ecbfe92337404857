//! Converts a training graph for inference: removes dropout, and replaces batch statistics by running ones.

use crate::graph::Graph;
use crate::op::Op;
use crate::op::batch_normalize::{BatchNormalize, RunningNormalize};

/// The graph of evaluation and prediction.
pub fn run(graph: &Graph) -> Graph {
    graph.rewrite(|new, _, op, inputs| match op {
        Op::Dropout(_) => inputs[0],
        Op::BatchNormalize(BatchNormalize { epsilon, momentum, .. }) => new.must_add(
            Op::RunningNormalize(RunningNormalize { epsilon: *epsilon, momentum: *momentum }),
            inputs,
        ),
        op => new.must_add(op.clone(), inputs),
    })
}
