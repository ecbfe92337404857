//! Batch normalisation over workers: with synchronized statistics every world takes the same steps.

mod harness;

use harness::{distance, parameters, train};
use std::path::Path;
use thalweg_core::Model;
use thalweg_core::event::Outcome;
use thalweg_train::SavedModel;

const LAYERS: &str =
    "model.layers=['dense 32', 'batchnorm', 'relu', 'dense 16', 'batchnorm', 'relu', 'dense auto']";
const STEPS: &str = "train.max_steps=20";
const SGD: &str = "train.optimizer={kind='momentum', lr=0.05}";

fn trained(world: usize, settings: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    train_in(folder.path(), world, settings);
    parameters(folder.path())
}

fn train_in(folder: &Path, world: usize, settings: &[&str]) {
    for ended in train(world, folder, &[&[LAYERS, STEPS, SGD], settings].concat()) {
        assert_eq!(ended.result.unwrap(), Outcome::Completed, "{settings:?}");
    }
}

fn running_statistics(world: usize, settings: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    train_in(folder.path(), world, settings);
    let (network, parameters) = SavedModel::read(folder.path()).unwrap().network().unwrap();
    let tensors = network.layout().tensors().iter();
    let running = tensors.filter(|tensor| tensor.name.contains("running"));
    running.flat_map(|tensor| parameters[tensor.range()].to_vec()).collect()
}

#[test]
fn synchronized_statistics_make_every_world_the_same() {
    let alone = trained(1, &[]);
    for world in [2, 3] {
        let difference = distance(&alone, &trained(world, &[]));
        assert!(difference < 1e-4, "{world} workers: {difference:e}");
    }
}

#[test]
fn a_rank_without_rows_takes_part() {
    let apart = |world: usize, few: &[&str]| distance(&trained(1, few), &trained(world, few));
    // Normalised by two rows, every number is 1 or -1 and its gradient what rounding leaves of nothing, times 1/epsilon
    // where the two rows agree: one step shows who takes part, more would show rounding going its own way.
    for (world, few) in
        [(5, ["train.global_batch=4", STEPS]), (3, ["train.global_batch=2", "train.max_steps=1"])]
    {
        let difference = apart(world, &few);
        assert!(difference < 1e-3, "{world} workers: {difference:e}");
    }
}

#[test]
fn local_statistics_depend_on_the_world() {
    let local = ["model.batchnorm=local"];
    let alone = trained(1, &local);
    assert_eq!(alone, trained(1, &[]), "one worker has all rows");
    assert!(distance(&alone, &trained(2, &local)) > 1e-3, "each worker normalises by its own rows");
}

/// Rank 0's rows are the first of every batch, and the statistics of the first step do not depend on gradients: they are
/// those of one worker that has only these rows.
#[test]
fn local_running_statistics_are_those_of_rank_0() {
    let after_one_step = |world: usize, more: &[&str]| {
        running_statistics(world, &[&["model.batchnorm=local", "train.max_steps=1"], more].concat())
    };
    let rank0 = after_one_step(1, &["train.global_batch=32"]);
    assert!(!rank0.is_empty());
    for (world, batch) in [(2, "train.global_batch=64"), (3, "train.global_batch=96")] {
        let difference = distance(&rank0, &after_one_step(world, &[batch]));
        assert!(difference < 1e-6, "{world} workers: {difference:e}");
    }
    let parts = after_one_step(1, &["train.global_batch=32", "train.accumulate=2"]);
    let difference = distance(&parts, &after_one_step(2, &["train.global_batch=64", "train.accumulate=2"]));
    assert!(difference < 1e-6, "in parts: {difference:e}");
}

#[test]
fn a_step_in_parts_has_no_statistics_of_all_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    for ended in train(2, folder.path(), &[LAYERS, STEPS, "train.accumulate=2"]) {
        let error = ended.result.unwrap_err();
        assert!(error.message.starts_with("train.accumulate: a step in 2 parts"), "{error}");
        assert!(error.hint.unwrap().contains("model.batchnorm = \"local\""));
    }
    trained(2, &["train.accumulate=2", "model.batchnorm=local"]);
}
