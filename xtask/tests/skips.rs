//! Skipped tests are not reported as passed, neither by xtask nor in the summary of `.ci/run`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Creates an empty folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn printed(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn without_python_all_external_tests_are_skipped_and_nothing_is_installed() {
    let empty = folder("no-programs");
    let own = folder("own-folder");
    let (code, output) = printed(
        Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["test", "--external"])
            .env("PATH", &empty)
            .env("THALWEG_EXTERNAL", &own),
    );
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("\nskipped: all external tests: cannot get python3"), "{output}");
    assert!(output.ends_with("external: 0 passed, 0 failed, all skipped\n"), "{output}");
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
}

/// The summary of `.ci/run` if the external tests print this and exit with that code.
fn summary(name: &str, output: &str, code: i32) -> (Option<i32>, String) {
    let folder = folder(name);
    let cargo = folder.join("cargo");
    let script = format!("#!/bin/sh\n[ \"$2\" = test ] || exit 0\nprintf '{output}'\nexit {code}\n");
    fs::write(&cargo, script).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/run");
    let (code, output) =
        printed(Command::new(run).env("PATH", path).env("THALWEG_CI_CACHE", folder.join("cache")));
    (code, output.split_once("=== summary\n").unwrap().1.to_string())
}

/// The result of a stage in the summary.
fn verdict(summary: &str, stage: &str) -> String {
    summary.lines().find_map(|line| line.split_once(stage)).unwrap().1.trim().to_string()
}

#[test]
fn the_summary_distinguishes_passed_skipped_and_failed() {
    let all =
        "skipped: all external tests: cannot get python3\\nexternal: 0 passed, 0 failed, all skipped\\n";
    let some = "SKIPPED [1] test_hosts.py:12: no ip\\nexternal: 3 passed, 0 failed, 1 skipped\\n";
    let none = "external: 4 passed, 0 failed, 0 skipped\\n";
    for (name, output, expected) in
        [("all", all, "skipped"), ("some", some, "passed, some skipped"), ("none", none, "passed")]
    {
        let (code, summary) = summary(&format!("ci-{name}"), output, 0);
        assert_eq!(code, Some(0), "{summary}");
        assert_eq!(verdict(&summary, "cargo xtask test --external"), expected, "{summary}");
        assert_eq!(verdict(&summary, "cargo xtask verify"), "passed", "{summary}");
        assert!(summary.contains(output.lines().next().unwrap().split("\\n").next().unwrap()), "{summary}");
    }
    let (code, summary) = summary("ci-failed", "external: 3 passed, 1 failed, 0 skipped\\n", 1);
    assert_eq!(code, Some(1), "{summary}");
    assert_eq!(verdict(&summary, "cargo xtask test --external"), "FAILED (exit code 1)", "{summary}");
}
