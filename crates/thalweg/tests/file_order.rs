//! Format 2 of models and checkpoints, with tensors in PyTorch's order; files of format 1, in memory order, can still
//! be read, and runs of earlier versions resumed.

mod harness;

use harness::Site;
use std::path::{Path, PathBuf};
use thalweg_cluster::checkpoint::{self, Checkpoint};
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_core::Model;
use thalweg_train::SavedModel;

/// Files of format 1, from a job of 40 steps over the digits with convolution, batch normalisation after a flattened
/// image, and momentum; with rows and the predictions of that version.
fn old(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format-1").join(name)
}

/// The same model and checkpoint in format 2. These fixtures are never regenerated: the order of tensors is not stored
/// in the file, and the code that computes it must keep agreeing with them.
fn format_2(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format-2").join(name)
}

/// The numbers of a table after its header.
fn numbers(text: &str) -> Vec<Vec<f64>> {
    let line = |line: &str| line.split(',').map(|word| word.parse().unwrap()).collect();
    text.lines().skip(1).map(line).collect()
}

/// Converts a file to format 1.
fn make_old(path: &Path, layout: &thalweg_core::Layout) {
    let mut file = TensorFile::read(path).unwrap();
    let slots = file.metadata["slots"].clone();
    let prefixes =
        std::iter::once(String::new()).chain(slots.split_whitespace().map(|slot| format!("{slot}.")));
    for prefix in prefixes {
        for tensor in layout.tensors() {
            let name = format!("{prefix}{}", tensor.name);
            let values = file.in_memory_order(&name, tensor).unwrap().into_owned();
            file.push(name, tensor.shape.clone(), values);
        }
    }
    file.metadata.insert("format".into(), "1".into());
    file.write(path).unwrap();
}

#[test]
fn a_model_of_format_1_gives_the_same_predictions() {
    let site = Site::new();
    let (model, rows) = (old("model.safetensors"), old("rows.csv"));
    let output =
        site.succeed(&["predict", model.to_str().unwrap(), rows.to_str().unwrap(), "--probabilities"]);
    let expected = std::fs::read_to_string(old("predictions.csv")).unwrap();
    let (output, expected) = (numbers(&output.stdout), numbers(&expected));
    assert_eq!(output.len(), expected.len());
    for (output, expected) in output.iter().flatten().zip(expected.iter().flatten()) {
        assert!((output - expected).abs() < 1e-5, "{output} instead of {expected}");
    }
}

#[test]
fn files_of_format_2_hold_the_same_parameters_in_another_order() {
    let [before, today] = [old("model.safetensors"), format_2("model.safetensors")]
        .map(|path| SavedModel::read(&path).unwrap().network().unwrap());
    assert_eq!(before.1, today.1);
    let name = "step-000000040.safetensors";
    let checkpoints =
        [old(name), format_2(name)].map(|path| Checkpoint::read(&path, today.0.layout()).unwrap());
    assert_eq!(checkpoints[0], checkpoints[1]);
    let stored = |path: PathBuf| {
        let file = TensorFile::read(&path).unwrap();
        (file.metadata["format"].clone(), file.tensors["layers.5.weight"].values.to_vec())
    };
    let [(first, memory), (second, file)] = [old(name), format_2(name)].map(stored);
    assert_eq!((first.as_str(), second.as_str()), ("1", "2"));
    assert_ne!(memory, file);
}

#[test]
fn a_structure_that_format_1_read_differently_is_refused_with_advice() {
    let site = Site::new();
    let net = Path::new(env!("CARGO_MANIFEST_DIR")).join("../graph/tests/onnx/trainable-ts.onnx");
    site.write("net.onnx", std::fs::read(net).unwrap());
    let job = ["train", "-q", "--out", "run", "--set", "model.onnx=net.onnx", "--set", "train.max_steps=1"];
    site.succeed(&job);
    let path = site.path("run/model.safetensors");
    let mut saved = SavedModel::read(&path).unwrap();
    let structure = saved.onnx.as_mut().unwrap();
    let name = b"dilations";
    let place = structure.windows(name.len()).position(|bytes| bytes == name).unwrap();
    structure[place + name.len() - 1] = b'z';
    saved.tensors.metadata.insert("format".into(), "1".into());
    saved.write(&path).unwrap();
    let ended = site.run(&["evaluate", "run/model.safetensors"]);
    ended.assert_error(2, &["the ONNX structure of this model: ", "attribute `dilationz`"]);
    ended.assert_advice("the version that trained this model ignored what is named here");
}

#[test]
fn a_checkpoint_of_format_1_holds_the_same_parameters() {
    let (network, parameters) = SavedModel::read(&old("model.safetensors")).unwrap().network().unwrap();
    let checkpoint = Checkpoint::read(&old("step-000000040.safetensors"), network.layout()).unwrap();
    assert_eq!(checkpoint.parameters, parameters);
    assert_eq!(checkpoint.slots[0].1.len(), parameters.len());
    // Written again, it is in format 2 and reads the same.
    let folder = tempfile::tempdir().unwrap();
    let path = checkpoint.write(folder.path(), network.layout(), 2).unwrap();
    let file = TensorFile::read(&path).unwrap();
    assert_eq!(file.metadata["format"], "2");
    assert_eq!(&*file.tensors["layers.1.weight"].shape, [3, 1, 3, 3]);
    assert_eq!(Checkpoint::read(&path, network.layout()).unwrap(), checkpoint);
    // The third channel of the first point follows all points of the first two.
    let tensor = network.layout().tensors().iter().find(|tensor| tensor.name == "layers.5.weight").unwrap();
    let memory = &parameters[tensor.range()];
    assert_eq!(file.tensors["layers.5.weight"].values[18], memory[2]);
    assert_ne!(memory[18], memory[2]);
}

#[test]
fn a_run_resumes_from_a_checkpoint_of_format_1() {
    let site = Site::new();
    let layers =
        r#"model.layers=["reshape 8x8x1", "conv 3 3x3 relu", "pool max 2", "dense 6", "dense auto"]"#;
    let job = ["train", "--quiet", "--set", layers, "--set", "train.epochs=3"];
    let with = |more: &[&'static str]| [&job[..], more].concat();
    site.succeed(&with(&["--out", "whole", "--set", "train.max_steps=50"]));
    site.succeed(&with(&["--out", "halves", "--set", "train.max_steps=30"]));
    let (network, _) = SavedModel::read(&site.path("halves")).unwrap().network().unwrap();
    let kept = checkpoint::list(&site.path("halves/checkpoints"));
    assert!(!kept.is_empty());
    kept.iter().for_each(|path| make_old(path, network.layout()));
    site.succeed(&["resume", "halves", "--quiet", "--workers", "2", "--set", "train.max_steps=50"]);
    let [whole, halves] =
        ["whole", "halves"].map(|run| TensorFile::read(&site.path(run).join("model.safetensors")));
    let (whole, halves) = (whole.unwrap(), halves.unwrap());
    for (name, tensor) in &whole.tensors {
        let pairs = tensor.values.iter().zip(&*halves.tensors[name].values);
        assert!(pairs.into_iter().all(|(left, right)| (left - right).abs() < 1e-4), "{name} differs");
    }
}

/// A run of the version before strategies had named state (commit 4768c95): 8 steps over the digits with Adam and 2 workers,
/// in the middle of an epoch. It is never regenerated.
#[test]
fn a_run_of_an_earlier_version_resumes() {
    let site = Site::new();
    let earlier = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/earlier-run");
    std::fs::create_dir_all(site.path("run/checkpoints")).unwrap();
    for (name, to) in [
        ("job.toml", "run/job.toml"),
        ("step-000000008.safetensors", "run/checkpoints/step-000000008.safetensors"),
    ] {
        site.write(to, std::fs::read(earlier.join(name)).unwrap());
    }
    site.succeed(&["resume", "run", "--quiet", "--set", "train.max_steps=46"]);
    let report = site.report("run");
    assert_eq!((&report["steps"], &report["first_step"]), (&46.into(), &8.into()));
    assert_eq!(report["job"]["strategy.preset"], "allreduce");
    for epoch in report["audit"].as_array().unwrap() {
        assert_eq!((&epoch["expected"], &epoch["once"]), (&1438.into(), &1438.into()), "{epoch}");
        assert_eq!((&epoch["missed"], &epoch["repeated"]), (&0.into(), &0.into()), "{epoch}");
    }
    let layers = r#"model.layers=["dense 4 tanh", "dense auto"]"#;
    let whole = ["--workers", "2", "--set", layers, "--set", "train.max_steps=46"];
    site.succeed(&[&["train", "--quiet", "--out", "whole"], &whole[..]].concat());
    let [resumed, whole] =
        ["run", "whole"].map(|run| SavedModel::read(&site.path(run)).unwrap().network().unwrap().1);
    let worst = resumed.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(resumed.len() == whole.len() && worst < 1e-5, "{worst:e}");
}
