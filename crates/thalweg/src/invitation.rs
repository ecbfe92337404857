//! Where a job on this machine can be joined, and the secret it takes: a file in the run folder that only its owner reads.

use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use thalweg_core::{Error, Kind, Result};

/// Name of the file in the run folder.
const FILE: &str = "join.json";

/// How to reach a job that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Where its coordinator listens: `HOST:PORT`.
    pub address: String,
    /// The shared secret.
    pub token: String,
}

impl Invitation {
    /// Leaves it in the run folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let failed = |error: std::io::Error| Error::io(format!("cannot write {}", path.display()), &error);
        let text = serde_json::to_string(self).map_err(|error| Error::internal(error.to_string()))?;
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)
    }

    /// Takes it back.
    pub fn remove(folder: &Path) {
        // If it is not there, nobody can use it.
        let _ = std::fs::remove_file(folder.join(FILE));
    }

    fn read(folder: &Path) -> Option<Invitation> {
        serde_json::from_str(&std::fs::read_to_string(folder.join(FILE)).ok()?).ok()
    }

    /// What a user means by a run folder or by `HOST:PORT`: with the secret of the environment, or of the run in `runs/`
    /// that listens there.
    pub fn find(target: &str, token: Option<String>) -> Result<Invitation> {
        let folder = Path::new(target);
        if folder.is_dir() {
            return Invitation::read(folder).ok_or_else(|| {
                Error::new(Kind::Rendezvous, format!("no job runs in {target}: it has no {FILE}"))
                    .hint("a job leaves it there while it runs; for one on another host give HOST:PORT and THALWEG_TOKEN")
            });
        }
        if !target.contains(':') {
            return Err(Error::job(format!("{target} is neither a run folder nor HOST:PORT")));
        }
        let known = || {
            let runs = std::fs::read_dir("runs").ok()?;
            runs.flatten()
                .filter_map(|entry| Invitation::read(&entry.path()))
                .find(|found| found.address == target)
        };
        Ok(match token {
            Some(token) => Invitation { address: target.into(), token },
            None => known().unwrap_or_else(|| Invitation { address: target.into(), token: String::new() }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_folder_tells_how_to_join_it_and_only_to_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let invitation = Invitation { address: "127.0.0.1:4711".into(), token: "secret".into() };
        invitation.write(folder.path()).unwrap();
        let mode = std::fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let target = folder.path().to_str().unwrap();
        assert_eq!(Invitation::find(target, None).unwrap(), invitation);
        Invitation::remove(folder.path());
        assert!(Invitation::find(target, None).unwrap_err().message.contains("no job runs in"));
        assert_eq!(Invitation::find("box:1", Some("t".into())).unwrap().token, "t");
        assert!(Invitation::find("nowhere", None).unwrap_err().message.contains("neither"));
    }
}
