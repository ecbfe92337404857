//! A file that only grows, by whole entries: after a full disk or a crash it ends where its last good write ended.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use thalweg_cluster::regular;
use thalweg_core::{Error, Result};

/// Seconds an entry may wait in memory.
const PATIENCE: f64 = 1.0;

/// The file and what is still to be written to it.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    waiting: Vec<u8>,
    /// Length of the file up to its last whole entry.
    whole: u64,
    /// When it was written to last, in the time of the records.
    written: f64,
}

impl Journal {
    /// Goes on in a file of lines, or begins one. Half a line at the end, left by a crash, is dropped.
    pub fn append_lines(path: PathBuf) -> Result<Journal> {
        let open = || -> std::io::Result<(File, u64)> {
            let mut file = regular::open_own(&path)?;
            let whole = end_of_last_line(&mut file)?;
            if whole < file.metadata()?.len() {
                file.set_len(whole)?;
            }
            Ok((file, whole))
        };
        let (file, whole) = open().map_err(|error| cannot_write(&path, &error))?;
        Ok(Journal { path, file, waiting: Vec::new(), whole, written: 0.0 })
    }

    /// Begins a file; one of that name must not exist.
    pub fn create(path: PathBuf) -> std::io::Result<Journal> {
        let file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        Ok(Journal { path, file, waiting: Vec::new(), whole: 0, written: 0.0 })
    }

    /// Takes in a whole entry.
    pub fn push(&mut self, entry: &[u8]) {
        self.waiting.extend_from_slice(entry);
    }

    /// Writes what has waited for a second, by the time of the records.
    pub fn flush_if_due(&mut self, time: f64) -> Result<()> {
        if (time - self.written).abs() < PATIENCE {
            return Ok(());
        }
        self.written = time;
        self.flush()
    }

    /// Writes everything. If that fails, the file is cut back to its last whole entry.
    pub fn flush(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let result = self.file.write_all(&self.waiting);
        match result {
            Ok(()) => {
                self.whole += self.waiting.len() as u64;
                self.waiting.clear();
                Ok(())
            }
            Err(error) => {
                self.waiting.clear();
                // Best effort: the write's own error is the one to tell.
                let _ = self.file.set_len(self.whole);
                Err(cannot_write(&self.path, &error))
            }
        }
    }
}

/// An error that names the file.
pub(super) fn cannot_write(path: &Path, error: &std::io::Error) -> Error {
    Error::io(format_args!("cannot write {}", path.display()), error)
}

/// The byte after the last line break; 0 without one. Looks from the end, block by block.
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
    fn half_a_line_is_dropped_and_whole_ones_are_kept() {
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
    fn entries_wait_for_at_most_a_second() {
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
    fn a_device_without_space_is_told() {
        let path = PathBuf::from("/dev/full");
        if !path.exists() {
            // Past the test runner, which hides what a passing test prints.
            return drop(writeln!(std::io::stderr(), "skipped: there is no /dev/full here"));
        }
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let mut journal = Journal { path, file, waiting: b"a\n".to_vec(), whole: 0, written: 0.0 };
        let error = journal.flush().unwrap_err();
        assert!(error.to_string().contains("cannot write /dev/full"), "{error}");
        assert!(error.to_string().contains("free some space"), "{error}");
    }
}
