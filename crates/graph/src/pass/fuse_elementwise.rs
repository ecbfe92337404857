//! Fuses consecutive elementwise chains: one pass over memory instead of two.

use super::{MAX_INPUTS, MAX_STEPS};
use crate::graph::Graph;
use crate::op::Op;
use crate::op::elementwise::Elementwise;

/// Merges every chain with the chain that is its input, if that has no other reader.
pub fn run(graph: &Graph) -> Graph {
    let uses = graph.uses();
    graph.rewrite(|new, id, op, inputs| {
        if let Op::Elementwise(after) = op
            && uses[graph.node(id).inputs[0].0] == 1
            && let Op::Elementwise(before) = &new.node(inputs[0]).op
            && before.steps.len() + after.steps.len() <= MAX_STEPS
        {
            let steps = [before.steps.as_slice(), after.steps.as_slice()].concat();
            let all = [new.node(inputs[0]).inputs.as_slice(), &inputs[1..]].concat();
            if all.len() <= MAX_INPUTS {
                return new.must_add(Op::Elementwise(Elementwise { steps }), &all);
            }
        }
        new.must_add(op.clone(), inputs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::dead_code;
    use crate::pass::tests::keeps_results;

    #[test]
    fn chains_are_merged() {
        let (before, after) = keeps_results(run);
        let longest = |graph: &Graph| {
            let length = |op: &Op| if let Op::Elementwise(chain) = op { chain.steps.len() } else { 0 };
            graph.nodes().map(|(_, node)| length(&node.op)).max()
        };
        assert_eq!((longest(&before), longest(&after)), (Some(1), Some(2)));
        assert!(dead_code::run(&after).nodes().len() < dead_code::run(&before).nodes().len());
    }
}
