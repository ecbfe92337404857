//! Every optimizer on a cluster of threads: it learns, it gives one answer whatever the world, it resumes to the bit.

mod harness;

use harness::{distance, parameters, train};
use thalweg_core::event::Outcome;

/// Each kind with a rate that suits the digits.
const KINDS: [(&str, f64); 9] = [
    ("sgd", 0.1),
    ("momentum", 0.05),
    ("nesterov", 0.05),
    ("adagrad", 0.01),
    ("rmsprop", 0.001),
    ("adam", 0.001),
    ("adamw", 0.001),
    ("lars", 2.0),
    ("lamb", 0.01),
];

/// All that happens to a gradient and to a rate on the way.
const EVERYTHING: [&str; 5] = [
    "train.l1=1e-4",
    "train.l2=1e-3",
    "train.clip={value=0.05, norm=0.5}",
    "train.schedule={kind='cosine', warmup_steps=5, steps=40, final_lr=1e-4, scale_with_batch=128}",
    "train.optimizer.weight_decay=0.01",
];

fn settings<'a>(kind: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[kind], &EVERYTHING[..], more].concat()
}

fn optimizer((kind, lr): (&str, f64)) -> String {
    format!("train.optimizer={{kind='{kind}', lr={lr}}}")
}

fn completed(world: usize, settings: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    for ended in train(world, folder.path(), settings) {
        assert_eq!(ended.result.unwrap(), Outcome::Completed, "{settings:?}");
    }
    parameters(folder.path())
}

#[test]
fn halves_make_a_whole_with_every_optimizer() {
    for kind in KINDS.map(optimizer) {
        let halves = tempfile::tempdir().unwrap();
        train(2, halves.path(), &settings(&kind, &["train.max_steps=21"]));
        train(2, halves.path(), &settings(&kind, &["train.max_steps=40"]));
        let whole = completed(2, &settings(&kind, &["train.max_steps=40"]));
        assert_eq!(whole, parameters(halves.path()), "not the same bits: {kind}");
    }
}

#[test]
fn every_world_takes_the_same_steps_with_every_optimizer() {
    for kind in KINDS.map(optimizer) {
        let run = |world| completed(world, &settings(&kind, &["train.max_steps=40"]));
        let difference = distance(&run(1), &run(3));
        assert!(difference <= 2e-5, "{kind}: {difference:e}");
    }
}

#[test]
fn every_optimizer_learns_the_digits() {
    for kind in KINDS.map(optimizer) {
        let folder = tempfile::tempdir().unwrap();
        let ended = train(1, folder.path(), &[&kind, "train.target.accuracy=0.93", "train.epochs=15"]);
        assert_eq!(*ended[0].result.as_ref().unwrap(), Outcome::TargetReached, "{kind}");
    }
}

#[test]
fn parts_of_a_step_are_the_step() {
    let at_once = completed(2, &["train.max_steps=60"]);
    for parts in [2, 3, 1000] {
        let accumulate = format!("train.accumulate={parts}");
        let difference = distance(&at_once, &completed(2, &["train.max_steps=60", &accumulate]));
        assert!(difference <= 1e-5, "{parts} parts: {difference:e}");
    }
}

#[test]
fn penalties_keep_parameters_small_and_a_small_bound_keeps_steps_small() {
    let zeros = |parameters: &[f32]| vec![0.0; parameters.len()];
    let length = |settings: &[&str]| {
        let parameters = completed(2, &[settings, &["train.max_steps=100"]].concat());
        distance(&parameters, &zeros(&parameters))
    };
    let free = length(&[]);
    assert!(length(&["train.l1=0.01"]) < 0.95 * free);
    assert!(length(&["train.l2=0.1"]) < 0.95 * free);

    let sgd = "train.optimizer={kind='sgd', lr=0.1}";
    let start = completed(2, &[sgd, "train.optimizer.lr=1e-30", "train.max_steps=1"]);
    let end = completed(2, &[sgd, "train.clip.norm=0.01", "train.max_steps=10"]);
    let moved = distance(&start, &end);
    assert!(moved > 0.0 && moved <= 10.0 * 0.1 * 0.01 * 1.001, "{moved}");
}

#[test]
fn the_state_of_another_optimizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    train(1, folder.path(), &["train.optimizer.kind=adam", "train.max_steps=2"]);
    // AdamW and LAMB keep their moments under the names that Adam uses.
    for kind in ["adamw", "lamb", "sgd"] {
        let other = format!("train.optimizer.kind={kind}");
        let ended = train(1, folder.path(), &[&other, "train.max_steps=4"]);
        let error = ended[0].result.as_ref().unwrap_err();
        let expected = format!("with the optimizer `adam`, but the job says `{kind}`");
        assert!(error.message.contains(&expected), "{error}");
    }
}
