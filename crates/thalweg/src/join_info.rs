//! `join.json`: address and token of a running job, in a file of the run folder that only its owner can read.

use crate::folder;
use serde::{Deserialize, Serialize};
use std::path::Path;
use thalweg_cluster::durable::write_privately;
use thalweg_cluster::regular_file;
use thalweg_core::{Error, Kind, Result};

/// Name of the file in the run folder.
const FILE: &str = "join.json";

/// Address and token of a running job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinInfo {
    /// Address of the coordinator, `HOST:PORT`.
    pub address: String,
    /// The shared secret.
    pub token: String,
}

impl JoinInfo {
    /// Writes the file to the run folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string(self).map_err(|error| Error::internal(error.to_string()))?;
        write_privately(&folder.join(FILE), text.as_bytes())
    }

    /// Removes the file.
    pub fn remove(folder: &Path) {
        // Fails only where the file is already gone, or the folder is not writable.
        let _ = std::fs::remove_file(folder.join(FILE));
    }

    /// Removes the file if it has this token. Called by a worker whose launcher was killed: a new run in the folder may
    /// have written its own.
    pub fn remove_own(folder: &Path, token: &str) {
        if JoinInfo::parse(folder).is_some_and(|found| found.token == token) {
            JoinInfo::remove(folder);
        }
    }

    fn parse(folder: &Path) -> Option<JoinInfo> {
        serde_json::from_str(&regular_file::read_to_string(&folder.join(FILE)).ok()?).ok()
    }

    /// Reads the file of a running job; `None` for a file that a killed job left behind.
    pub fn read(folder: &Path) -> Option<JoinInfo> {
        JoinInfo::parse(folder).filter(|_| folder::is_in_use(folder) != Some(false))
    }

    /// Finds a job by run folder or by `HOST:PORT`. For an address the token is `token`, or that of the run in `runs/`
    /// that listens there.
    pub fn find(target: &str, token: Option<String>) -> Result<JoinInfo> {
        let folder = Path::new(target);
        if folder.is_dir() {
            return JoinInfo::read(folder).ok_or_else(|| {
                Error::new(Kind::Rendezvous, format!("no job runs in {target}: it has no {FILE}"))
                    .hint("a job keeps it there while it runs; for one on another host give HOST:PORT and THALWEG_TOKEN")
            });
        }
        if !target.contains(':') {
            return Err(Error::job(format!("{target} is neither a run folder nor HOST:PORT")));
        }
        let known = || {
            let runs = std::fs::read_dir("runs").ok()?;
            runs.flatten()
                .filter_map(|entry| JoinInfo::read(&entry.path()))
                .find(|found| found.address == target)
        };
        Ok(match token {
            Some(token) => JoinInfo { address: target.into(), token },
            None => known().unwrap_or_else(|| JoinInfo { address: target.into(), token: String::new() }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(folder: &Path) -> folder::RunFolder {
        let options = folder::FolderOptions { out: Some(folder.into()), ..folder::FolderOptions::default() };
        folder::RunFolder::claim("run", &options).unwrap()
    }

    #[test]
    fn the_file_of_a_killed_launcher_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let join_info = JoinInfo { address: "127.0.0.1:4711".into(), token: "secret".into() };
        let held = claim(folder.path());
        join_info.write(folder.path()).unwrap();
        assert_eq!(JoinInfo::read(folder.path()), Some(join_info));
        drop(held);
        assert_eq!(JoinInfo::read(folder.path()), None);
        JoinInfo::remove_own(folder.path(), "of another job");
        assert!(folder.path().join(FILE).exists());
        JoinInfo::remove_own(folder.path(), "secret");
        assert!(!folder.path().join(FILE).exists());
    }

    #[test]
    fn only_the_owner_can_read_the_join_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let join_info = JoinInfo { address: "127.0.0.1:4711".into(), token: "secret".into() };
        join_info.write(folder.path()).unwrap();
        let _lock = claim(folder.path());
        let mode = std::fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let target = folder.path().to_str().unwrap();
        assert_eq!(JoinInfo::find(target, None).unwrap(), join_info);
        JoinInfo::remove(folder.path());
        assert!(JoinInfo::find(target, None).unwrap_err().message.contains("no job runs in"));
        assert_eq!(JoinInfo::find("box:1", Some("t".into())).unwrap().token, "t");
        assert!(JoinInfo::find("nowhere", None).unwrap_err().message.contains("neither"));
    }
}
