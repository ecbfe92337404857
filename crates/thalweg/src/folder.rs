//! The run folder: which one a run uses, and the lock that keeps two runs out of one folder.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thalweg_cluster::checkpoint;
use thalweg_cluster::durable::write_atomically;
use thalweg_cluster::regular_file;
use thalweg_core::spec::NAME;
use thalweg_core::spec::paths::{NO_URLS, is_url, within};
use thalweg_core::{Error, JobSpec, Kind, Result};
use thalweg_train::kept;

/// Files by which a folder is recognised as that of a run.
const RUN_FILES: [&str; 4] = ["report.json", "events.jsonl", MODEL, JOB];

/// Copy of the resolved job in a run folder.
pub const JOB: &str = "job.toml";

/// Finished model in a run folder.
pub const MODEL: &str = "model.safetensors";

/// File whose lock marks a run folder as in use.
const LOCK: &str = ".lock";

/// How long the lock is retried: a process that only tests it ([`is_in_use`]) holds it for a moment.
const LOCK_RETRY: Duration = Duration::from_millis(200);

/// Which folder a run uses, and how it treats an earlier run there.
#[derive(Clone, Debug, Default)]
pub struct FolderOptions {
    /// The folder of `--out`; without it, `runs/NAME-N`.
    pub out: Option<PathBuf>,
    /// Resume from a checkpoint in the folder, if there is one.
    pub resume: bool,
    /// Delete the files of an earlier run.
    pub overwrite: bool,
}

/// Folders created for a run, innermost first: removed again if the run does not start.
#[derive(Clone, Debug)]
pub struct CreatedFolders {
    folders: Vec<PathBuf>,
    lock: PathBuf,
}

impl CreatedFolders {
    /// Removes the folders that are empty but for the lock file; others stay.
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
    /// Path of the folder.
    pub path: PathBuf,
    /// Whether the run resumes from a checkpoint.
    pub resumes: bool,
    /// Whether [`RunFolder::clear`] deletes an earlier run.
    overwrites: bool,
    /// Whether it holds an earlier run.
    has_run: bool,
    created: CreatedFolders,
    /// Held until the run ends: no other run writes here meanwhile.
    _lock: File,
}

impl RunFolder {
    /// Chooses and claims the folder of a run.
    pub fn claim(name: &str, options: &FolderOptions) -> Result<RunFolder> {
        let (path, folders) = match &options.out {
            Some(path) if path.to_str().is_some_and(is_url) => {
                return Err(Error::job(format!("--out {} is a URL", path.display())).hint(NO_URLS));
            }
            Some(path) if path.is_file() => {
                return Err(Error::job(format!("{} is a file, not a folder", path.display()))
                    .hint("choose another --out"));
            }
            Some(path) => (path.clone(), create(path)?),
            None => numbered(name, options.resume)?,
        };
        let created = CreatedFolders { folders, lock: path.join(LOCK) };
        let lock = acquire(&created.lock, &path).inspect_err(|_| created.remove())?;
        let resumes = options.resume && has_checkpoint(&path);
        let (overwrites, has_run) = (options.overwrite, has_run(&path));
        let folder = RunFolder { resumes, overwrites, has_run, created, _lock: lock, path };
        folder.probe().inspect_err(|_| folder.created.remove())?;
        if !options.overwrite && !options.resume && has_run {
            return Err(Error::job(format!("{} holds a run already", folder.path.display()))
                .hint("choose another --out, resume it with --resume, or delete it with --overwrite"));
        }
        Ok(folder)
    }

    /// Writes and removes a file, to find out before training that the folder is writable.
    fn probe(&self) -> Result<()> {
        let probe = self.path.join(format!(".probe.{}.tmp", std::process::id()));
        // An existing one was left by a process with the same id, or is a link that another user planted.
        let _ = fs::remove_file(&probe);
        let result = regular_file::create_private(&probe).and_then(|mut file| file.write_all(&[0; 4096]));
        let _ = fs::remove_file(&probe);
        result.map_err(|error| unwritable(&self.path, &error))
    }

    /// Deletes the files of an earlier run, with `--overwrite` only. Called once the preflight check has passed.
    pub fn clear(&self) -> Result<()> {
        if !self.overwrites {
            return Ok(());
        }
        let broken =
            |error: std::io::Error| Error::io(format!("cannot clear {}", self.path.display()), &error);
        self.delete_run().map_err(broken)
    }

    fn delete_run(&self) -> std::io::Result<()> {
        for entry in fs::read_dir(&self.path)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if RUN_FILES.contains(&name.as_str()) || name.starts_with("events.out.tfevents.") {
                fs::remove_file(entry.path())?;
            } else if name == "checkpoints" {
                checkpoint::clear(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Deletes the files of a run that was refused before it began, and the folders created for it. Those of an earlier
    /// run stay.
    pub fn discard(&self) {
        if !self.has_run && self.delete_run().is_ok() {
            self.created.remove();
        }
    }

    /// Writes the resolved job and its name to `job.toml`.
    pub fn write_job(&self, name: &str, job: &JobSpec) -> Result<()> {
        let text = format!("{NAME} = {}\n{}", toml::Value::from(name), kept(job).to_toml());
        write_atomically(&self.path.join(JOB), text.as_bytes())
    }

    /// Whether the folder has the finished model of an earlier run.
    pub fn has_model(&self) -> bool {
        self.path.join(MODEL).exists()
    }

    /// Folders to remove if the run does not start.
    pub fn created(&self) -> CreatedFolders {
        self.created.clone()
    }
}

/// Acquires the lock of a folder. The kernel releases it when the process exits, also after SIGKILL.
fn acquire(lock: &Path, folder: &Path) -> Result<File> {
    let file = regular_file::open_own(lock).map_err(|error| match error.kind() {
        ErrorKind::Other => Error::job(format!("cannot lock {}: {error}", lock.display()))
            .hint("thalweg did not create it: remove it if you trust the folder, or choose another --out"),
        _ => unwritable(folder, &error),
    })?;
    let end = Instant::now() + LOCK_RETRY;
    while matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            Err(Error::job(format!("another job is writing to {}", folder.display()))
                .hint("wait for it, or choose another --out"))
        }
        // Some network file systems have no locks: the run starts without one.
        Err(fs::TryLockError::Error(_)) => Ok(file),
    }
}

/// Whether a job holds the lock of this folder; `None` if that cannot be determined.
pub fn is_in_use(folder: &Path) -> Option<bool> {
    let lock = match regular_file::open(&folder.join(LOCK)) {
        Ok(lock) => lock,
        // A running job has a lock file; the copy of a run may lack it.
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

/// The run folder whose `job.toml` this file is; `None` for other job files.
pub fn run_of_job_copy(job: &Path) -> Option<&Path> {
    let folder = job.parent().filter(|_| job.file_name().is_some_and(|name| name == JOB))?;
    let others = RUN_FILES.iter().filter(|file| **file != JOB);
    let run = others.into_iter().any(|file| folder.join(file).exists()) || has_checkpoint(folder);
    run.then_some(folder)
}

/// A path from the `job.toml` of a run, relative to the working folder if it is inside. Earlier versions wrote paths
/// relative to the run's working folder: one that does not exist from here is resolved from the run folder.
pub fn locate_kept_path(folder: &Path, path: &str) -> String {
    let here = std::env::current_dir().ok();
    let inside = here.and_then(|here| Path::new(path).strip_prefix(here).ok()?.to_str());
    match inside.filter(|inside| !inside.is_empty()) {
        Some(inside) => inside.into(),
        None if thalweg_data::source_exists(path) => path.into(),
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
    RUN_FILES.iter().any(|file| path.join(file).exists()) || has_checkpoint(path)
}

/// Creates a folder and its parents; returns those that are new, innermost first.
fn create(path: &Path) -> Result<Vec<PathBuf>> {
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
    let mut created = create(runs)?;
    let mut number = last.unwrap_or(0) + 1;
    loop {
        let path = runs.join(format!("{prefix}{number}"));
        // `create_dir` is atomic: of two jobs that start together only one gets the number.
        match fs::create_dir(&path) {
            Ok(()) => {
                created.insert(0, path.clone());
                return Ok((path, created));
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(unwritable(&path, &error)),
        }
    }
}
