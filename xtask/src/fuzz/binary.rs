//! A sample of the cases through the `thalweg` binary: exit codes and error messages.

use super::supervise::{CaseRunner, FuzzResults};
use crate::command::Outcome;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout of a command on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

pub fn run(
    thalweg: &Path,
    runner: &CaseRunner,
    first: u64,
    count: u64,
    results: &mut FuzzResults,
) -> Outcome {
    let folder = std::env::temp_dir().join(format!("thalweg-fuzz-{}-files", std::process::id()));
    let ran =
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()));
    let ran = ran.and_then(|()| {
        let written = runner.written(first, count, &folder)?;
        for (case, line) in (first..).zip(written.lines()) {
            if let Some((kind, path)) = line.split_once(' ')
                && let Some(arguments) = arguments(kind, Path::new(path))
            {
                results.cases += 1;
                match outcome(thalweg, &arguments, Path::new(path), kind)? {
                    None => {}
                    Some(finding) => {
                        results.found(
                            runner,
                            case,
                            &format!("{kind}, thalweg {}: {finding}", arguments.join(" ")),
                        );
                    }
                }
            }
        }
        Ok(())
    });
    let _ = fs::remove_dir_all(&folder);
    ran
}

/// The command for a file; None for files that only running jobs read.
fn arguments(kind: &str, path: &Path) -> Option<Vec<String>> {
    let folder = path.parent()?.display().to_string();
    let shown = path.display().to_string();
    let source = if kind == "idx" { &folder } else { &shown };
    let arguments: Vec<String> = match kind {
        "job" => vec!["config".into(), shown],
        "onnx" | "model" => vec!["inspect".into(), shown],
        "checkpoint" => vec!["inspect".into(), Path::new(&folder).parent()?.display().to_string()],
        "csv" | "tsv" | "libsvm" | "parquet" | "gz" | "text" | "idx" => {
            let mut arguments =
                vec!["train".to_string(), "--quiet".into(), "--out".into(), format!("{folder}/run")];
            let source = format!("data.source={source}");
            for setting in [&source, "train.max_steps=2", "engine.workers=1", "data.window=3"] {
                arguments.extend(["--set".into(), setting.into()]);
            }
            arguments
        }
        _ => return None,
    };
    Some(arguments)
}

/// The finding, if the command ended wrongly.
fn outcome(thalweg: &Path, arguments: &[String], path: &Path, kind: &str) -> Outcome<Option<String>> {
    let errors = path.with_extension("stderr");
    let file =
        fs::File::create(&errors).map_err(|error| format!("cannot write {}: {error}", errors.display()))?;
    let mut command = Command::new(thalweg);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let mut child =
        command.spawn().map_err(|error| format!("cannot start {}: {error}", thalweg.display()))?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if begun.elapsed() > TIMEOUT => {
                let _ = child.kill();
                let _ = child.wait();
                return Ok(Some("does not exit".into()));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let stderr = fs::read_to_string(&errors).unwrap_or_default();
    let named = |part: Option<&Path>| part.is_some_and(|part| stderr.contains(&*part.display().to_string()));
    Ok(match status.code() {
        Some(0) => None,
        // Valid numbers may be too large to train on.
        Some(3) if stderr.contains("finite") => None,
        Some(2) if stderr.contains("panicked") => Some(format!("panicked: {stderr}")),
        Some(2) if kind == "job" || named(Some(path)) || named(path.parent()) => None,
        Some(2) => Some(format!("does not name the file: {stderr}")),
        _ => Some(format!("{status}: {stderr}")),
    })
}
