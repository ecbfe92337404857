//! A program with its own network and data: the example works and is short, and a rank that never opens its data is
//! blamed.

mod harness;

use harness::{Process, Site, TRAINING_LIMIT, skip};
use std::path::Path;
use thalweg::{Data, Targets, Trainer};

/// Set for the program whose rank 1 never opens its data: how long the others wait.
const HANGS: &str = "TEST_HANGS";

#[test]
fn the_example_trains_its_own_model_on_two_workers() {
    // `cargo test` builds the examples beside the binary; `cargo test --test library` alone does not.
    let example = Path::new(env!("CARGO_BIN_EXE_thalweg")).with_file_name("examples").join("own_model");
    if !example.exists() {
        return skip(format_args!("{} is not built", example.display()));
    }
    let site = Site::new();
    let ended = Process::start(site.program(&example, &[])).end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let accuracy: f64 = ended.stdout.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap();
    assert!(accuracy > 0.9, "{}", ended.stdout);
    assert_eq!(ended.stdout.lines().count(), 1, "its workers print nothing: {}", ended.stdout);
    let report = site.report("runs/circle-1");
    assert_eq!(report["ranks"].as_array().unwrap().len(), 2);
    assert!(site.path("runs/circle-1/model.safetensors").exists());
    site.assert_empty();
}

#[test]
fn the_example_is_short() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/own_model.rs");
    let Ok(text) = std::fs::read_to_string(&path) else {
        return skip(format_args!("{} is not part of this copy", path.display()));
    };
    assert!(text.lines().count() < 40, "{} lines", text.lines().count());
}

/// The program that the test below starts; without its variable it does nothing.
#[test]
fn a_program_whose_rank_1_never_opens_its_data() {
    let Ok(deadline) = std::env::var(HANGS) else { return };
    let deadline = format!("fault.prepare_deadline={deadline}");
    let trainer = Trainer::new("stuck").quiet(true).set("engine.workers=3").set("fault.elastic=false");
    let trainer = trainer.set(&deadline).data(|job| {
        while std::env::var("RANK").is_ok_and(|rank| rank == "1") {
            std::thread::park();
        }
        let rows = (0..100).map(|row| row as f32).collect();
        Data::in_memory(1, rows, Targets::Values(vec![1.0; 100]), 0.2, job.train.seed)
    });
    println!("error: {}", trainer.run().unwrap_err());
}

#[test]
fn a_rank_that_never_opens_its_data_is_named() {
    let site = Site::new();
    let program = std::env::current_exe().unwrap();
    let mut command =
        site.program(program, &["--exact", "a_program_whose_rank_1_never_opens_its_data", "--nocapture"]);
    command.env(HANGS, "1s");
    let ended = Process::start(command).end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let error = ended.stdout.lines().find(|line| line.contains("error: ")).unwrap_or_default();
    for part in
        ["error: rank 1 on ", " has been busy with reading the data for ", "waited for it in all-gather"]
    {
        assert!(error.contains(part), "{part:?} is missing in {error:?}");
    }
    assert_eq!(site.report("runs/stuck-1")["failures"][0]["rank"], 1);
    site.assert_empty();
}
