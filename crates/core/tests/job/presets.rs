//! Presets: their values, what they cover of their systems, and resolved files whose preset has changed.

use crate::{accepted, refused_with, resolve};
use std::path::Path;
use thalweg_core::spec::preset::{self, DialKind, UPDATE_RULE};
use thalweg_core::spec::{JobSpec, Origin};

#[test]
fn every_preset_resolves() {
    let keys: Vec<String> = JobSpec::keys().into_iter().map(|key| key.path).collect();
    for preset in preset::all() {
        let job = resolve("", &[&format!("strategy.preset={}", preset.name)]).unwrap();
        let values = job.spec.values();
        for (dial, value) in preset.values(job.spec.engine.workers) {
            assert!(keys.iter().any(|key| key == dial.key), "{}: no key {}", preset.name, dial.key);
            let found = values.iter().find(|(path, _)| path == dial.key).map(|(_, value)| value);
            assert_eq!(found, Some(&value), "{}: {}", preset.name, dial.key);
            let origin = job.layers.origin(dial.key);
            assert!(matches!(origin, Origin::Preset { name, .. } if name == preset.name), "{}", dial.key);
        }
        let text = job.spec.to_toml();
        assert!(text.contains(&format!("preset = \"{}\"", preset.name)), "{text}");
        assert_eq!(accepted(&text, &[]), job.spec);
    }
}

#[test]
fn a_preset_with_an_optimizer_sets_kind_and_rate_as_defaults() {
    for preset in preset::all() {
        let of = |key: &str| preset.dials.iter().any(|dial| dial.key == format!("train.optimizer.{key}"));
        let own = || preset.dials.iter().filter(|dial| dial.key.starts_with("train.optimizer."));
        assert!(own().all(|dial| dial.kind == DialKind::Default), "{}", preset.name);
        assert!(own().next().is_none() || (of("kind") && of("lr")), "{}", preset.name);
    }
}

/// A preset that lists nothing as missing covers its system: the update rule and every fixed dial.
#[test]
fn presets_without_missing_features_cover_their_system() {
    for preset in preset::all() {
        assert!(!preset.missing.is_empty() || preset.covers_all(), "{} covers too little", preset.name);
    }
}

#[test]
fn what_a_preset_covers_is_a_key_or_a_test_that_exists() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if !crates.join("thalweg/tests").exists() {
        return eprintln!("skipped: the other crates are not part of this copy");
    }
    let sources = sources(&crates);
    let keys: Vec<String> = JobSpec::keys().into_iter().map(|key| key.path).collect();
    for preset in preset::all() {
        assert!(!preset.covers.is_empty(), "{}", preset.name);
        for (element, by) in preset.covers {
            let is_test = sources.contains(&format!("#[test]\nfn {by}()"));
            assert!(is_test || keys.iter().any(|key| key == by), "{}: no key or test {by}", preset.name);
            assert!(*element != UPDATE_RULE || is_test, "{}: {by} is no test", preset.name);
        }
    }
}

/// The text of all sources below a folder, without indentation.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let source = std::fs::read_to_string(path).unwrap();
            source.lines().for_each(|line| text += &format!("{}\n", line.trim_start()));
        }
    }
    text
}

#[test]
fn a_resolved_file_keeps_its_values_whatever_its_preset_sets_now() {
    let changed = accepted("", &["strategy.preset=horovod"]).to_toml().replace("64MiB", "32MiB");
    let spec = accepted(&changed, &[]);
    assert!(spec.exchange.bucket != accepted("", &["strategy.preset=horovod"]).exchange.bucket);
    assert!(!spec.to_toml().contains("preset"), "it is no job of that preset any more");
    assert_eq!(accepted(&spec.to_toml(), &[]).to_toml(), spec.to_toml());
    // A preset that does not exist any more.
    assert_eq!(accepted(&changed.replace("horovod", "gone"), &[]).exchange, spec.exchange);
    // A file that does not say so names its preset as ever.
    let unmarked = changed.replace("resolved = true\n", "");
    refused_with(&unmarked, &[], &["strategy.exchange.bucket = \"32MiB\" conflicts with preset `horovod`"]);
    refused_with(&unmarked.replace("horovod", "gone"), &[], &["unknown preset `gone`"]);
    refused_with("resolved = 3", &[], &["job.toml:1: resolved: expected true or false, got 3"]);
    // Nor does a flag yield to it.
    let flag = ["strategy.exchange.bucket=16MiB"];
    refused_with(&changed, &flag, &["--set strategy.exchange.bucket=16MiB", "conflicts with preset"]);
}
