//! A sample of the cases through the `thalweg` binary: exit codes and what is printed.

use super::supervise::{Batch, Tally};
use crate::command::Outcome;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time that a command may take on a busy machine.
const MOST_WAIT: Duration = Duration::from_secs(120);

/// Runs the files of some cases.
pub fn run(thalweg: &Path, batch: &Batch, first: u64, count: u64, tally: &mut Tally) -> Outcome {
    let folder = std::env::temp_dir().join(format!("thalweg-fuzz-{}-files", std::process::id()));
    let ran =
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()));
    let ran = ran.and_then(|()| {
        let written = batch.written(first, count, &folder)?;
        for (case, line) in (first..).zip(written.lines()) {
            if let Some((kind, path)) = line.split_once(' ')
                && let Some(arguments) = arguments(kind, Path::new(path))
            {
                tally.cases += 1;
                match outcome(thalweg, &arguments, Path::new(path), kind)? {
                    None => {}
                    Some(finding) => {
                        tally.found(
                            batch,
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

/// The command for a file; nothing for those that only running jobs read.
fn arguments(kind: &str, path: &Path) -> Option<Vec<String>> {
    let folder = path.parent()?.display().to_string();
    let shown = path.display().to_string();
    let source = if kind == "idx" { &folder } else { &shown };
    let words: Vec<String> = match kind {
        "job" => vec!["config".into(), shown],
        "onnx" | "model" => vec!["inspect".into(), shown],
        "checkpoint" => vec!["inspect".into(), Path::new(&folder).parent()?.display().to_string()],
        "csv" | "tsv" | "libsvm" | "parquet" | "gz" | "text" | "idx" => {
            let mut words =
                vec!["train".to_string(), "--quiet".into(), "--out".into(), format!("{folder}/run")];
            let source = format!("data.source={source}");
            for setting in [&source, "train.max_steps=2", "engine.workers=1", "data.window=3"] {
                words.extend(["--set".into(), setting.into()]);
            }
            words
        }
        _ => return None,
    };
    Some(words)
}

/// What is wrong with how the command ended.
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
            None if begun.elapsed() > MOST_WAIT => {
                let _ = child.kill();
                let _ = child.wait();
                return Ok(Some("does not end".into()));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let told = fs::read_to_string(&errors).unwrap_or_default();
    let named = |part: Option<&Path>| part.is_some_and(|part| told.contains(&*part.display().to_string()));
    Ok(match status.code() {
        Some(0) => None,
        // Numbers that can be read may still be too large to learn from.
        Some(3) if told.contains("finite") => None,
        Some(2) if told.contains("panicked") => Some(format!("panicked: {told}")),
        Some(2) if kind == "job" || named(Some(path)) || named(path.parent()) => None,
        Some(2) => Some(format!("does not name the file: {told}")),
        _ => Some(format!("{status}: {told}")),
    })
}
