//! Moves max pooling before bias and monotonic activations: the maximum stays the same, and they run on fewer
//! elements, in the backward pass too.

use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::op::elementwise::ElementwiseStep;
use crate::op::pool::{Pool, Pooling};

/// Moves every max pool as early as possible. Runs before differentiation.
pub fn run(graph: &Graph) -> Graph {
    let uses = graph.uses();
    graph.rewrite(|new, id, op, inputs| {
        let (Op::Pool(Pool { pooling: Pooling::Max, .. }), [value]) = (op, inputs) else {
            return new.must_add(op.clone(), inputs);
        };
        // The steps between the pool and its new input, last one first.
        let (mut old, mut base, mut steps) = (graph.node(id).inputs[0], *value, Vec::new());
        while uses[old.0] == 1
            && let Some(step) = monotonic_step(new, base)
        {
            let node = new.node(base);
            steps.push((step, node.inputs[1..].to_vec()));
            (old, base) = (graph.node(old).inputs[0], node.inputs[0]);
        }
        let pooled = new.must_add(op.clone(), &[base]);
        steps.into_iter().rev().fold(pooled, |value, (step, operands)| {
            new.must_add(Op::elementwise(step), &[&[value][..], &operands].concat())
        })
    })
}

/// The step of a node that preserves the order of the elements of a channel.
fn monotonic_step(graph: &Graph, id: NodeId) -> Option<ElementwiseStep> {
    let Op::Elementwise(chain) = &graph.node(id).op else { return None };
    match chain.steps.as_slice() {
        [step @ ElementwiseStep::Bias] => Some(*step),
        [step @ ElementwiseStep::Activate(activation)] if activation.is_monotonic() => Some(*step),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::input::Input;
    use crate::network::Network;
    use thalweg_core::Task;

    /// The input of the pool after the pass.
    fn pooled(convolution: &str, pool: &str) -> Op {
        let layers = [convolution, pool, "flatten", "dense auto"].map(String::from);
        let network = Network::build_for(&layers, Input::Image([6, 6, 1]), 2, Task::Classification).unwrap();
        let after = run(network.graph());
        let pool = after.nodes().find(|(_, node)| matches!(node.op, Op::Pool(_))).unwrap().1;
        after.node(pool.inputs[0]).op.clone()
    }

    #[test]
    fn max_pools_move_before_monotonic_steps() {
        assert!(matches!(pooled("conv 3 3x3", "pool max 2"), Op::Convolution(_)));
        for name in Activation::NAMES {
            let first = matches!(pooled(&format!("conv 3 3x3 {name}"), "pool max 2"), Op::Convolution(_));
            assert_eq!(first, !name.starts_with("gelu"), "{name}");
        }
        assert!(
            matches!(pooled("conv 3 3x3 relu", "pool mean 2"), Op::Elementwise(_)),
            "a mean pool does not move"
        );
    }
}
