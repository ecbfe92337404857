//! A file read by position instead of kept in memory.

use crate::checksum::Checksum;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use thalweg_core::progress;

/// Bytes per read in a sequential pass.
pub(crate) const CHUNK: usize = 1 << 20;

/// An open file, with its size and modification time at the time of opening.
#[derive(Debug)]
pub(crate) struct DiskFile {
    file: File,
    pub(crate) len: u64,
    modified: SystemTime,
    /// Over the bytes read so far; the index pass reads the whole file and thereby completes it.
    checksum: Mutex<Checksum>,
}

impl DiskFile {
    pub(crate) fn new(file: File) -> io::Result<DiskFile> {
        let metadata = file.metadata()?;
        Ok(DiskFile { len: metadata.len(), modified: metadata.modified()?, file, checksum: Mutex::default() })
    }

    /// Fills the buffer from `position` on.
    pub(crate) fn read(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, position)?;
        progress::advance();
        self.checksum.lock().unwrap_or_else(PoisonError::into_inner).update_at(position, buffer);
        Ok(())
    }

    /// The checksum of the whole file; reads the bytes that no reader has passed yet.
    pub(crate) fn checksum(&self) -> io::Result<u32> {
        let mut buffer = Vec::new();
        loop {
            let (seen, value) = {
                let checksum = self.checksum.lock().unwrap_or_else(PoisonError::into_inner);
                (checksum.length(), checksum.value())
            };
            if seen >= self.len {
                return Ok(value);
            }
            buffer.resize((self.len - seen).min(CHUNK as u64) as usize, 0);
            self.read(&mut buffer, seen)?;
        }
    }

    pub(crate) fn has_changed(&self) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        Ok(metadata.len() != self.len || metadata.modified()? != self.modified)
    }
}
