//! Lets products with the features read them in whatever form they come, so that sparse rows are never written out.

use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::op::feature_product::{FeatureGradient, FeatureProduct};
use crate::op::product::Product;

/// The graph with products of flat features replaced.
pub fn run(graph: &Graph) -> Graph {
    graph.rewrite(|new, _, op, inputs| {
        if let Op::Product(product) = op {
            if *product == Product::with_transposed() && flat_width(new, inputs[0]).is_some() {
                let op = Op::FeatureProduct(FeatureProduct::default());
                return new.must_add(op, &inputs[1..]);
            }
            if *product == Product::over_rows()
                && let Some(width) = flat_width(new, inputs[1])
            {
                return new.must_add(Op::FeatureGradient(FeatureGradient { width }), &inputs[..1]);
            }
        }
        new.must_add(op.clone(), inputs)
    })
}

/// The number of columns, if a node is the features as plain rows.
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
    fn the_features_are_read_where_they_lie() {
        let (_, after) = keeps_results(run);
        let after = dead_code::run(&after);
        assert!(after.nodes().all(|(_, node)| !matches!(node.op, Op::Features(_))));
        assert!(after.nodes().any(|(_, node)| matches!(node.op, Op::FeatureGradient(_))));
    }
}
