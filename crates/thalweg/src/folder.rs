//! The run folder: chosen, claimed and kept from mixing two runs.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thalweg_cluster::checkpoint;
use thalweg_cluster::durable::write_atomically;
use thalweg_cluster::regular;
use thalweg_core::spec::NAME;
use thalweg_core::spec::paths::{NO_URLS, is_url, within};
use thalweg_core::{Error, JobSpec, Kind, Result};
use thalweg_train::kept;

/// What a run leaves in its folder.
const TRACES: [&str; 4] = ["report.json", "events.jsonl", MODEL, JOB];

/// The name of the job's copy in a run folder.
pub const JOB: &str = "job.toml";

/// The name of the finished model in a run folder.
pub const MODEL: &str = "model.safetensors";

/// The name of the file whose lock says that a run folder is in use.
const LOCK: &str = ".lock";

/// Whoever only looks whether a folder is in use holds its lock for a moment.
const GLANCE: Duration = Duration::from_millis(200);

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

/// The folders that were made for a run, the innermost first: if nothing starts, they go again.
#[derive(Clone, Debug)]
pub struct Made {
    folders: Vec<PathBuf>,
    lock: PathBuf,
}

impl Made {
    /// Takes them away. Only empty folders can be removed this way, so nothing is lost.
    pub fn remove(&self) {
        if !self.folders.is_empty() {
            let _ = fs::remove_file(&self.lock);
        }
        for folder in &self.folders {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// A run folder, claimed for this run.
#[derive(Debug)]
pub struct RunFolder {
    /// Where it is.
    pub path: PathBuf,
    /// Whether there is something to go on from.
    pub resumes: bool,
    /// An earlier run in it is to go.
    overwrites: bool,
    made: Made,
    /// Held as long as the run lasts: nobody else writes here meanwhile.
    _lock: File,
}

impl RunFolder {
    /// Chooses and claims the folder of a run.
    pub fn claim(name: &str, choice: &Choice) -> Result<RunFolder> {
        let (path, folders) = match &choice.out {
            Some(path) if path.to_str().is_some_and(is_url) => {
                return Err(Error::job(format!("--out {} is a URL", path.display())).hint(NO_URLS));
            }
            Some(path) if path.is_file() => {
                return Err(Error::job(format!("{} is a file, not a folder", path.display()))
                    .hint("choose another --out"));
            }
            Some(path) => (path.clone(), make(path)?),
            None => numbered(name, choice.resume)?,
        };
        let made = Made { folders, lock: path.join(LOCK) };
        let lock = hold(&made.lock, &path).inspect_err(|_| made.remove())?;
        let resumes = choice.resume && has_checkpoint(&path);
        let folder = RunFolder { resumes, overwrites: choice.overwrite, made, _lock: lock, path };
        folder.probe().inspect_err(|_| folder.made.remove())?;
        if !choice.overwrite && !choice.resume && has_run(&folder.path) {
            return Err(Error::job(format!("{} holds a run already", folder.path.display())).hint(
                "choose another --out, go on from there with --resume, or throw it away with --overwrite",
            ));
        }
        Ok(folder)
    }

    /// Writes something and takes it away again: better to find out now than after an hour.
    fn probe(&self) -> Result<()> {
        let probe = self.path.join(format!(".probe.{}.tmp", std::process::id()));
        // One that is there was left by a process of the same number, or is somebody's link.
        let _ = fs::remove_file(&probe);
        let result = regular::create_private(&probe).and_then(|mut file| file.write_all(&[0; 4096]));
        let _ = fs::remove_file(&probe);
        result.map_err(|error| unwritable(&self.path, &error))
    }

    /// Throws away an earlier run, if that was asked for: once it is certain that a new one can start.
    pub fn clear(&self) -> Result<()> {
        if !self.overwrites {
            return Ok(());
        }
        let broken =
            |error: std::io::Error| Error::io(format!("cannot clear {}", self.path.display()), &error);
        for entry in fs::read_dir(&self.path).map_err(broken)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if TRACES.contains(&name.as_str()) || name.starts_with("events.out.tfevents.") {
                fs::remove_file(entry.path()).map_err(broken)?;
            } else if name == "checkpoints" {
                checkpoint::clear(&entry.path()).map_err(broken)?;
            }
        }
        Ok(())
    }

    /// Keeps the resolved job beside its results, with its name.
    pub fn keep_job(&self, name: &str, job: &JobSpec) -> Result<()> {
        let text = format!("{NAME} = {}\n{}", toml::Value::from(name), kept(job).to_toml());
        write_atomically(&self.path.join(JOB), text.as_bytes())
    }

    /// Whether an earlier run has left a finished model.
    pub fn has_model(&self) -> bool {
        self.path.join(MODEL).exists()
    }

    /// What goes again if nothing starts.
    pub fn traces(&self) -> Made {
        self.made.clone()
    }
}

/// Takes the lock of a folder. The kernel lets go of it when the process ends, however it ends.
fn hold(lock: &Path, folder: &Path) -> Result<File> {
    let file = regular::open_own(lock).map_err(|error| match error.kind() {
        ErrorKind::Other => Error::job(format!("cannot lock {}: {error}", lock.display()))
            .hint("thalweg did not make it: remove it if you trust the folder, or choose another --out"),
        _ => unwritable(folder, &error),
    })?;
    let end = Instant::now() + GLANCE;
    while matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            Err(Error::job(format!("another job is writing to {}", folder.display()))
                .hint("wait for it, or choose another --out"))
        }
        // Some network file systems have no locks: then there is nothing to check.
        Err(fs::TryLockError::Error(_)) => Ok(file),
    }
}

/// Whether a job holds the lock of this folder; nothing where that cannot be known.
pub fn is_in_use(folder: &Path) -> Option<bool> {
    let lock = match regular::open(&folder.join(LOCK)) {
        Ok(lock) => lock,
        // A copy of a run may have left it behind; a job that runs has one.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(false),
        Err(_) => return None,
    };
    match lock.try_lock_shared() {
        Ok(()) => Some(false),
        Err(fs::TryLockError::WouldBlock) => Some(true),
        Err(fs::TryLockError::Error(_)) => None,
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

/// The run folder in which this job file is the copy of its job.
pub fn of_copy(job: &Path) -> Option<&Path> {
    let folder = job.parent().filter(|_| job.file_name().is_some_and(|name| name == JOB))?;
    let others = TRACES.iter().filter(|trace| **trace != JOB);
    let run = others.into_iter().any(|trace| folder.join(trace).exists()) || has_checkpoint(folder);
    run.then_some(folder)
}

/// A path of a job that was kept in `folder`, as seen from the working folder if it is in there. Earlier versions did not
/// keep absolute paths, but what the working folder of the run saw.
pub fn kept_path(folder: &Path, path: &str) -> String {
    let here = std::env::current_dir().ok();
    let inside = here.and_then(|here| Path::new(path).strip_prefix(here).ok()?.to_str());
    match inside.filter(|inside| !inside.is_empty()) {
        Some(inside) => inside.into(),
        None if thalweg_data::exists(path) => path.into(),
        None => within(folder, path),
    }
}

/// `iris` of `runs/iris-1`.
pub fn name_of(folder: &Path) -> Option<String> {
    let name = folder.file_name()?.to_str()?;
    let numbered = name.rsplit_once('-').filter(|(_, number)| number.parse::<u64>().is_ok());
    Some(numbered.map_or(name, |(name, _)| name).to_string())
}

fn has_run(path: &Path) -> bool {
    TRACES.iter().any(|trace| path.join(trace).exists()) || has_checkpoint(path)
}

/// Makes a folder and those around it; the answer is the list of the new ones, the innermost first.
fn make(path: &Path) -> Result<Vec<PathBuf>> {
    let new = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let new = new.map(Path::to_path_buf).collect();
    fs::create_dir_all(path).map_err(|error| unwritable(path, &error))?;
    Ok(new)
}

/// `runs/NAME-N`: the first free number, or the last one used if a run is to be resumed.
fn numbered(name: &str, resume: bool) -> Result<(PathBuf, Vec<PathBuf>)> {
    let runs = Path::new("runs");
    let prefix = format!("{name}-");
    let numbers = fs::read_dir(runs)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(&prefix)?.parse::<u64>().ok());
    let last = numbers.max();
    if let (true, Some(last)) = (resume, last) {
        return Ok((runs.join(format!("{prefix}{last}")), Vec::new()));
    }
    let mut made = make(runs)?;
    let mut number = last.unwrap_or(0) + 1;
    loop {
        let path = runs.join(format!("{prefix}{number}"));
        // Making it is claiming it: of two jobs that start together only one succeeds.
        match fs::create_dir(&path) {
            Ok(()) => {
                made.insert(0, path.clone());
                return Ok((path, made));
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(unwritable(&path, &error)),
        }
    }
}
