//! MPCA-SGD without a data gradient: what the penalty alone makes of workers that start from different models.

mod harness;

use harness::still::{Seen, StillModels};
use std::time::Duration;
use thalweg_cluster::engine::simulated;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_comm::transport::sim::{Network as Simulated, SimulatedFault, SimulatedFaultKind};
use thalweg_core::event::{Event, Outcome};
use thalweg_core::spec::JobLayers;
use thalweg_train::{Assignment, registry};

const WORKERS: usize = 4;
const TAU: usize = 5;

/// The parameter of each worker at each of its steps, from a worker's number on.
fn still(steps: usize, (rho, gamma): (f32, f32)) -> Vec<Vec<f32>> {
    let settings = [
        "strategy.preset=mpca-sgd",
        &format!("strategy.merge.penalty={rho}"),
        &format!("strategy.merge.extrapolation={gamma}"),
        &format!("strategy.merge.every={TAU}"),
        &format!("engine.workers={WORKERS}"),
        &format!("train.global_batch={WORKERS}"),
        &format!("train.max_steps={steps}"),
        "train.optimizer={kind='sgd', lr=0.1}",
        "fault.checkpoint_every=0",
    ];
    let mut layers = JobLayers::default();
    settings.iter().for_each(|setting| layers.add_assignment(setting).unwrap());
    let job = registry::resolve(layers).unwrap().spec;
    let (folder, seen) = (tempfile::tempdir().unwrap(), Seen::default());
    let config = MembershipConfig::fixed(job.fault.step_deadline);
    let (ended, _) = simulated::simulate(Simulated::ordinary(WORKERS, 5), &[], &config, |rank| {
        let (worker, rows) = (rank.index(), WORKERS * steps);
        let components = StillModels { worker, start: worker as f64, slope: 0.0, rows, seen: seen.clone() };
        let assignment =
            Assignment { job: &job, components: &components, folder: folder.path(), resume: false };
        thalweg_train::run(rank, &assignment, None)
    });
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{:?}", ended[0].result);
    let mut models = vec![Vec::new(); WORKERS];
    seen.lock().unwrap().iter().for_each(|(worker, parameter)| models[*worker].push(*parameter));
    models
}

/// The formulas, for all workers.
fn reference(steps: usize, (rho, gamma): (f32, f32)) -> Vec<Vec<f32>> {
    let mut models = vec![Vec::new(); WORKERS];
    let mut w: Vec<f32> = (0..WORKERS).map(|worker| worker as f32).collect();
    let mean_of = |w: &[f32]| w.iter().sum::<f32>() / WORKERS as f32;
    let (mut mean, mut movement) = (mean_of(&w), 0.0);
    for _ in 0..steps / TAU {
        let summed = mean_of(&w);
        for k in 0..TAU {
            let anchor = mean + gamma * (1.0 + k as f32 / TAU as f32) * movement;
            for (worker, w) in w.iter_mut().enumerate() {
                models[worker].push(*w);
                *w -= 0.1 * rho * (*w - anchor);
            }
        }
        (movement, mean) = (summed - mean, summed);
    }
    models
}

#[test]
fn without_a_data_gradient_workers_agree_as_the_formulas_say() {
    for dials in [(0.5, 1.0), (0.5, 0.0), (1.0, 0.3)] {
        let (models, expected) = (still(60, dials), reference(60, dials));
        for (own, expected) in models.iter().zip(&expected) {
            assert_eq!(own.len(), expected.len());
            let worst = own.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5, "{dials:?}: {worst}");
            let first = own[0];
            // Between a worker's start and the mean of all, and near the mean in the end.
            let (low, high) = (first.min(1.5) - 1e-4, first.max(1.5) + 1e-4);
            assert!(own.iter().all(|value| (low..=high).contains(value)), "{own:?}");
            assert!((own[own.len() - 1] - 1.5).abs() < 0.1 * (first - 1.5).abs() + 1e-3, "{own:?}");
        }
    }
}

/// Under a gradient of 1 and almost no penalty a worker's parameter counts its steps. One of four workers is killed at a moment of
/// the run, with or without warning that a round of the others was complete.
fn killed_at(moment: Duration) -> (Vec<f32>, u64, Duration) {
    const STEPS: usize = 20;
    let settings = [
        "strategy.preset=mpca-sgd",
        "strategy.merge.penalty=0.000001",
        &format!("strategy.merge.every={TAU}"),
        &format!("engine.workers={WORKERS}"),
        &format!("train.global_batch={}", 3 * WORKERS),
        "train.epochs=1",
        "train.optimizer={kind='sgd', lr=0.125}",
        "fault.checkpoint_every=0",
        "fault.elastic=true",
    ];
    let mut layers = JobLayers::default();
    settings.iter().for_each(|setting| layers.add_assignment(setting).unwrap());
    let job = registry::resolve(layers).unwrap().spec;
    let (folder, seen) = (tempfile::tempdir().unwrap(), Seen::default());
    let config = MembershipConfig { elastic: true, ..MembershipConfig::fixed(job.fault.step_deadline) };
    let faults = [SimulatedFault { at: moment, kind: SimulatedFaultKind::Kill { rank: WORKERS - 1 } }];
    let ends = std::sync::Mutex::new(Duration::ZERO);
    let (ended, _) = simulated::simulate(Simulated::ordinary(WORKERS, 5), &faults, &config, |rank| {
        let (worker, rows) = (rank.index(), 3 * WORKERS * STEPS);
        let components = StillModels { worker, start: 0.0, slope: 1.0, rows, seen: seen.clone() };
        let assignment =
            Assignment { job: &job, components: &components, folder: folder.path(), resume: false };
        let result = thalweg_train::run(rank, &assignment, None);
        let mut ends = ends.lock().unwrap();
        *ends = rank.now().max(*ends);
        result
    });
    let survivors = &ended[..WORKERS - 1];
    assert!(survivors.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{:?}", ended[0].result);
    let mut last = [0.0; WORKERS - 1];
    for (worker, parameter) in seen.lock().unwrap().iter().filter(|(worker, _)| *worker < WORKERS - 1) {
        last[*worker] = *parameter;
    }
    let mut at_risk = None;
    for event in &ended[0].events {
        if let Event::Epoch { audit, .. } = event {
            assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0));
            at_risk = audit.at_risk;
        }
    }
    let steps = last.iter().map(|parameter| 1.0 - parameter / 0.125).collect();
    (steps, at_risk.expect("models of their own"), *ends.lock().unwrap())
}

/// Each survivor has taken all 20 steps, wherever it was interrupted: a round that others have completed is not lost. What
/// the lost worker computed in its last round, three rows in each step, is in no mean.
#[test]
fn survivors_keep_their_rounds_and_rows_of_lost_models_are_at_risk() {
    let (_, none, all) = killed_at(Duration::from_secs(100_000));
    assert_eq!(none, 0);
    let mut counted = std::collections::BTreeMap::new();
    for moment in 1..=150 {
        let (steps, at_risk, _) = killed_at(all * moment / 150);
        for steps in steps {
            assert!((steps - 20.0).abs() < 0.01, "killed at {moment} of 150: {steps} steps");
        }
        *counted.entry(at_risk).or_insert(0) += 1;
    }
    // Before the first round is complete nothing is at risk.
    assert!(counted.keys().all(|rows| [0, 3 * TAU as u64].contains(rows)), "{counted:?}");
    assert!(counted.len() == 2 && counted.values().all(|times| *times > 10), "{counted:?}");
}
