//! Files that are there whole or not at all, even if the power fails.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use thalweg_core::{Error, Result};

/// Writes a file beside its place and moves it there once it is safely on disk.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let moved = written.and_then(|()| fs::rename(&beside, path)).and_then(|()| {
        // The new name must be on disk too, before anything older is taken away.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    });
    moved.map_err(|error| {
        // Best effort: the half-written file is worth nothing to anybody.
        let _ = fs::remove_file(&beside);
        Error::io(format!("cannot write {}", path.display()), &error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_written_says_which() {
        let error = write_atomically(Path::new("/nowhere/at/all"), b"x").unwrap_err();
        assert!(error.message.contains("/nowhere/at/all"), "{error}");
    }
}
