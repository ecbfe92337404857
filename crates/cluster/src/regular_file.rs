//! Opens regular files only.
//!
//! Opening a pipe would block until a writer comes, so files are opened with O_NONBLOCK and anything but a regular file
//! is refused. Files that thalweg writes in a run folder are opened with O_NOFOLLOW: the folder may belong to another
//! user, and a link in it may point to a file that user must not change.

use nix::fcntl::OFlag;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file for reading, following links.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    checked(file)
}

pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Opens a regular file for reading and appending, or creates it. Links are refused.
pub fn open_own(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    let opened =
        OpenOptions::new().read(true).append(true).create(true).mode(0o644).custom_flags(flags).open(path);
    match opened {
        Err(_) if path.symlink_metadata().is_ok_and(|found| found.is_symlink()) => {
            Err(refused("a symbolic link"))
        }
        Err(error) => match path.symlink_metadata() {
            // The error of the open differs between pipes without a reader, sockets and folders.
            Ok(found) if !found.is_file() => Err(refused(what(found.file_type()))),
            _ => Err(error),
        },
        Ok(file) => checked(file),
    }
}

/// Creates a file with mode 0600; fails if the name exists, even as a link.
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn checked(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() { Ok(file) } else { Err(refused(what(kind))) }
}

fn what(kind: FileType) -> &'static str {
    match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_dir() => "a folder",
        () => "a device",
    }
}

fn refused(what: &str) -> io::Error {
    io::Error::other(format!("it is {what}, not a file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use std::os::unix::fs::symlink;

    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for result in [open(&pipe), open_own(&pipe)] {
            assert_eq!(result.unwrap_err().to_string(), "it is a pipe, not a file");
        }
        assert_eq!(open(Path::new("/dev/zero")).unwrap_err().to_string(), "it is a device, not a file");
        assert_eq!(open_own(folder.path()).unwrap_err().to_string(), "it is a folder, not a file");
    }

    #[test]
    fn links_are_read_but_never_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, "kept").unwrap();
        symlink(&target, &link).unwrap();
        assert_eq!(read_to_string(&link).unwrap(), "kept");
        assert_eq!(open_own(&link).unwrap_err().to_string(), "it is a symbolic link, not a file");
        assert_eq!(create_private(&link).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        open_own(&target).unwrap();
        assert_eq!(read(&target).unwrap(), b"kept", "not truncated");
        symlink(folder.path().join("nowhere"), folder.path().join("dangling")).unwrap();
        assert!(open_own(&folder.path().join("dangling")).is_err());
        assert!(!folder.path().join("nowhere").exists());
    }
}
