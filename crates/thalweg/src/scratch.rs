//! A folder for the time of a command.

use std::path::PathBuf;
use thalweg_core::{Error, Result};

/// A folder that is gone in the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A new one, named for its purpose.
    pub fn make(purpose: &str) -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("thalweg-{purpose}-{}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Scratch(path)),
            Err(error) => Err(Error::io(format!("cannot make {}", path.display()), &error)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to the machine's own cleaning.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
