//! Averages with neighbours under faults: workers go on from different steps, each with its own model. Audit clean, at most
//! one step redone for a fault, the same published model on all ranks, an accuracy near that of an undisturbed run.

use crate::invariants::Bounds;
use crate::job;
use crate::sweep::Sweep;

/// Seeds of each graph, unless `THALWEG_SEEDS` is more.
const SEEDS: u64 = 40;

/// Models that differ in the rows of each worker end apart. A point of accuracy is 4 of the 385 validation rows.
const BOUNDS: Bounds = Bounds { unit: 1, loss: 0.5, accuracy: 0.021 };

fn assert_survives(test: &'static str, more: &[&str]) {
    let settings = ["strategy.preset=dpsgd", "train.optimizer={kind='momentum', lr=0.02}"];
    let sweep = Sweep::new(test, job::job(&[&settings, more].concat()), BOUNDS);
    if let Some(summary) = sweep.run(SEEDS) {
        let generations = summary.sum(|figures| figures.generations);
        assert!(generations > summary.count && summary.finished() > summary.count / 2, "too few faults");
    }
}

#[test]
fn seeds_keep_promises_of_dpsgd_in_a_ring() {
    // Checkpoints collect the rows of all workers within an epoch.
    assert_survives("seeds_keep_promises_of_dpsgd_in_a_ring", &["fault.checkpoint_every=5"]);
}

#[test]
fn seeds_keep_promises_of_dpsgd_with_edges_of_its_own() {
    assert_survives(
        "seeds_keep_promises_of_dpsgd_with_edges_of_its_own",
        &["strategy.neighbours.graph=[[0, 1], [1, 2], [2, 3]]", "strategy.neighbours.mix=after"],
    );
}
