//! Looks symbols up after the product instead of before it: a product with each symbol's vector, made once, instead of
//! one with every occurrence's.

use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::op::product::Product;

/// The graph with products of embeddings turned into embeddings of products. Comes before differentiation, which then
/// finds the cheaper way back as well. Where there are more symbols than a row shows, it would not pay.
pub fn run(graph: &Graph) -> Graph {
    let uses = graph.uses();
    graph.rewrite(|new, id, op, inputs| {
        if *op == Op::Product(Product::with_transposed())
            && uses[graph.node(id).inputs[0].0] == 1
            && let Some((lookup, table)) = small_lookup(new, inputs[0])
        {
            let product = new.must_add(op.clone(), &[table, inputs[1]]);
            return new.must_add(lookup, &[product]);
        }
        new.must_add(op.clone(), inputs)
    })
}

/// The lookup and its table, if a node is one that shows about as many symbols per row as there are.
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
    use crate::executor::Executor;
    use crate::pass::{dead_code, softmax_loss};
    use crate::plan::Plan;
    use crate::{Input, Network};
    use thalweg_core::{Batch, Features, Model, NoHooks, Targets, Task};

    #[test]
    fn results_stay_and_the_product_becomes_small() {
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
            let plan = Plan::gradients(&differentiate(&softmax_loss::run(graph)), network.layout());
            let mut gradient = vec![f32::NAN; parameters.len()];
            let layout = network.layout();
            let run = Executor::default().run(
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
