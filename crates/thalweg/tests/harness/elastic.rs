//! An elastic job for the tests of losses, joins and leaves, and assertions about its report.

use super::{Process, Site, TRAINING_LIMIT};
use serde_json::Value;

/// Some thousand steps on the digits, slow enough for a signal to hit one.
pub const LONG: [&str; 9] = [
    "train",
    "--out",
    "run",
    "--set",
    r#"model.layers=["dense 512 relu", "dense auto"]"#,
    "--set",
    "train.epochs=60",
    "--set",
    "engine.pace=2ms",
];

/// A third of the steps, for jobs in which no new worker is to arrive.
pub fn start_short(site: &Site, workers: usize, more: &[&str]) -> Process {
    start(site, workers, &[&["--set", "train.epochs=20"], more].concat())
}

pub fn start(site: &Site, workers: usize, more: &[&str]) -> Process {
    let workers = workers.to_string();
    let process = site.start(&[&LONG[..], &["--workers", &workers], more].concat());
    site.await_step("run", 1);
    process
}

/// Asserts success, and that every row was seen once per epoch.
pub fn assert_complete(site: &Site, process: Process) -> Value {
    let ended = process.end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    site.assert_empty();
    let report = site.report("run");
    assert_eq!(report["outcome"], "completed");
    let audit = report["audit"].as_array().unwrap();
    assert_eq!(Some(audit.len() as u64), report["job"]["train.epochs"].as_u64());
    for epoch in audit {
        assert_eq!((&epoch["missed"], &epoch["repeated"]), (&Value::from(0), &Value::from(0)), "{epoch}");
    }
    assert!(report["final"]["accuracy"].as_f64().unwrap() > 0.95, "{}", report["final"]);
    report
}

pub fn worlds(report: &Value) -> Vec<u64> {
    report["world"].as_array().unwrap().iter().map(|world| world["workers"].as_u64().unwrap()).collect()
}

pub fn assert_failure(report: &Value, rank: usize, cause: &str) {
    let failures = report["failures"].as_array().unwrap();
    let failure =
        failures.iter().find(|failure| failure["rank"] == rank).unwrap_or_else(|| panic!("{failures:?}"));
    assert!(failure["cause"].as_str().unwrap().contains(cause), "{failure}");
    assert!(failure["operation"].is_string() && failure["step"].is_u64(), "{failure}");
    assert!(failure["recover_s"].is_number(), "{failure}");
    assert!(failure["steps_redone"].as_u64().unwrap() <= 1, "{failure}");
}
