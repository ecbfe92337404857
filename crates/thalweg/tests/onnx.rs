//! Import and export of ONNX files from the command line. `thalweg-graph` compares results with PyTorch, the external
//! tests with onnxruntime.

mod harness;

use harness::Site;
use std::path::Path;

/// Copies a file of the graph's tests into the site.
fn copy_fixture(site: &Site, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../graph/tests/onnx");
    site.write("net.onnx", std::fs::read(folder.join(name)).unwrap());
}

#[test]
fn a_pytorch_model_is_trained_and_its_file_is_no_longer_needed() {
    let site = Site::new();
    copy_fixture(&site, "trainable-ts.onnx");
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
    // An exported model can be imported and trained further, with scaled rows or unscaled ones.
    site.succeed(&["export", "run", "net.onnx"]);
    let accuracy = |run: &str| site.report(run)["final"]["accuracy"].as_f64().unwrap();
    for (run, scale) in [("again", "auto"), ("unscaled", "none")] {
        let scale = format!("data.scale={scale}");
        let settings =
            ["--set", &scale, "--set", "train.epochs=1", "--set", "train.optimizer.lr=1e-6", "--out", run];
        site.succeed(&[&["train", "job.toml", "--quiet"], &settings[..]].concat());
        assert!((accuracy("run") - accuracy(run)).abs() < 0.02, "{}", site.report(run));
    }
    let fitted = ["train", "job.toml", "--set", "data.scale=standard"];
    site.run(&fitted).assert_error(2, &["data.scale: the ONNX file was exported with the scaling"]);
    // A file of an earlier version does not record how its rows are scaled.
    let mut silent = std::fs::read(site.path("net.onnx")).unwrap();
    let place = silent.windows(12).position(|bytes| bytes == b"thalweg.rows").unwrap();
    silent[place..place + 12].copy_from_slice(b"another.rows");
    site.write("silent.onnx", silent);
    let train = ["train", "-q", "--set", "model.onnx=silent.onnx", "--set", "train.max_steps=1"];
    let ended = site.run(&train);
    ended.assert_error(2, &["an earlier version of thalweg exported this file", "scaled twice"]);
    ended.assert_advice("export it again, or set data.scale = \"none\"");
    site.succeed(&[&train[..], &["--set", "data.scale=none"]].concat());
    site.run(&["export", "run", "net.onnx"]).assert_error(2, &["net.onnx exists already"]);
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
    train(&[]).assert_error(2, &["net.onnx: not an ONNX file, but text"]);
    site.write("net.onnx", b"PK\x03\x04archive/data.pkl");
    train(&[]).assert_error(2, &["net.onnx: not an ONNX file, but a zip archive, as torch.save writes"]);
    site.write("net.onnx", "");
    train(&[]).assert_error(2, &["net.onnx: the file is empty"]);
    copy_fixture(&site, "foreign.onnx");
    let ended = train(&[]);
    assert_eq!(ended.code, Some(2));
    for part in [
        "error: model.onnx: net.onnx: 3 nodes of operators that are not supported",
        "Cos (/Cos)",
        "Clip (/Clip)",
        "CumSum (/CumSum)",
    ] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    ended.assert_advice("docs/onnx.md");
    copy_fixture(&site, "mlp-ts.onnx");
    train(&[])
        .assert_error(2, &["input `input`: the file expects rows x 7, the data has rows of 64 numbers"]);
    copy_fixture(&site, "lstm-ts.onnx");
    train(&[]).assert_error(2, &["integers (symbols of a text)"]);
    train(&["--set", "model.zoo=mlp"]).assert_error(2, &["defines the model already"]);
    assert!(!site.path("runs").exists());
}

#[test]
fn a_run_resumes_with_its_onnx_file() {
    let site = Site::new();
    copy_fixture(&site, "convolutions-ts.onnx");
    let arguments =
        ["train", "--quiet", "--out", "run", "--set", "model.onnx=net.onnx", "--set", "train.epochs=2"];
    site.succeed(&[&arguments[..], &["--set", "train.max_steps=10"]].concat());
    let resumed = [&arguments[..], &["--resume", "--workers", "1"]].concat();
    site.succeed(&resumed);
    assert!(site.report("run")["final"]["accuracy"].as_f64().unwrap() > 0.2);
}

/// Rows with columns of very different sizes, for a regression.
fn table(site: &Site) {
    let row = |n: u32| {
        let (a, b) = (n % 17, n * 7 % 13);
        format!("{},{},{}\n", 1000 + 50 * a, b as f32 / 1000.0, 5000 + 300 * a + 40 * b)
    };
    site.write("rows.csv", "a,b,y\n".to_string() + &(0..300).map(row).collect::<String>());
}

#[test]
fn an_exported_regression_is_imported_with_its_scaling() {
    let site = Site::new();
    table(&site);
    let job = ["train", "--quiet", "--set", "data.source=rows.csv", "--set", "data.task=regression"];
    let layers = "model.layers=['dense 16 tanh', 'dense auto']";
    site.succeed(&[&job[..], &["--set", layers, "--set", "train.epochs=40", "--out", "first"]].concat());
    site.succeed(&["export", "first", "net.onnx"]);
    let again =
        ["--set", "model.onnx=net.onnx", "--set", "train.max_steps=1", "--set", "train.optimizer.lr=1e-9"];
    site.succeed(&[&job[..], &again[..], &["--out", "second"]].concat());
    let error = |run: &str| site.report(run)["final"]["mae"].as_f64().unwrap();
    assert!((error("first") - error("second")).abs() < 1e-3 * error("first"), "{}", site.report("second"));
    // Rows of another distribution get the scaling of the training rows.
    let schema = |run: &str| thalweg_train::SavedModel::read(&site.path(run)).unwrap().schema;
    assert_eq!(schema("first").scaling, schema("second").scaling);
    assert_eq!(schema("first").target, schema("second").target);
    site.write("other.csv", "a,b,y\n".to_string() + &"3,900,1\n5,800,2\n4,700,3\n9,100,4\n".repeat(20));
    let other = ["train", "--quiet", "--set", "data.source=other.csv", "--set", "data.task=regression"];
    site.succeed(&[&other[..], &again[..], &["--out", "third"]].concat());
    assert_eq!(schema("first").scaling, schema("third").scaling);
    site.write("wide.csv", "a,b,c,y\n".to_string() + &"3,9,1,1\n5,8,2,4\n".repeat(20));
    let wide = ["train", "--set", "data.source=wide.csv", "--set", "data.task=regression"];
    let ended = site.run(&[&wide[..], &again[..], &["--out", "fourth"]].concat());
    ended.assert_error(2, &["model.onnx: it was trained on rows of 2 numbers, the data has 3"]);
}
