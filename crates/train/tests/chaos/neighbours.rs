//! Averages with neighbours under faults: workers go on from different steps, each with its own model. Audit clean, at most
//! one step redone for a fault, the same published model on all ranks, an accuracy near that of an undisturbed run.

use crate::invariants::{self, Bounds, Undisturbed};
use crate::schedule::Schedule;
use crate::{asked, job};
use thalweg_core::event::Event;

/// Seeds of each graph, unless `THALWEG_SEEDS` is more.
const SEEDS: u64 = 40;

/// Models that differ in the rows of each worker end apart. A point of accuracy is 4 of the 385 validation rows.
const BOUNDS: Bounds = Bounds { unit: 1, loss: 0.5, accuracy: 0.021 };

fn assert_survives(test: &str, more: &[&str]) {
    let settings = ["strategy.preset=dpsgd", "train.optimizer={kind='momentum', lr=0.02}"];
    let job = job::job(&[&settings, more].concat());
    let undisturbed = Undisturbed::of(&job::run_job(job, 0, 4, &[], || ()));
    let (first, count) = match asked("THALWEG_SEED") {
        Some(seed) => (seed, 1),
        None => (asked("THALWEG_FIRST_SEED").unwrap_or(0), asked("THALWEG_SEEDS").unwrap_or(0).max(SEEDS)),
    };
    let (mut generations, mut finished, mut at_risk, mut worst) = (0, 0, 0, 0f64);
    for seed in first..first + count {
        let schedule = Schedule::draw(seed, undisturbed.duration);
        let run = job::run_job(job, seed, schedule.world, &schedule.faults, || ());
        let figures = invariants::check(&schedule, &run, &undisturbed, BOUNDS).unwrap_or_else(|reason| {
            let causes: Vec<String> = run.events().flat_map(losses).collect();
            panic!(
                "{more:?}, seed {seed}: {reason}\nlosses: {causes:#?}\n{} ranks, {:#?}\nreproduce: THALWEG_SEED={seed} cargo test -p thalweg-train --test chaos -- {test}",
                schedule.world, schedule.faults
            )
        });
        generations += figures.generations;
        finished += u64::from(figures.finished);
        at_risk += rows_at_risk(&run);
        worst = worst.max(figures.accuracy_difference);
    }
    println!(
        "{more:?}: {count} seeds from {first} on, {generations} generations, {at_risk} rows at risk, {finished} jobs finished; the \
         accuracy is at most {worst:.4} from {:.4}",
        undisturbed.accuracy
    );
    assert!(count == 1 || generations > count && finished > count / 2, "too few faults");
}

/// What the group said of the losses of a change.
fn losses(event: &Event) -> Vec<String> {
    match event {
        Event::Regrouped { lost, step, .. } => lost
            .iter()
            .map(|culprit| format!("rank {} at step {step}: {}", culprit.rank, culprit.cause))
            .collect(),
        _ => Vec::new(),
    }
}

fn rows_at_risk(run: &job::Run) -> u64 {
    let at_risk = run.events().map(|event| match event {
        Event::Epoch { audit, .. } => audit.at_risk.unwrap_or(0),
        _ => 0,
    });
    at_risk.sum()
}

#[test]
fn seeds_keep_promises_of_dpsgd_in_a_ring() {
    // Checkpoints collect the rows of all workers within an epoch.
    assert_survives("dpsgd_in_a_ring", &["fault.checkpoint_every=5"]);
}

#[test]
fn seeds_keep_promises_of_dpsgd_with_edges_of_its_own() {
    assert_survives(
        "dpsgd_with_edges",
        &["strategy.neighbours.graph=[[0, 1], [1, 2], [2, 3]]", "strategy.neighbours.mix=after"],
    );
}
