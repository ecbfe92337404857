//! From training to use: nothing is dropped, and running statistics stand in for those of a batch.

use crate::graph::Graph;
use crate::op::Op;
use crate::op::batch_normalize::{BatchNormalize, RunningNormalize};

/// The graph as evaluation and prediction see it.
pub fn run(graph: &Graph) -> Graph {
    graph.rewrite(|new, _, op, inputs| match op {
        Op::Dropout(_) => inputs[0],
        Op::BatchNormalize(BatchNormalize { epsilon, share, .. }) => {
            new.must_add(Op::RunningNormalize(RunningNormalize { epsilon: *epsilon, share: *share }), inputs)
        }
        op => new.must_add(op.clone(), inputs),
    })
}
