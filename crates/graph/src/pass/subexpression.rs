//! Computes once what is written twice.

use crate::graph::Graph;
use std::collections::{HashMap, HashSet};

/// The graph with equal nodes merged: same operator and settings, same inputs. Gradients stay apart, since each is
/// written into a place of its own.
pub fn run(graph: &Graph) -> Graph {
    let own: HashSet<_> = graph.gradients.iter().copied().collect();
    let mut seen = HashMap::new();
    graph.rewrite(|new, id, op, inputs| {
        if own.contains(&id) {
            return new.must_add(op.clone(), inputs);
        }
        // An operator's text shows all of its settings.
        let key = (format!("{op:?}"), inputs.to_vec());
        *seen.entry(key).or_insert_with(|| new.must_add(op.clone(), inputs))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::op::elementwise::Step;
    use crate::pass::tests::{keeps_results, sample};

    #[test]
    fn equal_nodes_become_one() {
        keeps_results(run);
        let (mut graph, _) = sample();
        let answer = graph.answer.unwrap();
        let twice = [2.0, 2.0, 3.0].map(|factor| graph.must_add(Op::step(Step::Scale(factor)), &[answer]));
        graph.answer = Some(graph.must_add(Op::step(Step::Add), &twice[..2]));
        let before = graph.nodes().len();
        let after = run(&graph);
        assert!(after.nodes().len() < before);
        let sum = after.node(after.answer.unwrap());
        assert_eq!(sum.inputs[0], sum.inputs[1]);
    }
}
