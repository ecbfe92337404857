//! Atomic file writes: readers see the old file or the new one, even after a power failure.

use crate::regular_file;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use thalweg_core::{Error, Result};

/// Writes a temporary file in the same folder, syncs it, and renames it to `path`.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    write_whole(path, |file| file.write_all(bytes).map_err(|error| unwritable(path, &error)))
}

/// The same with mode 0600 from the first byte on, for secrets.
pub fn write_privately(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = |file: &mut BufWriter<File>| file.write_all(bytes).map_err(|error| unwritable(path, &error));
    write_temporary(path, &regular_file::create_private, write)
}

/// The same for content that `write` streams; nothing is left if it fails.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> Result<()>) -> Result<()> {
    write_temporary(path, &|temporary| File::create_new(temporary), write)
}

/// The temporary file must be new: an existing one of that name may be another user's link.
fn write_temporary(
    path: &Path,
    create: &dyn Fn(&Path) -> std::io::Result<File>,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<()>,
) -> Result<()> {
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}-{number}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let failed = |error: std::io::Error| unwritable(path, &error);
    let created = create(&temporary).or_else(|error| match error.kind() {
        // Left by a killed process of the same pid, or a link: only the name is removed, not a link's target.
        std::io::ErrorKind::AlreadyExists => fs::remove_file(&temporary).and_then(|()| create(&temporary)),
        _ => Err(error),
    });
    let written = created.map_err(failed).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all()).map_err(failed)
    });
    let moved = written.and_then(|()| fs::rename(&temporary, path).map_err(failed)).and_then(|()| {
        // The rename must be on disk before the caller removes anything older.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
    });
    moved.inspect_err(|_| {
        // Best effort.
        let _ = fs::remove_file(&temporary);
    })
}

pub(crate) fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    Error::io(format!("cannot write {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_folder_that_cannot_be_written() {
        let error = write_atomically(Path::new("/nowhere/at/all"), b"x").unwrap_err();
        assert!(error.message.contains("/nowhere/at/all"), "{error}");
    }

    #[test]
    fn a_secret_has_mode_0600_and_replaces_a_link() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("join.json"), folder.path().join("public"));
        fs::write(&target, "kept").unwrap();
        symlink(&target, &path).unwrap();
        write_privately(&path, b"secret").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"kept", "not written through");
        let written = fs::symlink_metadata(&path).unwrap();
        assert!(written.is_file());
        assert_eq!(written.permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap(), b"secret");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers.csv");
        write_atomically(&path, b"old").unwrap();
        let error = write_whole(&path, |file| {
            file.write_all(b"half").unwrap();
            Err(Error::data("row 3 makes no sense"))
        });
        assert_eq!(error.unwrap_err().message, "row 3 makes no sense");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        write_whole(&path, |file| file.write_all(b"new").map_err(|error| unwritable(&path, &error))).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}
