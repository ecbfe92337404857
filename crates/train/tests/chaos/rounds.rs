//! Strategies of local rounds under faults: audit clean, at most one round redone for a fault, the same model on all
//! ranks, an accuracy within a point of that of an undisturbed run.

use crate::invariants::Bounds;
use crate::job;
use crate::sweep::Sweep;

/// Seeds of each strategy, unless `THALWEG_SEEDS` is more.
const SEEDS: u64 = 40;

/// Steps of a round, which does not divide those of an epoch.
const EVERY: u64 = 4;

/// Models that differ in the rows of each worker end apart. A point of accuracy is 4 of the 385 validation rows.
const BOUNDS: Bounds = Bounds { unit: EVERY, loss: 0.5, accuracy: 0.0105 };

fn assert_survives(test: &'static str, strategy: &str, more: &[&str]) {
    let (preset, every) = (format!("strategy.preset={strategy}"), format!("strategy.merge.every={EVERY}"));
    let settings = [&preset, &every, "train.optimizer={kind='momentum', lr=0.02}"];
    let sweep = Sweep::new(test, job::job(&[&settings, more].concat()), BOUNDS);
    if let Some(summary) = sweep.run(SEEDS) {
        let (redone, received) =
            (summary.sum(|figures| figures.redone), summary.sum(|figures| figures.received));
        let enough = redone > 0 && received > 0 && summary.finished() > summary.count / 2;
        assert!(enough, "{strategy}: too few faults");
    }
}

#[test]
fn seeds_keep_promises_of_sparknet() {
    assert_survives("seeds_keep_promises_of_sparknet", "sparknet", &[]);
}

#[test]
fn seeds_keep_promises_of_block_momentum() {
    assert_survives("seeds_keep_promises_of_block_momentum", "block-momentum", &[]);
}

#[test]
fn seeds_keep_promises_of_diloco() {
    assert_survives("seeds_keep_promises_of_diloco", "diloco", &["strategy.merge.momentum=0.5"]);
}
