//! Rules between keys: presets, algorithms and models. Those of strategies are tested in `crates/train/tests/combinations.rs`.

use crate::{accepted, refused_with, resolve};
use thalweg_core::spec::JobSpec;
use thalweg_core::spec::strategy::{Algorithm, Exchange};

#[test]
fn a_preset_overrides_defaults_only() {
    let job = resolve("", &["strategy.preset=single"]).unwrap();
    assert_eq!((job.spec.engine.workers, job.spec.exchange.kind), (1, Exchange::None));
    assert_eq!(job.layers.origin("engine.workers").to_string(), "preset single");

    let conflict = ["engine.workers = 3", "conflicts with preset `single`", "sets 1", "job.toml:2"];
    refused_with("[engine]\nworkers = 3\n", &["strategy.preset=single"], &conflict);
    let conflict = ["strategy.exchange.algorithm = \"auto\"", "preset `horovod`", "sets \"ring\""];
    refused_with("[strategy]\npreset = \"horovod\"", &["strategy.exchange.algorithm=auto"], &conflict);

    assert_eq!(accepted("[engine]\nworkers = 1\n", &["strategy.preset=single"]).engine.workers, 1);
    assert_eq!(accepted("[engine]\nworkers = 3\n", &["strategy.preset=horovod"]).engine.workers, 3);
}

#[test]
fn without_an_explicit_preset_settings_are_free() {
    let spec = accepted("", &["strategy.exchange.algorithm=ring"]);
    assert_eq!(spec.exchange.algorithm, Algorithm::Ring);
    let spec = accepted("", &["strategy.exchange.kind=none", "engine.workers=1"]);
    assert_eq!(spec.exchange.kind, Exchange::None);

    // Written as TOML, such a job does not name the preset.
    assert!(!spec.to_toml().contains("preset"));
    assert_eq!(accepted(&spec.to_toml(), &[]), spec);
    assert!(JobSpec::default().to_toml().contains("preset = \"allreduce\""));
}

#[test]
fn native_all_reduce_needs_mpi() {
    let native = "strategy.exchange.algorithm=native";
    refused_with("", &[native], &["`native`", "`auto` has none", "transport = \"mpi\""]);
    refused_with("", &[native, "strategy.exchange.transport=tcp"], &["`tcp` has none"]);
    assert_eq!(
        accepted("", &[native, "strategy.exchange.transport=mpi"]).exchange.algorithm,
        Algorithm::Native
    );
}

#[test]
fn a_model_is_defined_once() {
    let spec = accepted("[model]\nzoo = \"lenet\"", &[]);
    assert_eq!(spec.model.source(), "model.zoo");
    let text = spec.to_toml();
    assert!(text.contains("zoo = \"lenet\"") && !text.contains("layers"), "{text}");
    assert_eq!(accepted(&text, &[]), spec, "a written job is read back");
    refused_with(
        "[model]\nzoo = \"lenet\"\nlayers = [\"dense auto\"]",
        &[],
        &["job.toml:2: model.zoo", "model.layers defines the model already", "drop one of the two"],
    );
    refused_with("", &["model.zoo=lenett"], &["model.zoo", "did you mean `lenet`?"]);
    refused_with("", &["model.zoo=zzzzzzzzzzzz"], &["known are mlp, lenet, resnet-small"]);
}

#[test]
fn an_auto_encoder_refuses_losses_on_labels() {
    assert!(accepted("", &["model.zoo=autoencoder"]).model.reconstructs());
    assert!(accepted("", &["model.loss=reconstruction"]).model.reconstructs());
    assert!(!accepted("", &["model.zoo=mlp"]).model.reconstructs());
    refused_with(
        "",
        &["model.zoo=autoencoder-conv", "model.loss=hinge"],
        &["model.loss", "reconstructs its input"],
    );
    refused_with("", &["model.loss=hingge"], &["did you mean `hinge`?"]);
    refused_with("", &["train.loss=hinge"], &["did you mean `model.loss`?"]);
}

#[test]
fn a_reproducible_recipe_excludes_execution_settings() {
    let recipe = |set: &[&str]| accepted("", set).recipe();
    let reproducible = "train.reproducible=true";
    assert_eq!(
        recipe(&[reproducible, "engine.workers=3"]),
        recipe(&[reproducible, "fault.checkpoint_every=7"])
    );
    assert_ne!(recipe(&[reproducible, "train.seed=8"]), recipe(&[reproducible]));
    assert_ne!(recipe(&["engine.workers=3"]), recipe(&[]));
}

#[test]
fn the_local_batch_makes_the_global_one() {
    let job = resolve("[train]\nlocal_batch = 32", &["engine.workers=3"]).unwrap();
    assert_eq!(job.spec.train.global_batch, 96);
    let lines = job.explain();
    let shown = lines.iter().find(|line| line.key == "train.global_batch").unwrap();
    assert_eq!(
        (shown.value.as_ref().unwrap().as_integer(), &*shown.origin),
        (Some(96), "train.local_batch * engine.workers")
    );
    assert_eq!(accepted(&job.spec.to_toml(), &[]), job.spec, "both are written, and agree");
    accepted("", &["train.local_batch=32", "train.global_batch=64"]);
    let disagree = [
        "job.toml:2: train.local_batch: 32 rows on each of 2 workers are 64, but train.global_batch = 65",
        "drop one of the two",
    ];
    refused_with("[train]\nlocal_batch = 32", &["train.global_batch=65"], &disagree);
    // The rows of a step do not change when a run is resumed with other workers.
    refused_with(&job.spec.to_toml(), &["engine.workers=4"], &["are 128, but train.global_batch = 96"]);
    assert_eq!(
        accepted(&job.spec.to_toml(), &["engine.workers=4", "train.local_batch="]).train.global_batch,
        96
    );
}

#[test]
fn old_names_of_keys_are_read_in_files() {
    let old = "[strategy.exchange]\nprobability = 0.3\n";
    let job = resolve(old, &[]).unwrap();
    assert_eq!(job.spec.gossip.probability, 0.3);
    assert_eq!(job.layers.origin("strategy.gossip.probability").to_string(), "job.toml:2");
    assert_eq!(accepted(old, &["strategy.gossip.probability=0.4"]).gossip.probability, 0.4);
    accepted(&format!("{old}[strategy.gossip]\nprobability = 0.3\n"), &[]);
    let both = format!("{old}[strategy.gossip]\nprobability = 0.5\n");
    refused_with(
        &both,
        &[],
        &["job.toml:2: strategy.exchange.probability is called strategy.gossip.probability now"],
    );
    refused_with(
        "",
        &["strategy.exchange.probability=0.3"],
        &["did you mean `strategy.gossip.probability`?"],
    );
}
