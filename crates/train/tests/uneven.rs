//! Uneven workers: slow ones, paced ones, and shares that follow their speed.

mod harness;

use harness::simulate;
use std::time::Duration;
use thalweg_cluster::engine::threads::RankOutcome;
use thalweg_comm::transport::sim::Network;
use thalweg_core::event::{Event, Outcome};

const UNEVEN: [&str; 2] = ["engine.slow={2=3.0}", "engine.pace=20ms"];

/// Rows per second and final accuracy.
fn figures(ended: &[RankOutcome<Outcome>]) -> (f64, f64) {
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
    let last = ended[0].events.iter().find_map(|event| match event {
        Event::Done { last, rows, train_s, .. } => Some((*rows as f64 / train_s, last["accuracy"])),
        _ => None,
    });
    last.unwrap()
}

/// In virtual time: 60 ms a step with even shares, 24 with the best there are, once they are found.
#[test]
fn shares_by_speed_make_uneven_machines_faster_and_learn_the_same() {
    let run = |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let settings = [&UNEVEN[..], &["train.epochs=8"], more].concat();
        figures(&simulate(Network::ordinary(4, 7), &[], folder.path(), &settings).0)
    };
    let (even, accuracy) = run(&[]);
    let (speed, other) = run(&["strategy.split=speed"]);
    assert!((even - 64.0 / 0.060).abs() < 0.05 * even, "{even} rows/s");
    assert!(speed > 2.2 * even, "{speed} rows/s with shares by speed, {even} with even ones");
    assert!((accuracy - other).abs() <= 0.003, "{accuracy} {other}");
    // Whole leaves are coarse: 30 ms a step.
    let (leaves, _) = run(&["strategy.split=speed", "train.reproducible=true"]);
    assert!(leaves > 1.8 * even, "{leaves} rows/s with shares of leaves, {even} with even ones");
}

/// The same seed gives the same times, another rank and another step other ones.
#[test]
fn jitter_is_drawn_by_seed() {
    let run = || {
        let folder = tempfile::tempdir().unwrap();
        let settings = ["engine.pace=20ms", "engine.jitter=0.5", "train.max_steps=20"];
        simulate(Network::ordinary(3, 7), &[], folder.path(), &settings).0
    };
    let (one, other) = (figures(&run()), figures(&run()));
    assert_eq!(one, other);
    // The slowest of three: between one and one and a half times the pace.
    let step = Duration::from_secs_f64(64.0 / one.0);
    assert!(step > Duration::from_millis(22) && step < Duration::from_millis(31), "{step:?}");
}

/// Single steps of any worker take three times as long. Of four workers in step, one does so in 1 - 0.75^4 of the steps.
#[test]
fn passing_stragglers_hold_up_workers_in_step() {
    let run = |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let settings = [&["engine.pace=20ms", "engine.workers=4", "train.max_steps=200"], more].concat();
        figures(&simulate(Network::ordinary(4, 7), &[], folder.path(), &settings).0)
    };
    let stragglers = "engine.stragglers={ probability = 0.25, factor = 3.0 }";
    let (rate, accuracy) = run(&[stragglers]);
    let expected = 0.020 * (1.0 + 2.0 * (1.0 - 0.75f64.powi(4)));
    assert!(
        (64.0 / rate - expected).abs() < 0.1 * expected,
        "{} s per step, {expected} expected",
        64.0 / rate
    );
    assert_eq!(run(&[stragglers]).0, rate, "drawn by seed");
    assert_eq!(run(&[]).1, accuracy, "the same steps");
}

/// With a large jitter of a small pace, times are exponential: the longest of four has 1 + 1/2 + 1/3 + 1/4 times the mean.
#[test]
fn exponential_jitter_has_the_mean_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "engine.pace=200us",
        "engine.jitter=100",
        "engine.jitter_kind=exponential",
        "engine.workers=4",
        "train.max_steps=400",
    ];
    let (rate, _) = figures(&simulate(Network::ordinary(4, 7), &[], folder.path(), &settings).0);
    let expected = 0.020 * (1.0 + 0.5 + 1.0 / 3.0 + 0.25);
    assert!(
        (64.0 / rate - expected).abs() < 0.1 * expected,
        "{} s per step, {expected} expected",
        64.0 / rate
    );
}
