//! A temporary folder for one command.

use std::path::PathBuf;
use thalweg_core::{Error, Result};

/// A folder that is removed when this is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Creates a folder under the system's temporary folder, named after `purpose`.
    pub fn create(purpose: &str) -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("thalweg-{purpose}-{}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Scratch(path)),
            Err(error) => Err(Error::io(format!("cannot create {}", path.display()), &error)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // On failure the system's cleanup of temporary files removes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
