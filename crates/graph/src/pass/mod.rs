//! Graph passes: pure functions from a graph to an equivalent, cheaper one; only `inference` changes what is computed.
//!
//! [`embedding_products`], [`hoist_max_pool`], [`fuse_softmax_loss`] and [`inference`] come before differentiation,
//! then the others in the order of [`optimize`].

pub mod common_subexpression;
pub mod constant_folding;
pub mod copy_elimination;
pub mod dead_code;
pub mod embedding_products;
pub mod feature_products;
pub mod fuse_elementwise;
pub mod fuse_epilogue;
pub mod fuse_softmax_loss;
pub mod hoist_max_pool;
pub mod inference;

use crate::graph::Graph;

/// Most inputs of a fused node: the executor keeps them in an array on the stack.
pub(crate) const MAX_INPUTS: usize = 8;

/// Most steps of a fused chain: fusion copies the chain for every step, so that an unbounded one would cost quadratic
/// time.
pub(crate) const MAX_STEPS: usize = 64;

/// Runs all passes that follow differentiation, each followed by dead code elimination.
pub fn optimize(graph: &Graph) -> Graph {
    let passes = [
        dead_code::run,
        constant_folding::run,
        common_subexpression::run,
        feature_products::run,
        fuse_elementwise::run,
        copy_elimination::run,
        fuse_epilogue::run,
    ];
    passes.iter().fold(graph.clone(), |graph, pass| dead_code::run(&pass(&graph)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::autodiff::differentiate;
    use crate::executor::PlanExecutor;
    use crate::network::Network;
    use crate::op::Op;
    use crate::plan::ExecutionPlan;
    use thalweg_core::{Batch, Features, Layout, Model, NoHooks, Rng, Targets};

    /// A differentiated network before any pass, with its layout.
    pub fn sample() -> (Graph, Layout) {
        let network = Network::with_inputs(5)
            .dense(7, Activation::Relu)
            .dense(4, Activation::Tanh)
            .dense(3, Activation::None)
            .classification()
            .unwrap();
        (differentiate(&fuse_softmax_loss::run(network.graph())), network.layout().clone())
    }

    /// The gradient that a graph gives for a fixed batch and fixed parameters.
    pub fn gradient(graph: &Graph, layout: &Layout) -> Vec<f32> {
        let mut rng = Rng::keyed(1, "pass", &[]);
        let parameters: Vec<f32> = (0..layout.len()).map(|_| rng.normal()).collect();
        let batch = Batch {
            epoch: 0,
            rows: (0..6).collect(),
            width: 5,
            features: Features::Dense((0..30).map(|_| rng.normal()).collect()),
            targets: Targets::Classes(vec![0, 1, 2, 2, 1, 0]),
        };
        let mut gradient = vec![f32::NAN; layout.len()];
        let plan = ExecutionPlan::for_gradients(graph, layout);
        let mut executor = PlanExecutor::default();
        executor.run(&plan, layout, &parameters, &mut gradient, &batch, 0.5, 0, &mut NoHooks).unwrap();
        gradient
    }

    /// Asserts that a pass preserves results up to rounding.
    pub fn keeps_results(pass: fn(&Graph) -> Graph) -> (Graph, Graph) {
        let (before, layout) = sample();
        let after = pass(&before);
        for (old, new) in gradient(&before, &layout).iter().zip(gradient(&after, &layout)) {
            assert!((old - new).abs() <= 1e-6 * (1.0 + old.abs()), "{old} became {new}");
        }
        (before, after)
    }

    #[test]
    fn all_passes_together_keep_results_and_remove_nodes() {
        let (before, after) = keeps_results(optimize);
        assert!(after.nodes().len() < before.nodes().len());
        let computing =
            |graph: &Graph| graph.nodes().filter(|(_, node)| matches!(node.op, Op::Elementwise(_))).count();
        assert_eq!(computing(&after), 0, "every element-wise step went into a product");
    }
}
