//! New members receive the state from the others while these train: with every update rule, all end with the same bits.

use crate::invariants::{self, Bounds, Undisturbed};
use crate::job::{self, Finished, Run};
use crate::schedule::Schedule;
use std::time::Duration;
use thalweg_comm::transport::sim::{SimulatedFault, SimulatedFaultKind};
use thalweg_core::event::Event;

/// When a second and a third rank come, as parts of a run without them: at the end of an epoch a rank may get all of the
/// state at once.
const MOMENTS: [[f64; 2]; 6] =
    [[0.2, 0.45], [0.13, 0.37], [0.25, 0.5], [0.17, 0.41], [0.3, 0.55], [0.22, 0.6]];

/// A second and a third rank come.
fn joins(span: Duration, [second, third]: [f64; 2]) -> Vec<SimulatedFault> {
    [(second, 2), (third, 3)]
        .map(|(when, rank)| SimulatedFault::at(span.mul_f64(when), SimulatedFaultKind::Join { rank }))
        .to_vec()
}

/// Ranks that have received the state, and in how many steps.
fn caught_up(run: &Run) -> Vec<(Vec<usize>, u64)> {
    let caught_up = run.events().filter_map(|event| match event {
        Event::CaughtUp { ranks, steps, .. } => Some((ranks.clone(), *steps)),
        _ => None,
    });
    caught_up.collect()
}

fn finished(run: &Run) -> Vec<&Finished> {
    run.ended.iter().map(|ended| ended.result.as_ref().unwrap()).collect()
}

/// With a job of these settings: all end with the same bits, and with reproducible sums those of a rank alone.
fn assert_same(settings: &[&str]) {
    assert_same_within(settings, invariants::ALL_REDUCE);
}

/// The same, within these bounds of a run without new ranks.
fn assert_same_within(settings: &[&str], bounds: Bounds) {
    let reproducible = settings.contains(&"train.reproducible=true");
    // Enough steps in an epoch that some are left whenever a rank joins, so small that rounding stays small.
    let small = ["train.global_batch=3", "train.optimizer={kind='momentum', lr=0.02}"];
    let job = job::job(&[&small, settings].concat());
    let undisturbed = job::run_job(job, 5, 2, &[], || ());
    let mut runs = MOMENTS.iter().map(|moments| {
        let faults = joins(undisturbed.duration(), *moments);
        (job::run_job(job, 5, 2, &faults, || ()), faults)
    });
    let both_caught_up = |run: &Run| caught_up(run).into_iter().flat_map(|(ranks, _)| ranks).eq([2, 3]);
    let (run, faults) = runs
        .find(|(run, _)| both_caught_up(run))
        .unwrap_or_else(|| panic!("{settings:?}: both never took the state over during training"));
    assert!(caught_up(&run).iter().all(|(_, steps)| *steps >= 1), "{settings:?}");
    assert!(finished(&run).windows(2).all(|pair| pair[0] == pair[1]), "{settings:?}");
    let expected = Undisturbed::of(&undisturbed);
    invariants::check(&Schedule { world: 2, servers: 0, faults }, &run, &expected, bounds).unwrap();
    if reproducible {
        assert_eq!(finished(&run)[0], finished(&undisturbed)[0], "{settings:?}");
        assert_eq!(finished(&run)[0], finished(&job::run_job(job, 5, 1, &[], || ()))[0], "{settings:?}");
    }
}

#[test]
fn the_state_of_every_rule_is_received_to_the_last_bit() {
    for kind in ["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "lars", "lamb"] {
        let rule = format!("train.optimizer={{kind='{kind}', lr=0.01}}");
        // In pieces of tensors, and in others, of which some are empty.
        for piece in ["fault.join_piece=96B", "fault.join_piece=16B"] {
            assert_same(&["train.reproducible=true", &rule, piece]);
        }
    }
}

#[test]
fn so_are_corrections_schedules_and_statistics() {
    let clip = "train.clip={norm=0.05}";
    let decay = "train.optimizer={kind='adam', lr=0.01, weight_decay=0.01}";
    assert_same(&["train.reproducible=true", clip]);
    assert_same(&["train.reproducible=true", clip, decay]);
    assert_same(&["train.reproducible=true", "train.l2=0.01", "train.l1=0.001", "train.clip={value=0.01}"]);
    // Normalised by few rows, differences by rounding grow.
    let layers = "model.layers=['dense 6', 'batchnorm', 'tanh', 'dense auto']";
    assert_same(&[layers, "train.global_batch=8"]);
    assert_same(&["strategy.exchange.bucket=tensor"]);
    assert_same(&["strategy.split=speed"]);
}

/// The model that all merge is the same on all ranks; optimizer state is each worker's own.
#[test]
fn new_ranks_take_over_the_state_of_local_rounds() {
    let strategies = [
        ("sparknet", "0"),
        ("block-momentum", "0.5"),
        ("diloco", "0.5"),
        ("slowmo", "0.5"),
        ("post-local-sgd", "0"),
    ];
    for (strategy, momentum) in strategies {
        let (preset, momentum) =
            (format!("strategy.preset={strategy}"), format!("strategy.merge.momentum={momentum}"));
        let bounds = Bounds { unit: 2, loss: 0.5, accuracy: 0.05 };
        let rounds = ["strategy.merge.every=2", "train.global_batch=2"];
        assert_same_within(&[&[&*preset, &momentum], &rounds[..]].concat(), bounds);
    }
}

/// A norm that penalties are part of cannot be known without all parameters: they are sent at the boundary.
#[test]
fn penalties_in_a_clipped_norm_need_the_state_at_once() {
    let job = job::job(&["train.reproducible=true", "train.clip={norm=0.05}", "train.l2=0.01"]);
    let alone = job::run_job(job, 5, 1, &[], || ());
    let run = job::run_job(job, 5, 2, &joins(alone.duration(), MOMENTS[0]), || ());
    assert!(caught_up(&run).is_empty());
    assert!(finished(&run).iter().all(|end| *end == finished(&alone)[0]));
}

/// The only rank with the state is lost before it has sent it: the error says so, and the job is over.
#[test]
fn the_loss_of_the_last_rank_with_the_state_is_named() {
    let undisturbed = Undisturbed::of(&job::run(3, 1, &[], || ()));
    let span = undisturbed.duration;
    let orphaned = (0..40).find_map(|later| {
        let join = span.mul_f64(0.3);
        let kill = join + Duration::from_millis(later);
        let faults = [
            SimulatedFault::at(join, SimulatedFaultKind::Join { rank: 1 }),
            SimulatedFault::at(kill, SimulatedFaultKind::Kill { rank: 0 }),
        ];
        let run = job::run(3, 1, &faults, || ());
        let schedule = Schedule { world: 1, servers: 0, faults: faults.to_vec() };
        invariants::check(&schedule, &run, &undisturbed, invariants::ALL_REDUCE).ok()?;
        run.ended[1]
            .result
            .clone()
            .err()
            .filter(|error| error.message.starts_with("no rank is left that has"))
    });
    let error = orphaned.expect("the state always arrives before");
    assert!(error.message.contains("rank 0 vanished"), "{error}");
    assert!(error.hint.unwrap().contains("thalweg resume"));
}
