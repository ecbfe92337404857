//! The workers' executable, as it was when the launcher started.
//!
//! The file may be replaced by a newer version while a job runs. Workers started later must run the same program as the
//! others, so the launcher keeps the file open. (This does not work for scripts: the interpreter opens them by name.)

use crate::linux;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An executable that stays startable while this is held, even if its file is replaced.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    /// None if it is looked up in PATH, or cannot be read.
    file: Option<File>,
}

impl Program {
    pub fn new(name: impl AsRef<OsStr>) -> Program {
        let path = PathBuf::from(name.as_ref());
        let file = if std::env::current_exe().is_ok_and(|own| own == path) {
            // The running executable, even if its file was replaced before this call.
            linux::own_executable()
        } else if path.is_absolute() {
            File::open(&path)
        } else {
            return Program { path, file: None };
        };
        Program { path, file: file.ok() }
    }

    /// The command that starts it, with its original path as argv[0].
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.current_path());
        command.arg0(&self.path);
        command
    }

    /// Its path, or that of the open descriptor if the file was replaced.
    fn current_path(&self) -> PathBuf {
        match self.file.as_ref().and_then(|file| Some((file, file.metadata().ok()?))) {
            Some((file, opened)) if !is_same(&opened, &self.path) => linux::fd_path(file),
            _ => self.path.clone(),
        }
    }
}

fn is_same(opened: &Metadata, path: &Path) -> bool {
    path.metadata().is_ok_and(|now| (now.dev(), now.ino()) == (opened.dev(), opened.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_starts_after_its_file_was_replaced() {
        let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let path = folder.path().join("program");
        std::fs::hard_link(std::env::current_exe().unwrap(), &path).unwrap();
        let program = Program::new(&path);
        assert_eq!(program.current_path(), path);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another program").unwrap();
        let output = program.command().args(["--list", "its_file_was_replaced"]).output().unwrap();
        let listed = String::from_utf8(output.stdout).unwrap();
        assert!(listed.contains("the_original_starts_after_its_file_was_replaced"), "{listed}");
        assert_eq!(Program::new("echo").current_path(), Path::new("echo"), "looked up at each start");
    }
}
