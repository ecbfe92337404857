//! Rules between keys: presets, strategies, models and reproducibility.

use crate::{accepted, refused_with, resolve};
use thalweg_core::spec::strategy::{Algorithm, Exchange};
use thalweg_core::spec::{JobSpec, preset};

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
fn every_preset_resolves() {
    for preset in preset::all() {
        let spec = accepted("", &[&format!("strategy.preset={}", preset.name)]);
        let values = spec.values();
        for (key, value) in preset.dials {
            let (_, found) = values.iter().find(|(path, _)| path == key).unwrap_or_else(|| panic!("{key}"));
            assert_eq!(found.to_string().trim_matches('"'), *value, "{}: {key}", preset.name);
        }
    }
}

#[test]
fn buckets_and_tuning_need_an_all_reduce() {
    for (preset, set) in
        [("gosgd", "strategy.exchange.bucket=4MiB"), ("parameter-server", "strategy.tune=true")]
    {
        let preset = format!("strategy.preset={preset}");
        refused_with("", &[&preset, set], &[set.split_once('=').unwrap().0, "only an all-reduce"]);
    }
    accepted("", &["strategy.exchange.bucket=tensor", "strategy.tune=true"]);
    refused_with("", &["strategy.exchange.bucket=tensors"], &["\"tensor\"", "such as \"4MiB\""]);
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
fn settings_that_are_not_reproducible_are_refused_by_name() {
    let on = "[train]\nreproducible = true";
    accepted(on, &["strategy.split=speed"]);
    accepted(on, &["strategy.preset=single"]);
    accepted(on, &["strategy.exchange.bucket=whole"]);
    for (setting, piece) in [
        ("strategy.preset=gosgd", "`gossip`"),
        ("strategy.preset=parameter-server", "`parameter-server`"),
        ("strategy.preset=horovod", "the summation order of `ring` depends on the ranks"),
        ("strategy.tune=true", "strategy.tune = false"),
        ("strategy.exchange.bucket=tensor", "strategy.exchange.bucket = \"auto\""),
        ("strategy.exchange.bucket=4MiB", "strategy.exchange.bucket = \"auto\""),
        ("train.accumulate=2", "train.accumulate = 1"),
        ("engine.threads=2", "engine.threads = 1"),
    ] {
        refused_with(on, &[setting], &["job.toml:2: train.reproducible", piece]);
    }
    for preset in ["gosgd", "parameter-server"] {
        let preset = format!("strategy.preset={preset}");
        refused_with("[strategy]\nsplit = \"speed\"", &[&preset], &["strategy.split", "use `even`"]);
    }
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
