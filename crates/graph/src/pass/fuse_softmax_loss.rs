//! Fuses softmax with cross-entropy: one pass over the logits, and no logarithm of a probability that rounds to 0.

use crate::graph::Graph;
use crate::op::Op;
use crate::op::cross_entropy::CrossEntropy;

/// Makes every cross-entropy of a softmax read the logits. Runs before differentiation.
pub fn run(graph: &Graph) -> Graph {
    graph.rewrite(|new, _, op, inputs| {
        if let Op::CrossEntropy(CrossEntropy { of_logits: false }) = op
            && let Op::Softmax(_) = new.node(inputs[0]).op
        {
            let logits = new.node(inputs[0]).inputs[0];
            return new.must_add(Op::CrossEntropy(CrossEntropy { of_logits: true }), &[logits]);
        }
        new.must_add(op.clone(), inputs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;
    use crate::autodiff::differentiate;
    use crate::network::Network;
    use crate::pass::tests::gradient;
    use thalweg_core::Model;

    #[test]
    fn fused_and_separate_gradients_agree() {
        let network = Network::with_inputs(5).dense(3, Activation::None).classification().unwrap();
        let (graph, layout) = (network.graph(), network.layout());
        let separate = gradient(&differentiate(graph), layout);
        let fused = gradient(&differentiate(&run(graph)), layout);
        for (separate, fused) in separate.iter().zip(fused) {
            assert!((separate - fused).abs() < 1e-5, "{separate} {fused}");
        }
    }
}
