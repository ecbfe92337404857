//! The example of a user's own network and data: it works, and it is as short as promised.

mod harness;

use harness::{PATIENCE, Process, Site, skip};
use std::path::Path;

#[test]
fn the_example_trains_its_own_model_on_two_workers() {
    // `cargo test` builds the examples beside the binary; `cargo test --test library` alone does not.
    let example = Path::new(env!("CARGO_BIN_EXE_thalweg")).with_file_name("examples").join("own_model");
    if !example.exists() {
        return skip(format_args!("{} is not built", example.display()));
    }
    let site = Site::new();
    let ended = Process::start(site.program(&example, &[])).end(PATIENCE);
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
