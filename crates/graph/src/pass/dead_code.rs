//! Dead code elimination.

use crate::graph::{Graph, NodeId};

/// Removes the nodes that no root depends on.
pub fn run(graph: &Graph) -> Graph {
    let mut live = vec![false; graph.nodes().len()];
    graph.roots().for_each(|root| live[root.0] = true);
    for (id, node) in graph.nodes().rev() {
        if live[id.0] {
            node.inputs.iter().for_each(|input| live[input.0] = true);
        }
    }
    // No live node reads a dead one, so its new id does not matter.
    graph.rewrite(|new, id, op, inputs| match live[id.0] {
        true => new.must_add(op.clone(), inputs),
        false => NodeId(usize::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::op::elementwise::ElementwiseStep;
    use crate::pass::tests::{keeps_results, sample};

    #[test]
    fn unread_nodes_are_removed() {
        keeps_results(run);
        let (mut graph, _) = sample();
        let clean = run(&graph);
        let output = graph.output.unwrap();
        graph.must_add(Op::elementwise(ElementwiseStep::Scale(2.0)), &[output]);
        assert_eq!(run(&graph), clean);
    }

    #[test]
    fn evaluation_has_no_side_outputs_for_gradients() {
        let (mut graph, _) = sample();
        graph.gradients.clear();
        assert!(run(&graph).nodes().all(|(_, node)| !matches!(node.op, Op::SideOutput(_))));
    }
}
