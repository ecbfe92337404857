//! Fuses elementwise chains into the preceding product as its epilogue and saves their node and buffer.

use super::{MAX_INPUTS, MAX_STEPS};
use crate::graph::Graph;
use crate::op::Op;
use crate::op::elementwise::Elementwise;

/// Makes every chain on the result of a product its epilogue, if the result has no other reader.
pub fn run(graph: &Graph) -> Graph {
    let uses = graph.uses();
    graph.rewrite(|new, id, op, inputs| {
        if let Op::Elementwise(chain) = op
            && uses[graph.node(id).inputs[0].0] == 1
            && let Some(fused) = extended(&new.node(inputs[0]).op, chain)
        {
            let all = [new.node(inputs[0]).inputs.as_slice(), &inputs[1..]].concat();
            if all.len() <= MAX_INPUTS {
                return new.must_add(fused, &all);
            }
        }
        new.must_add(op.clone(), inputs)
    })
}

/// A product with a chain appended to its epilogue; `None` if it cannot take it.
fn extended(op: &Op, chain: &Elementwise) -> Option<Op> {
    let own = match op {
        Op::Product(product) => &product.epilogue,
        Op::FeatureProduct(product) => &product.epilogue,
        Op::Convolution(convolution) => &convolution.epilogue,
        _ => return None,
    };
    if own.steps.len() + chain.steps.len() > MAX_STEPS {
        return None;
    }
    let mut op = op.clone();
    let epilogue = match &mut op {
        Op::Product(product) => &mut product.epilogue,
        Op::FeatureProduct(product) => &mut product.epilogue,
        Op::Convolution(convolution) => &mut convolution.epilogue,
        _ => return None,
    };
    epilogue.steps.extend_from_slice(&chain.steps);
    Some(op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::tests::keeps_results;

    #[test]
    fn bias_and_activation_become_epilogues() {
        let (_, after) = keeps_results(run);
        let texts: Vec<String> = after.nodes().map(|(_, node)| node.op.operator().describe()).collect();
        assert!(texts.contains(&"product a b' + bias + relu".to_string()), "{texts:?}");
        assert!(texts.contains(&"product a b + tanh'".to_string()), "{texts:?}");
    }
}
