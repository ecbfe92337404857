//! The program that workers run, as it was when the launcher began.
//!
//! A job may outlive the file it was started from: somebody builds or installs a newer version while it runs. A worker
//! that is started then must be the same program as the others, so the launcher keeps the file open. (A script cannot be
//! kept: its interpreter reads it by its name.)

use crate::linux;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that can be started for as long as this is held, though another file may have taken its place.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    /// None if it is looked up by its name alone, or cannot be read.
    file: Option<File>,
}

impl Program {
    /// The program of that name.
    pub fn new(name: impl AsRef<OsStr>) -> Program {
        let path = PathBuf::from(name.as_ref());
        let file = if std::env::current_exe().is_ok_and(|own| own == path) {
            // This very program, even if its file was replaced before anybody looked.
            linux::own_program()
        } else if path.is_absolute() {
            File::open(&path)
        } else {
            return Program { path, file: None };
        };
        Program { path, file: file.ok() }
    }

    /// What starts it now, under the name it had.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.place());
        command.arg0(&self.path);
        command
    }

    /// Where it is: where it was, or behind the open file if another one stands there.
    fn place(&self) -> PathBuf {
        match self.file.as_ref().and_then(|file| Some((file, file.metadata().ok()?))) {
            Some((file, then)) if !is_same(&then, &self.path) => linux::path_of(file),
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

    #[test]
    fn it_starts_after_its_file_was_replaced() {
        let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let path = folder.path().join("program");
        std::fs::hard_link(std::env::current_exe().unwrap(), &path).unwrap();
        let program = Program::new(&path);
        assert_eq!(program.place(), path);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another one").unwrap();
        let output = program.command().args(["--list", "its_file_was_replaced"]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("it_starts_after_its_file_was_replaced"), "{said}");
        assert_eq!(Program::new("echo").place(), Path::new("echo"), "looked up at each start");
    }
}
