//! Replaces products of the features by operators that read them sparse or dense, so that sparse rows need no dense
//! copy.

use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::op::feature_product::{FeatureGradient, FeatureProduct};
use crate::op::product::Product;

/// Replaces the products of flat features.
pub fn run(graph: &Graph) -> Graph {
    graph.rewrite(|new, _, op, inputs| {
        if let Op::Product(product) = op {
            if *product == Product::transposed_right() && flat_width(new, inputs[0]).is_some() {
                let op = Op::FeatureProduct(FeatureProduct::default());
                return new.must_add(op, &inputs[1..]);
            }
            if *product == Product::transposed_left()
                && let Some(width) = flat_width(new, inputs[1])
            {
                return new.must_add(Op::FeatureGradient(FeatureGradient { width }), &inputs[..1]);
            }
        }
        new.must_add(op.clone(), inputs)
    })
}

/// The number of columns, if a node is the features as flat vectors.
fn flat_width(graph: &Graph, node: NodeId) -> Option<usize> {
    match &graph.node(node).op {
        Op::Features(features) if features.sizes.len() == 1 => Some(features.sizes[0]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::dead_code;
    use crate::pass::tests::keeps_results;

    #[test]
    fn the_features_are_read_in_place() {
        let (_, after) = keeps_results(run);
        let after = dead_code::run(&after);
        assert!(after.nodes().all(|(_, node)| !matches!(node.op, Op::Features(_))));
        assert!(after.nodes().any(|(_, node)| matches!(node.op, Op::FeatureGradient(_))));
    }
}
