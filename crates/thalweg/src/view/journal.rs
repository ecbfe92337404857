//! An append-only file of complete entries: after a full disk or a crash it ends with the last complete entry.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use thalweg_cluster::regular_file;
use thalweg_core::{Error, Result};

/// Seconds an entry may stay in memory.
const FLUSH_INTERVAL: f64 = 1.0;

/// The file and its unwritten entries.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// Length of the file up to the end of its last complete entry.
    complete: u64,
    /// Time of the last write, in record time.
    flushed: f64,
}

impl Journal {
    /// Opens or creates a file of lines. An incomplete last line, left by a crash, is cut off.
    pub fn append_lines(path: PathBuf) -> Result<Journal> {
        let open = || -> std::io::Result<(File, u64)> {
            let mut file = regular_file::open_own(&path)?;
            let complete = end_of_last_line(&mut file)?;
            if complete < file.metadata()?.len() {
                file.set_len(complete)?;
            }
            Ok((file, complete))
        };
        let (file, complete) = open().map_err(|error| cannot_write(&path, &error))?;
        Ok(Journal { path, file, buffer: Vec::new(), complete, flushed: 0.0 })
    }

    /// Creates a file; fails if it exists.
    pub fn create(path: PathBuf) -> std::io::Result<Journal> {
        let file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        Ok(Journal { path, file, buffer: Vec::new(), complete: 0, flushed: 0.0 })
    }

    /// Buffers a complete entry.
    pub fn push(&mut self, entry: &[u8]) {
        self.buffer.extend_from_slice(entry);
    }

    /// Writes the buffer if the last write is at least a second old, in record time.
    pub fn flush_if_due(&mut self, time: f64) -> Result<()> {
        if (time - self.flushed).abs() < FLUSH_INTERVAL {
            return Ok(());
        }
        self.flushed = time;
        self.flush()
    }

    /// Writes the buffer. On failure the file is truncated to its last complete entry.
    pub fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let result = self.file.write_all(&self.buffer);
        match result {
            Ok(()) => {
                self.complete += self.buffer.len() as u64;
                self.buffer.clear();
                Ok(())
            }
            Err(error) => {
                self.buffer.clear();
                // Best effort: the error of the write is returned.
                let _ = self.file.set_len(self.complete);
                Err(cannot_write(&self.path, &error))
            }
        }
    }
}

/// A write error with the path of the file.
pub(super) fn cannot_write(path: &Path, error: &std::io::Error) -> Error {
    Error::io(format_args!("cannot write {}", path.display()), error)
}

/// Offset after the last line break; 0 without one. Reads backwards, block by block.
fn end_of_last_line(file: &mut File) -> std::io::Result<u64> {
    const BLOCK: u64 = 4096;
    let mut end = file.metadata()?.len();
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        if let Some(last) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_last_line_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let long = "x".repeat(10_000);
        for (before, after) in [
            ("", ""),
            ("one\n", "one\n"),
            ("one\ntw", "one\n"),
            ("half", ""),
            (&*format!("one\n{long}"), "one\n"),
            (&*format!("{long}\n"), &*format!("{long}\n")),
        ] {
            std::fs::write(&path, before).unwrap();
            let mut journal = Journal::append_lines(path.clone()).unwrap();
            journal.push(b"next\n");
            journal.flush().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{after}next\n"));
        }
    }

    #[test]
    fn entries_are_written_after_at_most_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut journal = Journal::append_lines(path.clone()).unwrap();
        journal.flush_if_due(100.0).unwrap();
        journal.push(b"a\n");
        journal.flush_if_due(100.9).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        journal.flush_if_due(101.0).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2);
    }

    #[test]
    fn a_full_device_is_an_error() {
        let path = PathBuf::from("/dev/full");
        if !path.exists() {
            // Written to stderr directly: the test runner hides the output of passing tests.
            return drop(writeln!(std::io::stderr(), "skipped: there is no /dev/full here"));
        }
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let mut journal = Journal { path, file, buffer: b"a\n".to_vec(), complete: 0, flushed: 0.0 };
        let error = journal.flush().unwrap_err();
        assert!(error.to_string().contains("cannot write /dev/full"), "{error}");
        assert!(error.to_string().contains("free some space"), "{error}");
    }
}
