//! Parsing of files and flags: notations, origins, unknown names and values of the wrong type.

use crate::{accepted, refused, refused_with, resolve};
use std::collections::HashSet;
use std::time::Duration;
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_core::spec::setting::{Auto, ColumnRef, HeldOut};
use thalweg_core::spec::{JobSpec, preset};

#[test]
fn an_empty_job_has_the_defaults() {
    let spec = accepted("", &[]);
    assert_eq!(spec, JobSpec::default());
    assert_eq!(spec.data.source, "builtin:digits");
    assert_eq!(spec.engine.workers, 2);
    assert_eq!(spec.strategy.preset, "allreduce");
    assert!(preset::find(&spec.strategy.preset).is_some());
    assert_eq!(accepted("format = 1\n[train]\n[engine]\n", &["train.optimizer={}"]), spec);
}

#[test]
fn unknown_names_are_refused_with_a_suggestion() {
    refused_with("[train]\nepoch = 3", &[], &["job.toml:2", "`epoch`", "did you mean `epochs`"]);
    refused_with("[trian]\nepochs = 3", &[], &["unknown section `trian`", "did you mean `train`"]);
    refused_with("[trian]", &[], &["job.toml:1", "unknown section `trian`", "did you mean `train`"]);
    let misspelt = refused(
        "[data]\nsorce = 1\n[trian]\nseed = 3\nepochs = 3\n[trian.optimizer]\nlr = 1",
        &["trian.accumulate=4"],
    );
    assert_eq!(misspelt.matches("`trian`").count(), 2, "once for the file, once for the flag: {misspelt}");
    assert!(misspelt.contains("job.toml:4: unknown section"), "{misspelt}");
    refused_with("", &["enigne.workers=2"], &["--set enigne.workers=2", "did you mean `engine`"]);
    refused_with("[train]\nworkers = 3", &[], &["did you mean `engine.workers`"]);
    refused_with("epochs = 3", &[], &["did you mean `train.epochs`"]);
    refused_with("[train.optimiser]\nlr = 1", &[], &["did you mean `train.optimizer.lr`"]);
    refused_with("[train]\noptimizer = { rate = 1 }", &[], &["`rate`", "[train.optimizer]"]);
    refused_with("[data]\nscale = \"minimax\"", &[], &["data.scale", "did you mean `minmax`"]);
    refused_with("", &["strategy.preset=horovd"], &["unknown preset `horovd`", "did you mean `horovod`"]);
    refused_with("", &["strategy.preset=zzzzzzzzz"], &["known are", "allreduce", "pytorch-ddp"]);
    refused_with("", &["data.task=zzzzzzzzzzzzzz"], &["known are auto, classification, regression"]);
}

#[test]
fn a_value_of_the_wrong_type_is_refused_with_the_expected_one() {
    refused_with("[train]\nepochs = \"three\"", &[], &["train.epochs", "a whole number", "\"three\""]);
    refused_with("[train]\nepochs = 2.5", &[], &["a whole number", "2.5"]);
    refused_with("[train]\nepochs = -1", &[], &["a whole number, 0 or more", "-1"]);
    refused_with(
        "[train]\nepochs = 99999999999999999999",
        &[],
        &["a whole number", "100000000000000000000.0"],
    );
    refused_with("[train.epochs]", &[], &["train.epochs", "a whole number", "a table"]);
    refused_with("[train]\noptimizer = \"sgd\"", &[], &["`train.optimizer` is a group of keys", "\"sgd\""]);
    refused_with("[fault]\nstep_deadline = 30", &[], &["a time such as", "30"]);
    refused_with("[data]\nmemory = \"2 elephants\"", &[], &["a size such as"]);
    refused_with("[model]\nlayers = [\"dense 3\", 4]", &[], &["a list of texts"]);
    refused_with("[train.optimizer]\nlr = nan", &[], &["a number"]);
    refused_with("", &["train.epochs"], &["--set train.epochs", "expected section.key=value"]);
}

#[test]
fn all_errors_are_reported_at_once_with_their_lines() {
    let file = "[train]\nepoch = 3\nglobal_batch = 0\n\n[engine]\nworkers = \"two\"\n";
    let message = refused(file, &["data.scale=huge"]);
    assert!(message.starts_with("4 errors in the job"), "{message}");
    assert_eq!(message.lines().count(), 5, "{message}");
    for piece in ["job.toml:2:", "job.toml:3:", "job.toml:6:", "--set data.scale=huge:"] {
        assert!(message.contains(piece), "no {piece} in {message}");
    }
}

#[test]
fn invalid_toml_is_refused_with_its_line() {
    refused_with("[train]\nepochs = = 3\n", &[], &["job.toml:2"]);
    refused_with("[train]\nepochs = 3\nepochs = 4\n", &[], &["job.toml:3", "duplicate"]);
}

#[test]
fn other_formats_are_refused() {
    assert_eq!(accepted("format = 1", &[]), JobSpec::default());
    refused_with("format = 2", &[], &["job.toml:1", "format 2", "this is format 1"]);
}

#[test]
fn numbers_are_read_in_every_notation() {
    assert_eq!(accepted("[train]\nseed = 0x10\nepochs = 1_000\n", &[]).train.seed, 16);
    assert_eq!(accepted("[train]\nseed = 0b11\n", &[]).train.seed, 3);
    assert_eq!(accepted("", &["train.seed=0x10"]).train.seed, 16);
    assert_eq!(accepted("[train.optimizer]\nlr = 1\n", &[]).optimizer.lr, 1.0);
    assert_eq!(accepted("", &["train.optimizer.lr=5e-4"]).optimizer.lr, 5e-4);
}

#[test]
fn set_takes_numbers_strings_lists_and_tables() {
    let spec = accepted(
        "[train]\nepochs = 9\n",
        &[
            "train.epochs=3",
            "data.source=rows of 2024.csv",
            "data.label=quality",
            "data.delimiter=;",
            "data.validation = other.csv",
            "model.layers=[\"dense 64 tanh\", \"dense auto\"]",
            "train.optimizer={ kind = \"momentum\", lr = 0.1 }",
            "fault.join_deadline=1m",
        ],
    );
    assert_eq!(spec.train.epochs, 3);
    assert_eq!(spec.data.source, "rows of 2024.csv");
    assert_eq!(spec.data.label, Some(ColumnRef::Name("quality".into())));
    assert_eq!(spec.data.delimiter, Auto::Is(Delimiter::Byte(b';')));
    for tab in ["tab", "\\t", "\"\\t\""] {
        let spec = accepted("", &[&format!("data.delimiter={tab}")]);
        assert_eq!(spec.data.delimiter, Auto::Is(Delimiter::Byte(b'\t')), "{tab:?}");
        assert!(spec.to_toml().contains("delimiter = \"tab\""));
    }
    assert_eq!(spec.data.validation, Some(HeldOut::Source("other.csv".into())));
    assert_eq!(spec.model.layers, ["dense 64 tanh", "dense auto"]);
    assert_eq!(spec.optimizer.rule(), UpdateRule::Momentum { lr: 0.1, momentum: 0.9 });
    assert_eq!(spec.fault.join_deadline, Auto::Is(Duration::from_secs(60)));
    assert_eq!(accepted("", &["data.label=-2"]).data.label, Some(ColumnRef::Index(-2)));
    assert_eq!(accepted("", &["data.source=a=b\nformat=2"]).data.source, "a=b\nformat=2");
    assert_eq!(accepted("", &["data.source=\"quoted\""]).data.source, "quoted");
}

#[test]
fn lists_of_flags_take_commas_or_toml() {
    let spec =
        accepted("", &["data.ignore=id, date", "data.categorical=7", "model.layers=dense 32 relu,dense 10"]);
    assert_eq!(spec.data.ignore, ["id", "date"]);
    assert_eq!(spec.data.categorical, ["7"]);
    assert_eq!(spec.model.layers, ["dense 32 relu", "dense 10"]);
    let spec = accepted("", &[r#"data.ignore=["a,b", "c"]"#]);
    assert_eq!(spec.data.ignore, ["a,b", "c"]);
    // In a file a string is no list.
    assert!(resolve("[data]\nignore = \"a,b\"\n", &[]).is_err());
}

#[test]
fn an_empty_flag_unsets_a_key_or_a_group() {
    let file = "[train]\nepochs = 3\nseed = 9\ntarget = { accuracy = 0.9, loss = 0.1 }\n";
    let job = resolve(file, &["train.target=", "train.epochs="]).unwrap();
    assert_eq!(job.spec.target, JobSpec::default().target);
    assert_eq!((job.spec.train.epochs, job.spec.train.seed), (JobSpec::default().train.epochs, 9));
    assert_eq!(job.layers.origin("train.epochs").to_string(), "--set train.epochs=");
    // A later value applies, and an unknown key cannot be unset.
    assert_eq!(accepted(file, &["train.epochs=", "train.epochs=4"]).train.epochs, 4);
    let error = resolve(file, &["train.epocks="]).unwrap_err();
    assert!(error.message.contains("--set train.epocks=") && error.message.contains("epochs"), "{error}");
}

#[test]
fn the_last_value_applies_and_has_its_origin() {
    let job = resolve("[train]\nepochs = 9\nseed = 1\n", &["train.epochs=3", "train.epochs=4"]).unwrap();
    assert_eq!(job.spec.train.epochs, 4);
    let origin = |key: &str| job.explain().into_iter().find(|line| line.key == key).unwrap().origin;
    assert_eq!(origin("train.epochs"), "--set train.epochs=4");
    assert_eq!(origin("train.seed"), "job.toml:3");
    assert_eq!(origin("train.global_batch"), "default");
    assert_eq!(job.explain().len(), JobSpec::keys().len());
}

#[test]
fn every_key_is_documented_and_accepts_its_default() {
    let mut seen = HashSet::new();
    for key in JobSpec::keys() {
        assert!(key.doc.ends_with(['.', ')']) && !key.expects.is_empty(), "{}", key.path);
        assert!(seen.insert(key.path.clone()), "{} twice", key.path);
        if let Some(default) = key.default {
            let assignment = format!("{}={default}", key.path);
            assert_eq!(accepted("", &[&assignment]), JobSpec::default(), "{assignment}");
        }
    }
}
