//! Moves embedding lookups behind a following product: one product per symbol of the vocabulary instead of one per
//! occurrence.

use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::op::product::Product;

/// Turns products of embeddings into embeddings of products. Runs before differentiation, so that the backward pass
/// gets cheaper too. Skips large vocabularies, for which it would not pay.
pub fn run(graph: &Graph) -> Graph {
    let uses = graph.uses();
    graph.rewrite(|new, id, op, inputs| {
        if *op == Op::Product(Product::transposed_right())
            && uses[graph.node(id).inputs[0].0] == 1
            && let Some((lookup, table)) = small_lookup(new, inputs[0])
        {
            let product = new.must_add(op.clone(), &[table, inputs[1]]);
            return new.must_add(lookup, &[product]);
        }
        new.must_add(op.clone(), inputs)
    })
}

/// The lookup and its table, if a node is an embedding whose vocabulary is at most twice the symbols per row.
fn small_lookup(graph: &Graph, id: NodeId) -> Option<(Op, NodeId)> {
    let node = graph.node(id);
    match node.op {
        Op::Embedding(embedding) if graph.shape(node.inputs[0]).sizes()[0] <= 2 * embedding.window => {
            Some((node.op.clone(), node.inputs[0]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autodiff::differentiate;
    use crate::executor::PlanExecutor;
    use crate::pass::{dead_code, fuse_softmax_loss};
    use crate::plan::ExecutionPlan;
    use crate::{Input, Network};
    use thalweg_core::{Batch, Features, Model, NoHooks, Targets, Task};

    #[test]
    fn results_are_kept_and_the_product_has_no_rows() {
        let layers = ["embedding 3", "lstm 2", "dense auto"].map(String::from);
        let input = Input::Symbols { window: 5, vocabulary: 4 };
        let network = Network::build_for(&layers, input, 4, Task::Classification).unwrap();
        let batch = Batch {
            epoch: 0,
            rows: vec![0, 1],
            width: 20,
            features: Features::Tokens {
                symbols: vec![0, 1, 2, 3, 0, 3, 3, 1, 0, 2],
                window: 5,
                vocabulary: 4,
            },
            targets: Targets::Classes(vec![1, 2]),
        };
        let mut parameters = vec![0.0; network.layout().len()];
        network.initialize(3, &mut parameters);
        let gradient = |graph: &Graph| {
            let plan = ExecutionPlan::for_gradients(
                &differentiate(&fuse_softmax_loss::run(graph)),
                network.layout(),
            );
            let mut gradient = vec![f32::NAN; parameters.len()];
            let layout = network.layout();
            let run = PlanExecutor::default().run(
                &plan,
                layout,
                &parameters,
                &mut gradient,
                &batch,
                1.0,
                0,
                &mut NoHooks,
            );
            run.map(|_| gradient).unwrap()
        };
        let moved = dead_code::run(&run(network.graph()));
        for (before, after) in gradient(network.graph()).iter().zip(gradient(&moved)) {
            assert!((before - after).abs() < 1e-5, "{before} {after}");
        }
        let rows = |graph: &Graph| {
            let products = graph.nodes().filter(|(_, node)| matches!(node.op, Op::Product(_)));
            products.filter(|(_, node)| node.shape.has_rows()).count()
        };
        assert_eq!((rows(network.graph()), rows(&moved)), (2, 1));
    }
}
