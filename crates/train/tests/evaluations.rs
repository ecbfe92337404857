//! Evaluations every so many rows (`train.evaluate_every`).

mod harness;

use harness::{parameters, simulate, train};
use std::path::Path;
use thalweg_comm::transport::sim::Network;
use thalweg_core::event::{Event, Outcome};

/// Step, rows and training time of every evaluation.
type Points = Vec<(u64, u64, f64)>;

fn points(events: &[Event]) -> Points {
    let point = |event: &Event| match event {
        Event::Evaluated { step, rows, train_s, metrics } => {
            assert!(metrics.contains_key("accuracy"));
            Some((*step, *rows, *train_s))
        }
        _ => None,
    };
    events.iter().filter_map(point).collect()
}

fn trained(events: &[Event]) -> f64 {
    let done = |event: &Event| match event {
        Event::Done { train_s, .. } => Some(*train_s),
        _ => None,
    };
    events.iter().find_map(done).unwrap()
}

/// Four simulated workers whose step takes 20 ms; returns the events of rank 0.
fn simulated(folder: &Path, settings: &[&str]) -> Vec<Event> {
    let settings = [&["engine.pace=20ms"], settings].concat();
    let mut ended = simulate(Network::ordinary(4, 7), &[], folder, &settings).0;
    assert!(ended.iter().all(|ended| ended.result.is_ok()), "{settings:?}");
    ended.swap_remove(0).events
}

/// Steps of 64 rows, 23 in an epoch of 1,437 or 1,438.
#[test]
fn evaluations_change_neither_the_steps_nor_their_time() {
    let run = |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let events = simulated(folder.path(), &[&["train.epochs=2"], more].concat());
        (events, parameters(folder.path()))
    };
    let (plain, expected) = run(&[]);
    let (evaluated, same) = run(&["train.evaluate_every=320"]);
    assert_eq!(expected, same);
    let steps = |events: &[Event]| points(events).iter().map(|point| point.0).collect::<Vec<_>>();
    assert_eq!(steps(&plain), [23, 46]);
    assert_eq!(steps(&evaluated), [5, 10, 15, 20, 23, 26, 31, 36, 41, 46]);
    assert!((trained(&plain) - trained(&evaluated)).abs() < 0.01 * trained(&plain));
    for (step, _, train_s) in points(&evaluated) {
        assert!((train_s / step as f64 - 0.020).abs() < 0.002, "{train_s} s after step {step}");
    }
}

/// Workers at their own speed meet for them: after the rows that are asked for, and those that they compute until they are
/// called.
#[test]
fn every_kind_of_strategy_is_evaluated_on_the_way() {
    for strategy in [
        &["strategy.preset=allreduce"][..],
        &["strategy.preset=parameter-server", "strategy.scheduling.kind=async"],
        &["strategy.preset=gosgd"],
        &["strategy.preset=dpsgd"],
        &["strategy.preset=easgd", "strategy.merge.every=2"],
        &["strategy.preset=sparknet", "strategy.merge.every=3"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let settings = [strategy, &["train.epochs=1", "train.evaluate_every=256"]].concat();
        let rows: Vec<u64> = points(&simulated(folder.path(), &settings)).iter().map(|at| at.1).collect();
        assert!(rows.is_sorted() && (5..=7).contains(&rows.len()), "{strategy:?}: {rows:?}");
        for (at, due) in rows.iter().zip((1..).map(|number| 256 * number)).take(5) {
            assert!((due..due + 384).contains(at), "{strategy:?}: {rows:?}");
        }
    }
}

/// Without evaluations, four of four asynchronous workers compute all the time.
#[test]
fn waits_for_an_evaluation_do_not_count() {
    let time = |every: &str| {
        let folder = tempfile::tempdir().unwrap();
        let settings = ["strategy.preset=gosgd", "engine.slow={3=3.0}", "train.epochs=4", every];
        trained(&simulated(folder.path(), &settings))
    };
    let (plain, evaluated) = (time("train.epochs=4"), time("train.evaluate_every=300"));
    assert!((evaluated / plain - 1.0).abs() < 0.05, "{plain} s, with evaluations {evaluated} s");
}

#[test]
fn training_ends_with_the_evaluation_that_reaches_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["train.evaluate_every=128", "train.target.accuracy=0.5", "train.epochs=20"];
    let events = simulated(folder.path(), &settings);
    let Some(Event::Done { outcome, last, steps, .. }) = events.last() else { panic!("{:?}", events.last()) };
    assert_eq!(*outcome, Outcome::TargetReached);
    assert!(last["accuracy"] >= 0.5 && steps.is_multiple_of(2) && !steps.is_multiple_of(23), "{steps}");
    assert_eq!(points(&events).last().unwrap().0, *steps);
}

/// Rows and time of a resumed run go on from those before.
#[test]
fn the_time_of_earlier_runs_counts() {
    let folder = tempfile::tempdir().unwrap();
    let run = |end: &str| {
        let settings = [end, "train.evaluate_every=256", "fault.checkpoint_every=0"];
        let mut ended = train(2, folder.path(), &settings);
        assert_eq!(ended[0].result, Ok(Outcome::Completed));
        ended.swap_remove(0).events
    };
    let first = run("train.max_steps=10");
    let second = run("train.max_steps=30");
    let before = points(&first).last().unwrap().2;
    let all: Points = points(&first).into_iter().chain(points(&second)).collect();
    assert_eq!(all.iter().map(|at| at.0).collect::<Vec<_>>(), [4, 8, 10, 12, 16, 20, 23, 25, 29, 30]);
    assert!(all.is_sorted_by(|one, next| one.1 < next.1 && one.2 <= next.2), "{all:?}");
    assert!(points(&second).iter().all(|at| at.2 >= before));
}
