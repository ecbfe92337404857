//! Common subexpression elimination.

use crate::graph::Graph;
use std::collections::{HashMap, HashSet};

/// Merges nodes with equal operators, settings and inputs. Gradients are not merged, since each is written into its
/// own range of the gradient buffer.
pub fn run(graph: &Graph) -> Graph {
    let own: HashSet<_> = graph.gradients.iter().copied().collect();
    let mut seen = HashMap::new();
    graph.rewrite(|new, id, op, inputs| {
        if own.contains(&id) {
            return new.must_add(op.clone(), inputs);
        }
        // The debug text of an operator contains all of its settings.
        let key = (format!("{op:?}"), inputs.to_vec());
        *seen.entry(key).or_insert_with(|| new.must_add(op.clone(), inputs))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::op::elementwise::ElementwiseStep;
    use crate::pass::tests::{keeps_results, sample};

    #[test]
    fn equal_nodes_are_merged() {
        keeps_results(run);
        let (mut graph, _) = sample();
        let output = graph.output.unwrap();
        let scale = |factor| Op::elementwise(ElementwiseStep::Scale(factor));
        let twice = [2.0, 2.0, 3.0].map(|factor| graph.must_add(scale(factor), &[output]));
        graph.output = Some(graph.must_add(Op::elementwise(ElementwiseStep::Add), &twice[..2]));
        let before = graph.nodes().len();
        let after = run(&graph);
        assert!(after.nodes().len() < before);
        let sum = after.node(after.output.unwrap());
        assert_eq!(sum.inputs[0], sum.inputs[1]);
    }
}
