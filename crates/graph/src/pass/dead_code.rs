//! Leaves out what nobody wants.

use crate::graph::{Graph, NodeId};

/// The graph without the nodes that no root depends on.
pub fn run(graph: &Graph) -> Graph {
    let mut live = vec![false; graph.nodes().len()];
    graph.roots().for_each(|root| live[root.0] = true);
    for (id, node) in graph.nodes().rev() {
        if live[id.0] {
            node.inputs.iter().for_each(|input| live[input.0] = true);
        }
    }
    // A dead node is never read by a live one, so where it stands does not matter.
    graph.rewrite(|new, id, op, inputs| match live[id.0] {
        true => new.must_add(op.clone(), inputs),
        false => NodeId(usize::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::op::elementwise::Step;
    use crate::pass::tests::{keeps_results, sample};

    #[test]
    fn what_nobody_reads_goes() {
        keeps_results(run);
        let (mut graph, _) = sample();
        let clean = run(&graph);
        let answer = graph.answer.unwrap();
        graph.must_add(Op::step(Step::Scale(2.0)), &[answer]);
        assert_eq!(run(&graph), clean);
    }

    #[test]
    fn evaluation_does_not_keep_what_only_gradients_read() {
        let (mut graph, _) = sample();
        graph.gradients.clear();
        assert!(run(&graph).nodes().all(|(_, node)| !matches!(node.op, Op::Part(_))));
    }
}
