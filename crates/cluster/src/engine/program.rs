//! The program that workers run, as it was when the launcher began.
//!
//! A job may outlive the file it was started from: somebody builds or installs a newer version while it runs. A worker
//! that is started then must be the same program as the others, so the launcher keeps the file open.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A program that can be started for as long as this is held, whatever becomes of its file.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    /// None if it is looked up by its name alone, or cannot be read.
    file: Option<File>,
}

impl Program {
    /// The program of that name.
    pub(super) fn new(name: impl AsRef<OsStr>) -> Program {
        let path = PathBuf::from(name.as_ref());
        let file = path.is_absolute().then(|| File::open(&path).ok()).flatten();
        Program { path, file }
    }

    /// Where it can be started now: where it was, or by way of the open file if another one stands there.
    pub(super) fn path(&self) -> PathBuf {
        let kept = self.file.as_ref().and_then(|file| Some((file, file.metadata().ok()?)));
        match kept {
            Some((file, then)) if !is_same(&then, &self.path) => {
                // The child looks the number up in its own table before it is closed there.
                PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
            }
            _ => self.path.clone(),
        }
    }
}

fn is_same(then: &Metadata, path: &Path) -> bool {
    path.metadata().is_ok_and(|now| (now.dev(), now.ino()) == (then.dev(), then.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn it_starts_after_its_file_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::copy("/bin/echo", &path).unwrap();
        let program = Program::new(&path);
        assert_eq!(program.path(), path);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another one").unwrap();
        let output = Command::new(program.path()).arg("the same").output().unwrap();
        assert_eq!(output.stdout, b"the same\n");
        assert_eq!(Program::new("echo").path(), Path::new("echo"), "looked up at each start");
    }
}
