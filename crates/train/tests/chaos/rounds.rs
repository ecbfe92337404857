//! Strategies of local rounds under faults: audit clean, at most one round redone for a fault, the same model on all
//! ranks, an accuracy within a point of those of undisturbed runs.

use crate::invariants::Bounds;
use crate::job;
use crate::sweep::Sweep;
use std::ops::RangeInclusive;

/// Seeds of each strategy, unless `THALWEG_SEEDS` is more.
const SEEDS: u64 = 40;

/// Steps of a round, which does not divide those of an epoch.
const EVERY: u64 = 4;

/// Every worker adds its rows to a model of its own, so the merged model depends on the groups that trained it: if workers
/// leave in good order, so that nothing is lost, DiLoCo ends between 0.849 and 0.883 (13 of the 385 validation rows). A run
/// under faults ends within a point of such runs. Whether training was lost shows in the loss, and in the mean of all seeds.
const BOUNDS: Bounds = Bounds { unit: EVERY, loss: 0.12, accuracy: 0.0105 };
const GROUPS: RangeInclusive<usize> = 1..=6;
const MOMENTS: u32 = 20;

/// Of the mean accuracy of many seeds, below that of the run without faults.
const MEAN_ACCURACY: f64 = 0.005;

fn sweep(test: &'static str, strategy: &str, more: &[&str]) -> Sweep {
    let (preset, every) = (format!("strategy.preset={strategy}"), format!("strategy.merge.every={EVERY}"));
    let settings = [&preset, &every, "train.optimizer={kind='momentum', lr=0.02}"];
    Sweep::new(test, job::job(&[&settings, more].concat()), BOUNDS).with_groups(GROUPS, MOMENTS)
}

fn assert_survives(test: &'static str, strategy: &str, more: &[&str]) {
    let sweep = sweep(test, strategy, more);
    if let Some(summary) = sweep.run(SEEDS) {
        let (redone, received) =
            (summary.sum(|figures| figures.redone), summary.sum(|figures| figures.received));
        let enough = redone > 0 && received > 0 && summary.finished() > summary.count / 2;
        assert!(enough, "{strategy}: too few faults");
        let mean = summary.mean(|figures| figures.accuracy_difference);
        assert!(mean > -MEAN_ACCURACY, "{strategy}: the accuracy is {mean:+.4} on average");
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

/// A slow momentum of 0.5 doubles the rate, so it is half of the others'. With their rate few rows decide: an undisturbed run in
/// which a worker joins before the last step of an epoch, of three rows, ends with a loss of 0.383 instead of 0.329.
const SLOWMO: &[&str] = &[
    "strategy.merge.momentum=0.5",
    "strategy.merge.optimizer_state=average",
    "train.optimizer={kind='momentum', lr=0.01}",
];

#[test]
fn seeds_keep_promises_of_slowmo() {
    assert_survives("seeds_keep_promises_of_slowmo", "slowmo", SLOWMO);
}

#[test]
fn seeds_keep_promises_of_post_local_sgd() {
    assert_survives("seeds_keep_promises_of_post_local_sgd", "post-local-sgd", &["strategy.merge.start=0.4"]);
}

/// New members learn how long rounds are by now.
#[test]
fn seeds_keep_promises_of_rounds_that_shorten() {
    let more = ["strategy.merge.adaptive_every=true"];
    assert_survives("seeds_keep_promises_of_rounds_that_shorten", "sparknet", &more);
}

/// Models of the workers' own, which no merge makes equal.
const OWN_MODELS: Bounds = Bounds { unit: EVERY, loss: 0.1, accuracy: 0.021 };

#[test]
fn seeds_keep_promises_of_mpca_sgd() {
    let settings = [
        "strategy.preset=mpca-sgd",
        &format!("strategy.merge.every={EVERY}"),
        "strategy.merge.penalty=0.5",
        "train.optimizer={kind='momentum', lr=0.02}",
    ];
    let sweep = Sweep::new("seeds_keep_promises_of_mpca_sgd", job::job(&settings), OWN_MODELS);
    if let Some(summary) = sweep.run(SEEDS) {
        let (redone, at_risk) =
            (summary.sum(|figures| figures.redone), summary.sum(|figures| figures.at_risk));
        assert!(redone > 0 && at_risk > 0 && summary.finished() > summary.count / 2, "too few faults");
    }
}

/// The first two found a bug once: a rank that had passed the end of an epoch did not repeat it with those that had not. In those
/// of `slowmo` workers join before the last step of an epoch.
#[test]
fn seeds_of_rounds_that_once_failed_keep_their_promises() {
    sweep("block_momentum", "block-momentum", &[]).run_again(&[9352]);
    sweep("diloco", "diloco", &["strategy.merge.momentum=0.5"]).run_again(&[4777]);
    sweep("slowmo", "slowmo", SLOWMO).run_again(&[545, 675, 789, 2135]);
}
