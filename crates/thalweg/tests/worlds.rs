//! The same job on any number of workers: the same result, every row once, and bit-identical repeats.

mod harness;

use harness::{Site, skip};
use std::path::{Path, PathBuf};
use thalweg_cluster::tensorfile::TensorFile;

/// Runs a job with these arguments and returns the bytes of its model.
fn train(site: &Site, run: &str, arguments: &[&str]) -> Vec<u8> {
    site.succeed(&[&["train", "--quiet", "--out", run], arguments].concat());
    std::fs::read(site.path(run).join("model.safetensors")).unwrap()
}

/// The Euclidean distance of two runs' parameters.
fn distance(site: &Site, one: &str, other: &str) -> f64 {
    let read = |run: &str| TensorFile::read(&site.path(run).join("model.safetensors")).unwrap().tensors;
    let (one, other) = (read(one), read(other));
    assert!(one.keys().eq(other.keys()));
    let values = one.values().zip(other.values()).flat_map(|(one, other)| {
        assert_eq!(one.shape, other.shape);
        one.values.iter().zip(other.values.iter())
    });
    values.map(|(one, other)| f64::from(one - other).powi(2)).sum::<f64>().sqrt()
}

/// Asserts that every training row was seen exactly once per epoch.
fn assert_audit(site: &Site, run: &str, rows: u64, epochs: usize) {
    let report = site.report(run);
    let audit = report["audit"].as_array().unwrap();
    assert_eq!(audit.len(), epochs);
    for (number, epoch) in audit.iter().enumerate() {
        let expected = serde_json::json!({
            "epoch": number, "expected": rows, "once": rows, "missed": 0, "repeated": 0, "dropped": 0,
        });
        assert_eq!(*epoch, expected, "{run}");
    }
}

fn accuracy(site: &Site, run: &str) -> f64 {
    site.report(run)["final"]["accuracy"].as_f64().unwrap()
}

#[test]
fn after_a_hundred_steps_every_world_size_agrees_with_one_worker() {
    let site = Site::new();
    for workers in ["1", "2", "3", "4"] {
        train(&site, workers, &["--workers", workers, "--set", "train.max_steps=100"]);
        let apart = distance(&site, "1", workers);
        assert!(apart <= 1e-5, "{workers} workers are {apart:e} from one");
    }
}

#[test]
fn every_world_size_gives_the_same_result_and_repeats_bit_by_bit() {
    let site = Site::new();
    for workers in ["1", "2", "3", "4"] {
        let first = train(&site, workers, &["--workers", workers]);
        let again = train(&site, &format!("{workers}-again"), &["--workers", workers]);
        assert!(first == again, "{workers} workers: the repeat differs");
        assert_audit(&site, workers, 1438, 30);
        let difference = accuracy(&site, workers) - accuracy(&site, "1");
        assert!(difference.abs() <= 0.003, "{workers} workers: accuracy differs by {difference}");
    }
    assert!(accuracy(&site, "1") >= 0.96);
}

#[test]
fn presets_of_the_same_mathematics_give_the_same_bits() {
    let site = Site::new();
    let short = ["--set", "train.max_steps=60"];
    let preset = |name: &str, workers: &str, run: &str| {
        train(&site, run, &[&short[..], &["--strategy", name, "--workers", workers]].concat());
        TensorFile::read(&site.path(run).join("model.safetensors")).unwrap().tensors
    };
    let reference = preset("allreduce", "2", "allreduce");
    for name in ["horovod", "pytorch-ddp", "baidu", "firecaffe", "caffe2"] {
        assert!(preset(name, "2", name) == reference, "{name} differs");
    }
    assert!(preset("single", "1", "single") == preset("allreduce", "1", "alone"), "one worker is one worker");
}

#[test]
fn ranks_without_a_row_in_a_step_change_nothing() {
    let site = Site::new();
    // Three rows per step for four workers; the last step of an epoch has one row.
    let odd = ["--set", "train.global_batch=3", "--set", "train.epochs=1"];
    for workers in ["1", "4"] {
        train(&site, workers, &[&odd[..], &["--workers", workers]].concat());
        assert_audit(&site, workers, 1438, 1);
    }
    assert!(distance(&site, "1", "4") <= 1e-3, "{}", distance(&site, "1", "4"));
}

#[test]
fn a_table_is_scaled_and_split_the_same_in_every_world_size() {
    let site = Site::new();
    let row = |n: u64| {
        let (a, b) = (n * 7919 % 1000, n * 104_729 % 997);
        let kind = ["red", "green", "blue"][(n % 3) as usize];
        format!("{a},{kind},{b},{}\n", if a + 300 * (n % 3) > b { "yes" } else { "no" })
    };
    site.write("rows.csv", "a,kind,b,larger\n".to_string() + &(0..1003).map(row).collect::<String>());
    for workers in ["1", "2", "3", "4"] {
        let source = ["--set", "data.source=rows.csv", "--set", "train.max_steps=100"];
        train(&site, workers, &[&source[..], &["--workers", workers]].concat());
        let apart = distance(&site, "1", workers);
        assert!(apart <= 1e-5, "{workers} workers are {apart:e} from one");
    }
}

#[test]
fn a_reproducible_job_writes_the_same_file_in_every_world_size() {
    let site = Site::new();
    let job = ["--set", "train.reproducible=true", "--set", "train.max_steps=60"];
    let alone = train(&site, "single", &[&job[..], &["--strategy", "single"]].concat());
    for (workers, transport) in [("1", "auto"), ("2", "shm"), ("3", "auto"), ("3", "tcp"), ("5", "tcp")] {
        let carrier = format!("strategy.exchange.transport={transport}");
        let run = format!("{workers}-{transport}");
        let model = train(&site, &run, &[&job[..], &["--workers", workers, "--set", &carrier]].concat());
        assert!(model == alone, "{workers} workers over {transport}: another file");
        assert_eq!(site.report(&run)["final"], site.report("single")["final"], "{run}");
        assert_eq!(site.report(&run)["epochs"], site.report("single")["epochs"], "{run}");
    }
    // Stopped, and resumed with another number of workers.
    train(
        &site,
        "cut",
        &["--set", "train.reproducible=true", "--set", "train.max_steps=25", "--workers", "3"],
    );
    let end = train(&site, "cut", &[&job[..], &["--workers", "2", "--resume"]].concat());
    assert!(end == alone, "resumed in another world: another file");
}

/// Shares depend on measured times, and so on the machine's load; the steps must not. The effect of shares on uneven
/// workers is asserted in virtual time (tests/simulation.rs).
#[test]
fn shares_by_speed_take_the_same_steps_and_the_report_has_the_times_of_each_rank() {
    let site = Site::new();
    let uneven = ["--workers", "4", "--set", "engine.slow={2=3.0}", "--set", "engine.pace=5ms"];
    for split in ["even", "speed"] {
        let split_by = format!("strategy.split={split}");
        train(&site, split, &[&uneven[..], &["--set", "train.max_steps=60", "--set", &split_by]].concat());
        let report = site.report(split);
        let ranks = report["ranks"].as_array().unwrap();
        let rows = |rank: &serde_json::Value| rank["rows"].as_u64().unwrap();
        assert!(ranks.len() == 4 && ranks.iter().all(|rank| rows(rank) > 0), "{ranks:?}");
        assert!(ranks.iter().all(|rank| rank["step_ms"]["median"].as_f64().unwrap() > 0.0), "{ranks:?}");
        let audit = report["audit"].as_array().unwrap().iter();
        let seen: u64 = audit.map(|epoch| epoch["once"].as_u64().unwrap()).sum();
        assert_eq!(ranks.iter().map(rows).sum::<u64>(), seen);
    }
    let apart = distance(&site, "even", "speed");
    assert!(apart <= 1e-4, "the same steps but for rounding: {apart:e}");
}

/// Folder of MNIST beside the workspace, if it exists.
fn mnist() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/mnist");
    if !folder.exists() {
        skip(format_args!("{} is not there", folder.display()));
    }
    folder.canonicalize().ok()
}

#[test]
fn mnist_on_two_workers_learns_and_agrees_with_other_world_sizes() {
    let Some(folder) = mnist() else { return };
    let site = Site::new();
    let source = format!("data.source={}", folder.display());
    let job = ["--set", &source, "--set", "train.global_batch=256", "--set", "train.epochs=1"];
    train(&site, "epoch", &[&job[..], &["--workers", "2"]].concat());
    assert!(accuracy(&site, "epoch") > 0.9, "{}", accuracy(&site, "epoch"));
    assert_audit(&site, "epoch", 60_000, 1);
    for workers in ["1", "2", "3"] {
        train(&site, workers, &[&job[..], &["--workers", workers, "--set", "train.max_steps=100"]].concat());
        let apart = distance(&site, "1", workers);
        assert!(apart <= 1e-5, "{workers} workers are {apart:e} from one");
    }
}
