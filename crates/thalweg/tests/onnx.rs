//! ONNX files in jobs and out of runs, as their users meet them. What the answers are is held against PyTorch in
//! `thalweg-graph`, and against onnxruntime in the external tests.

mod harness;

use harness::Site;
use std::path::Path;

/// A file of the graph's tests, copied into the site.
fn bring(site: &Site, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../graph/tests/onnx");
    site.write("net.onnx", std::fs::read(folder.join(name)).unwrap());
}

#[test]
fn a_model_of_pytorch_is_trained_and_needs_its_file_no_more() {
    let site = Site::new();
    bring(&site, "trainable-ts.onnx");
    site.write("job.toml", "[model]\nonnx = \"net.onnx\"\n[train]\nepochs = 12\n");
    let shown = site.succeed(&["inspect", "job.toml"]).stdout;
    assert!(shown.contains("Conv /first/Conv") && shown.contains("norm.running_mean"), "{shown}");
    let alone = site.succeed(&["inspect", "net.onnx"]).stdout;
    assert!(alone.contains("BatchNormalization /norm/BatchNormalization"), "{alone}");
    site.succeed(&["train", "job.toml", "--quiet", "--workers", "2", "--out", "run"]);
    let report = site.report("run");
    assert_eq!(
        (&report["job"]["model.onnx"], &report["job"]["model.layers"]),
        (&"net.onnx".into(), &().into())
    );
    assert!(report["final"]["accuracy"].as_f64().unwrap() > 0.85, "{report}");
    std::fs::remove_file(site.path("net.onnx")).unwrap();
    let evaluated = site.succeed(&["evaluate", "run"]).stdout;
    assert!(evaluated.starts_with("accuracy 0.8") || evaluated.starts_with("accuracy 0.9"), "{evaluated}");
    assert!(site.succeed(&["inspect", "run"]).stdout.contains("Conv /first/Conv"));
    // What goes out comes in again, and goes on from there.
    site.succeed(&["export", "run", "net.onnx"]);
    let settings =
        ["--set", "data.scale=none", "--set", "train.epochs=1", "--set", "train.optimizer.lr=1e-6"];
    site.succeed(&[&["train", "job.toml", "--quiet", "--out", "again"], &settings[..]].concat());
    let (before, after) = (site.report("run"), site.report("again"));
    let accuracy = |report: &serde_json::Value| report["final"]["accuracy"].as_f64().unwrap();
    assert!((accuracy(&before) - accuracy(&after)).abs() < 0.02, "{before} {after}");
    site.run(&["export", "run", "net.onnx"]).assert_error(2, &["net.onnx is there already"]);
    site.succeed(&["export", "run", "net.onnx", "--force"]);
    site.succeed(&["export", "run/model.safetensors"]);
    assert!(site.path("run/model.onnx").exists());
}

#[test]
fn what_cannot_be_trained_is_refused_before_anything_starts() {
    let site = Site::new();
    let train = |more: &[&str]| site.run(&[&["train", "--set", "model.onnx=net.onnx"], more].concat());
    train(&[]).assert_error(2, &["model.onnx: cannot read net.onnx"]);
    site.write("net.onnx", "no protobuf at all");
    train(&[]).assert_error(2, &["net.onnx: it is no ONNX model"]);
    bring(&site, "foreign.onnx");
    let ended = train(&[]);
    assert_eq!(ended.code, Some(2));
    for part in [
        "error: model.onnx: 3 nodes of operators that are not supported",
        "Cos (/Cos)",
        "Clip (/Clip)",
        "CumSum (/CumSum)",
    ] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    ended.assert_advice("docs/onnx.md");
    bring(&site, "mlp-ts.onnx");
    train(&[])
        .assert_error(2, &["input `input`: the file expects rows x 7, the data has rows of 64 numbers"]);
    bring(&site, "lstm-ts.onnx");
    train(&[]).assert_error(2, &["whole numbers (symbols of a text)"]);
    train(&["--set", "model.zoo=mlp"]).assert_error(2, &["says what the model is already"]);
    assert!(!site.path("runs").exists());
}

#[test]
fn a_run_goes_on_with_its_file() {
    let site = Site::new();
    bring(&site, "convolutions-ts.onnx");
    let arguments =
        ["train", "--quiet", "--out", "run", "--set", "model.onnx=net.onnx", "--set", "train.epochs=2"];
    site.succeed(&[&arguments[..], &["--set", "train.max_steps=10"]].concat());
    let resumed = [&arguments[..], &["--resume", "--workers", "1"]].concat();
    site.succeed(&resumed);
    assert!(site.report("run")["final"]["accuracy"].as_f64().unwrap() > 0.2);
}
