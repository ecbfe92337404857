//! Removes copies of values without another reader.

use crate::graph::Graph;
use crate::op::Op;

/// Removes every copy whose input is computed for the copy alone.
pub fn run(graph: &Graph) -> Graph {
    let uses = graph.uses();
    graph.rewrite(|new, id, op, inputs| {
        if let Op::Elementwise(chain) = op
            && chain.steps.is_empty()
            && uses[graph.node(id).inputs[0].0] == 1
            && computes(&new.node(inputs[0]).op)
        {
            return inputs[0];
        }
        new.must_add(op.clone(), inputs)
    })
}

/// Whether a node writes its result itself, so that it can write it to the destination of the copy.
fn computes(op: &Op) -> bool {
    !matches!(op, Op::Parameter(_) | Op::SideOutput(_) | Op::Features(_) | Op::Constant(_))
        && !op.operator().is_view()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::tests::keeps_results;

    #[test]
    fn gradients_are_written_in_place() {
        let (_, after) = keeps_results(run);
        assert!(after.gradients.iter().all(|id| !matches!(after.node(*id).op, Op::Elementwise(_))));
    }
}
