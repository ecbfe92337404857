//! Strategies of local rounds under faults: audit clean, at most one round redone for a fault, the same model on all
//! ranks, and a loss near that of an undisturbed run.

use crate::invariants::{self, Bounds};
use crate::job;
use crate::schedule::Schedule;

/// Seeds of each strategy.
const SEEDS: u64 = 40;

/// Steps of a round, which does not divide those of an epoch.
const EVERY: u64 = 4;

fn assert_survives(strategy: &str, more: &[&str]) {
    let (preset, every) = (format!("strategy.preset={strategy}"), format!("strategy.merge.every={EVERY}"));
    let settings = [&preset, &every, "train.optimizer={kind='momentum', lr=0.05}"];
    let job = job::job(&[&settings, more].concat());
    let calm = job::run_job(job, 0, 4, &[], || ());
    let (span, loss) = (calm.duration(), calm.last("loss").unwrap());
    // Models that differ in the rows of each worker end apart; 63 rows leave much to chance.
    let bounds = Bounds { unit: EVERY, tolerance: 0.5 };
    let (mut redone, mut finished) = (0, 0);
    for seed in 0..SEEDS {
        let schedule = Schedule::draw(seed, span);
        let run = job::run_job(job, seed, schedule.world, &schedule.faults, || ());
        let figures = invariants::check(&schedule, &run, loss, bounds).unwrap_or_else(|reason| {
            panic!("{strategy}, seed {seed}: {reason}\n{} ranks, {:#?}", schedule.world, schedule.faults)
        });
        redone += figures.redone;
        finished += u64::from(figures.finished);
    }
    assert!(redone > 0 && finished > SEEDS / 2, "{strategy}: {redone} steps redone, {finished} finished");
}

#[test]
fn sparknet_survives_faults() {
    assert_survives("sparknet", &[]);
}

#[test]
fn block_momentum_survives_faults() {
    assert_survives("block-momentum", &[]);
}

#[test]
fn diloco_survives_faults() {
    assert_survives("diloco", &["strategy.merge.momentum=0.5"]);
}
