//! The run folder: chosen, claimed and kept from mixing two runs.

use std::fs;
use std::path::{Path, PathBuf};
use thalweg_cluster::checkpoint;
use thalweg_cluster::tensorfile::write_atomically;
use thalweg_core::{Error, Kind, Result};

/// What a run leaves in its folder.
const TRACES: [&str; 4] = ["report.json", "events.jsonl", "model.safetensors", "job.toml"];

/// Which folder a run goes to.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// As asked for with `--out`.
    pub out: Option<PathBuf>,
    /// Go on from what is there, or start fresh.
    pub resume: bool,
    /// Throw away what is there.
    pub overwrite: bool,
}

/// A run folder, claimed for this run.
#[derive(Clone, Debug)]
pub struct RunFolder {
    /// Where it is.
    pub path: PathBuf,
    /// Whether there is something to go on from.
    pub resumes: bool,
    /// It is new: if nothing starts, it goes again.
    fresh: bool,
}

impl RunFolder {
    /// Chooses and claims the folder of a run.
    pub fn claim(name: &str, choice: &Choice) -> Result<RunFolder> {
        let (path, fresh) = match &choice.out {
            Some(path) => (path.clone(), !path.exists()),
            None => numbered(name, choice.resume)?,
        };
        if path.is_file() {
            return Err(Error::job(format!("{} is a file, not a folder", path.display()))
                .hint("choose another --out"));
        }
        fs::create_dir_all(&path).map_err(|error| unwritable(&path, &error))?;
        let folder = RunFolder { resumes: choice.resume && has_checkpoint(&path), fresh, path };
        folder.probe()?;
        if choice.overwrite {
            folder.clear()?;
        } else if !choice.resume && has_run(&folder.path) {
            return Err(Error::job(format!("{} holds a run already", folder.path.display())).hint(
                "choose another --out, go on from there with --resume, or throw it away with --overwrite",
            ));
        }
        Ok(folder)
    }

    /// Writes something and takes it away again: better to find out now than after an hour.
    fn probe(&self) -> Result<()> {
        let probe = self.path.join(format!(".probe.{}.tmp", std::process::id()));
        let result = fs::write(&probe, [0; 4096]);
        let _ = fs::remove_file(&probe);
        result.map_err(|error| unwritable(&self.path, &error))
    }

    fn clear(&self) -> Result<()> {
        let broken =
            |error: std::io::Error| Error::io(format!("cannot clear {}", self.path.display()), &error);
        for entry in fs::read_dir(&self.path).map_err(broken)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if TRACES.contains(&name.as_str()) || name.starts_with("events.out.tfevents.") {
                fs::remove_file(entry.path()).map_err(broken)?;
            } else if name == "checkpoints" {
                for path in checkpoint::list(&entry.path()) {
                    fs::remove_file(path).map_err(broken)?;
                }
            }
        }
        Ok(())
    }

    /// Keeps the resolved job beside its results.
    pub fn keep_job(&self, toml: &str) -> Result<()> {
        write_atomically(&self.path.join("job.toml"), toml.as_bytes())
    }

    /// Nothing was started: a folder made for this run goes again.
    pub fn abandon(&self) {
        if self.fresh {
            // Only an empty folder can be removed this way, so nothing is lost.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    let mut refused = Error::io(format!("cannot write to the output folder {}", path.display()), error);
    if error.kind() != std::io::ErrorKind::StorageFull {
        refused.kind = Kind::Job;
        refused.hint = Some("choose a folder you may write to with --out".into());
    }
    refused
}

fn has_checkpoint(path: &Path) -> bool {
    !checkpoint::list(&path.join("checkpoints")).is_empty()
}

fn has_run(path: &Path) -> bool {
    TRACES.iter().any(|trace| path.join(trace).exists()) || has_checkpoint(path)
}

/// `runs/NAME-N`: the first free number, or the last one used if a run is to be resumed.
fn numbered(name: &str, resume: bool) -> Result<(PathBuf, bool)> {
    let runs = Path::new("runs");
    let prefix = format!("{name}-");
    let numbers = fs::read_dir(runs)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(&prefix)?.parse::<u64>().ok());
    let last = numbers.max();
    if let (true, Some(last)) = (resume, last) {
        return Ok((runs.join(format!("{prefix}{last}")), false));
    }
    fs::create_dir_all(runs).map_err(|error| unwritable(runs, &error))?;
    let mut number = last.unwrap_or(0) + 1;
    loop {
        let path = runs.join(format!("{prefix}{number}"));
        // Making it is claiming it: of two jobs that start together only one succeeds.
        match fs::create_dir(&path) {
            Ok(()) => return Ok((path, true)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(unwritable(&path, &error)),
        }
    }
}
