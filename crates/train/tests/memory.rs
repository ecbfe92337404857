//! The same programs on threads: what real processes do, without them.

mod harness;

use harness::{distance, parameters, train};
use thalweg_core::event::{Event, Outcome};
use thalweg_core::{Error, Kind};

#[test]
fn every_world_takes_the_same_steps() {
    let folders: Vec<_> = (0..5).map(|_| tempfile::tempdir().unwrap()).collect();
    for (world, folder) in [1, 2, 3, 4, 7].into_iter().zip(&folders) {
        for ended in train(world, folder.path(), &["train.max_steps=100"]) {
            assert_eq!(ended.result.unwrap(), Outcome::Completed);
        }
    }
    let alone = parameters(folders[0].path());
    for folder in &folders[1..] {
        let difference = distance(&alone, &parameters(folder.path()));
        assert!(difference <= 1e-5, "{difference:e}");
    }
}

#[test]
fn every_algorithm_takes_the_same_steps_and_is_recorded() {
    let sums: Vec<Vec<f32>> = [
        "auto",
        "ring",
        "binomial-tree",
        "recursive-doubling",
        "halving-doubling",
        "direct",
        "tree-aggregate",
        "hierarchical",
    ]
    .into_iter()
    .map(|name| {
        let folder = tempfile::tempdir().unwrap();
        let algorithm = format!("strategy.exchange.algorithm={name}");
        let messages = "strategy.exchange.transport=tcp";
        let ended = train(3, folder.path(), &["train.max_steps=30", messages, &algorithm]);
        let recorded = ended[0].events.iter().find_map(|event| match event {
            Event::Started { algorithm, .. } => Some(algorithm.clone()),
            _ => None,
        });
        // The gradient of the digits has 38 KiB.
        assert_eq!(recorded.as_deref(), Some(if name == "auto" { "halving-doubling" } else { name }));
        parameters(folder.path())
    })
    .collect();
    assert_eq!(sums[0], sums[4], "the choice of the table is the algorithm it names");
    for other in &sums[1..] {
        let difference = distance(&sums[0], other);
        assert!(difference <= 1e-5, "{difference:e}");
    }
}

#[test]
fn ranks_without_a_row_just_work() {
    let folder = tempfile::tempdir().unwrap();
    let ended = train(4, folder.path(), &["train.global_batch=3", "train.max_steps=500"]);
    let audits = ended[0].events.iter().filter_map(|event| match event {
        Event::Epoch { audit, .. } => Some(audit),
        _ => None,
    });
    let mut seen = 0;
    for audit in audits {
        assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0));
        seen += audit.once;
    }
    assert_eq!(
        seen,
        1438 + 20 * 3 + 2 - 2,
        "479 full steps and one short one of the first epoch, 20 of the second"
    );
}

#[test]
fn halves_make_a_whole() {
    let (whole, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(2, whole.path(), &["train.max_steps=60"]);
    train(2, halves.path(), &["train.max_steps=31"]);
    train(2, halves.path(), &["train.max_steps=60"]);
    assert_eq!(parameters(whole.path()), parameters(halves.path()), "not the same bits");
}

#[test]
fn a_gradient_that_is_not_finite_names_step_rank_and_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let ended = train(2, folder.path(), &["train.optimizer.kind=sgd", "train.optimizer.lr=1e30"]);
    let own = ended.iter().filter_map(|ended| ended.result.as_ref().err());
    let error: &Error = own.clone().find(|error| error.kind == Kind::NotFinite).unwrap();
    assert!(error.message.contains("layers.") && error.message.contains("step 1"), "{error}");
}

#[test]
fn the_target_ends_training_early() {
    let folder = tempfile::tempdir().unwrap();
    let ended = train(2, folder.path(), &["train.target.accuracy=0.9"]);
    assert_eq!(*ended[1].result.as_ref().unwrap(), Outcome::TargetReached);
    let folder = tempfile::tempdir().unwrap();
    let ended = train(1, folder.path(), &["train.target.accuracy=1.0", "train.epochs=1"]);
    assert_eq!(*ended[0].result.as_ref().unwrap(), Outcome::TargetMissed);
}
