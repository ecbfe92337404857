//! Takes the largest of a window before bias and activation instead of after them: both keep the order of numbers, so
//! the largest stays the largest, and they have fewer numbers left to work on, on the way back too.

use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::op::elementwise::Step;
use crate::op::pool::{Pool, Pooling};

/// The graph with every such pool as early as it can be. Comes before differentiation.
pub fn run(graph: &Graph) -> Graph {
    let uses = graph.uses();
    graph.rewrite(|new, id, op, inputs| {
        let (Op::Pool(Pool { pooling: Pooling::Largest, .. }), [value]) = (op, inputs) else {
            return new.must_add(op.clone(), inputs);
        };
        // The steps between the pool and what it could read instead, the last one first.
        let (mut old, mut base, mut steps) = (graph.node(id).inputs[0], *value, Vec::new());
        while uses[old.0] == 1
            && let Some(step) = kept_order(new, base)
        {
            let node = new.node(base);
            steps.push((step, node.inputs[1..].to_vec()));
            (old, base) = (graph.node(old).inputs[0], node.inputs[0]);
        }
        let pooled = new.must_add(op.clone(), &[base]);
        steps.into_iter().rev().fold(pooled, |value, (step, operands)| {
            new.must_add(Op::step(step), &[&[value][..], &operands].concat())
        })
    })
}

/// The step of a node that keeps the order of a channel's numbers.
fn kept_order(graph: &Graph, id: NodeId) -> Option<Step> {
    let Op::Elementwise(chain) = &graph.node(id).op else { return None };
    match chain.steps.as_slice() {
        [step @ Step::Bias] => Some(*step),
        [step @ Step::Activate(activation)] if activation.keeps_order() => Some(*step),
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

    /// What the pool behind such a convolution reads in the end.
    fn pooled(convolution: &str, pool: &str) -> Op {
        let layers = [convolution, pool, "flatten", "dense auto"].map(String::from);
        let network = Network::build_for(&layers, Input::Image([6, 6, 1]), 2, Task::Classification).unwrap();
        let after = run(network.graph());
        let pool = after.nodes().find(|(_, node)| matches!(node.op, Op::Pool(_))).unwrap().1;
        after.node(pool.inputs[0]).op.clone()
    }

    #[test]
    fn the_largest_is_taken_first() {
        assert!(matches!(pooled("conv 3 3x3", "pool max 2"), Op::Convolution(_)));
        for name in Activation::NAMES {
            let first = matches!(pooled(&format!("conv 3 3x3 {name}"), "pool max 2"), Op::Convolution(_));
            assert_eq!(first, !name.starts_with("gelu"), "{name}");
        }
        assert!(matches!(pooled("conv 3 3x3 relu", "pool mean 2"), Op::Elementwise(_)), "a mean is not kept");
    }
}
