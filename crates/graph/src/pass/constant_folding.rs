//! Constant folding, and removal of elementwise steps without effect.

use crate::activation::Activation;
use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::op::elementwise::{Elementwise, ElementwiseStep};

/// Evaluates chains over constants and removes identity steps.
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
        let has_effect = |step: &ElementwiseStep| {
            !matches!(step, ElementwiseStep::Activate(Activation::None) | ElementwiseStep::Scale(1.0))
        };
        let steps: Vec<ElementwiseStep> = chain.steps.iter().copied().filter(has_effect).collect();
        match steps.is_empty() && !chain.steps.is_empty() {
            true => inputs[0],
            false => new.must_add(Op::Elementwise(Elementwise { steps }), inputs),
        }
    })
}

/// The values of the inputs, if all are constants.
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
    fn constant_chains_are_evaluated() {
        keeps_results(run);
        let mut graph = Graph::default();
        let numbers = graph.must_add(Op::constant(&[1.0, -2.0, 3.0], &[3]), &[]);
        let bias = graph.must_add(Op::constant(&[0.5, 0.5, 0.5], &[3]), &[]);
        let sum = graph.must_add(Op::elementwise(ElementwiseStep::Bias), &[numbers, bias]);
        let positive = graph.must_add(Op::elementwise(ElementwiseStep::Activate(Activation::Relu)), &[sum]);
        graph.output = Some(graph.must_add(Op::elementwise(ElementwiseStep::Scale(1.0)), &[positive]));
        let folded = run(&graph);
        assert_eq!(folded.node(folded.output.unwrap()).op, Op::constant(&[1.5, 0.0, 3.5], &[3]));
    }

    #[test]
    fn identity_steps_are_removed() {
        let (before, _) = crate::pass::tests::sample();
        let mut graph = before.clone();
        let output = graph.output.unwrap();
        graph.output =
            Some(graph.must_add(Op::elementwise(ElementwiseStep::Activate(Activation::None)), &[output]));
        assert_eq!(run(&graph).output, run(&before).output);
    }
}
