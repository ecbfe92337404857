//! Where a job on this machine can be joined, and the secret it takes: a file in the run folder that only its owner reads.

use crate::folder;
use serde::{Deserialize, Serialize};
use std::path::Path;
use thalweg_cluster::durable::write_privately;
use thalweg_cluster::regular;
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
        let text = serde_json::to_string(self).map_err(|error| Error::internal(error.to_string()))?;
        write_privately(&folder.join(FILE), text.as_bytes())
    }

    /// Takes it back.
    pub fn remove(folder: &Path) {
        // If it is not there, nobody can use it.
        let _ = std::fs::remove_file(folder.join(FILE));
    }

    /// Takes it back if it is the one with this secret: a worker does, whose launcher cannot any more.
    pub fn remove_own(folder: &Path, token: &str) {
        if Invitation::parse(folder).is_some_and(|found| found.token == token) {
            Invitation::remove(folder);
        }
    }

    fn parse(folder: &Path) -> Option<Invitation> {
        serde_json::from_str(&regular::read_to_string(&folder.join(FILE)).ok()?).ok()
    }

    /// What a job that runs has left here; what one left that was killed does not count.
    pub fn read(folder: &Path) -> Option<Invitation> {
        Invitation::parse(folder).filter(|_| folder::is_in_use(folder) != Some(false))
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

    fn claim(folder: &Path) -> folder::RunFolder {
        let choice = folder::Choice { out: Some(folder.into()), ..folder::Choice::default() };
        folder::RunFolder::claim("run", &choice).unwrap()
    }

    #[test]
    fn what_a_killed_launcher_left_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let invitation = Invitation { address: "127.0.0.1:4711".into(), token: "secret".into() };
        let held = claim(folder.path());
        invitation.write(folder.path()).unwrap();
        assert_eq!(Invitation::read(folder.path()), Some(invitation));
        drop(held);
        assert_eq!(Invitation::read(folder.path()), None);
        Invitation::remove_own(folder.path(), "of another job");
        assert!(folder.path().join(FILE).exists());
        Invitation::remove_own(folder.path(), "secret");
        assert!(!folder.path().join(FILE).exists());
    }

    #[test]
    fn a_run_folder_tells_how_to_join_it_and_only_to_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let invitation = Invitation { address: "127.0.0.1:4711".into(), token: "secret".into() };
        invitation.write(folder.path()).unwrap();
        let _lock = claim(folder.path());
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
