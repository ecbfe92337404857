//! Computes ahead what does not depend on the batch or on parameters, and drops steps that do nothing.

use crate::activation::Activation;
use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::op::elementwise::{Elementwise, Step};

/// The graph with chains over constants computed, and steps that change nothing left out.
pub fn run(graph: &Graph) -> Graph {
    graph.rewrite(|new, id, op, inputs| {
        let Op::Elementwise(chain) = op else { return new.must_add(op.clone(), inputs) };
        if let Some(values) = values_of(new, inputs) {
            let (first, operands) = values.split_at(1);
            let mut result = first[0].to_vec();
            chain.apply(&mut result, graph.shape(id).width(), operands);
            let sizes = graph.shape(id).sizes();
            return new.must_add(Op::constant(&result, sizes), &[]);
        }
        let useful = |step: &Step| !matches!(step, Step::Activate(Activation::None) | Step::Scale(1.0));
        let steps: Vec<Step> = chain.steps.iter().copied().filter(useful).collect();
        match steps.is_empty() && !chain.steps.is_empty() {
            true => inputs[0],
            false => new.must_add(Op::Elementwise(Elementwise { steps }), inputs),
        }
    })
}

/// The inputs' numbers, if all of them are known.
fn values_of<'a>(graph: &'a Graph, inputs: &[NodeId]) -> Option<Vec<&'a [f32]>> {
    let value = |input: &NodeId| match &graph.node(*input).op {
        Op::Constant(constant) => Some(&constant.values[..]),
        _ => None,
    };
    inputs.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::tests::keeps_results;

    #[test]
    fn known_numbers_are_computed_ahead() {
        keeps_results(run);
        let mut graph = Graph::default();
        let numbers = graph.must_add(Op::constant(&[1.0, -2.0, 3.0], &[3]), &[]);
        let bias = graph.must_add(Op::constant(&[0.5, 0.5, 0.5], &[3]), &[]);
        let sum = graph.must_add(Op::step(Step::Bias), &[numbers, bias]);
        let positive = graph.must_add(Op::step(Step::Activate(Activation::Relu)), &[sum]);
        graph.answer = Some(graph.must_add(Op::step(Step::Scale(1.0)), &[positive]));
        let folded = run(&graph);
        assert_eq!(folded.node(folded.answer.unwrap()).op, Op::constant(&[1.5, 0.0, 3.5], &[3]));
    }

    #[test]
    fn steps_that_do_nothing_go() {
        let (before, _) = crate::pass::tests::sample();
        let mut graph = before.clone();
        let answer = graph.answer.unwrap();
        graph.answer = Some(graph.must_add(Op::step(Step::Activate(Activation::None)), &[answer]));
        assert_eq!(run(&graph).answer, run(&before).answer);
    }
}
