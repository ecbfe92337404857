//! Strategies of local rounds under faults: audit clean, at most one round redone for a fault, the same model on all
//! ranks, an accuracy within a point of that of an undisturbed run.

use crate::invariants::{self, Bounds, Undisturbed};
use crate::schedule::Schedule;
use crate::{asked, job};

/// Seeds of each strategy, unless `THALWEG_SEEDS` is more.
const SEEDS: u64 = 40;

/// Steps of a round, which does not divide those of an epoch.
const EVERY: u64 = 4;

/// Models that differ in the rows of each worker end apart. A point of accuracy is 4 of the 385 validation rows.
const BOUNDS: Bounds = Bounds { unit: EVERY, loss: 0.5, accuracy: 0.0105 };

fn assert_survives(test: &str, strategy: &str, more: &[&str]) {
    let (preset, every) = (format!("strategy.preset={strategy}"), format!("strategy.merge.every={EVERY}"));
    let settings = [&preset, &every, "train.optimizer={kind='momentum', lr=0.02}"];
    let job = job::job(&[&settings, more].concat());
    let undisturbed = Undisturbed::of(&job::run_job(job, 0, 4, &[], || ()));
    let (first, count) = match asked("THALWEG_SEED") {
        Some(seed) => (seed, 1),
        None => (asked("THALWEG_FIRST_SEED").unwrap_or(0), asked("THALWEG_SEEDS").unwrap_or(0).max(SEEDS)),
    };
    let (mut redone, mut finished, mut received, mut worst) = (0, 0, 0, 0f64);
    for seed in first..first + count {
        let schedule = Schedule::draw(seed, undisturbed.duration);
        let run = job::run_job(job, seed, schedule.world, &schedule.faults, || ());
        let figures = invariants::check(&schedule, &run, &undisturbed, BOUNDS).unwrap_or_else(|reason| {
            panic!(
                "{strategy}, seed {seed}: {reason}\n{} ranks, {:#?}\nreproduce: THALWEG_SEED={seed} cargo test -p thalweg-train --test chaos -- {test}",
                schedule.world, schedule.faults
            )
        });
        redone += figures.redone;
        received += figures.received;
        finished += u64::from(figures.finished);
        worst = worst.max(figures.accuracy_difference);
    }
    println!(
        "{strategy}: {count} seeds from {first} on, {redone} steps redone, {received} new members, {finished} jobs finished; the accuracy is at \
         most {worst:.4} from {:.4}",
        undisturbed.accuracy
    );
    assert!(count == 1 || redone > 0 && received > 0 && finished > count / 2, "{strategy}: too few faults");
}

#[test]
fn seeds_keep_promises_of_sparknet() {
    assert_survives("sparknet", "sparknet", &[]);
}

#[test]
fn seeds_keep_promises_of_block_momentum() {
    assert_survives("block_momentum", "block-momentum", &[]);
}

#[test]
fn seeds_keep_promises_of_diloco() {
    assert_survives("diloco", "diloco", &["strategy.merge.momentum=0.5"]);
}
