//! A reader that bounds the size of a row, so that one row of untrusted input cannot exhaust memory.

use std::io::{self, BufRead, Read};
use thalweg_core::{Error, Result};

/// Maximum bytes per row: enough for an image of a few million pixels as text.
pub(super) const MAX_ROW_BYTES: u64 = 1 << 26;

/// Fails once the current row exceeds [`MAX_ROW_BYTES`].
pub(super) struct BoundedReader<R> {
    reader: R,
    left: u64,
}

impl<R> BoundedReader<R> {
    pub(super) fn new(reader: R) -> BoundedReader<R> {
        BoundedReader { reader, left: MAX_ROW_BYTES }
    }

    /// Resets the limit for the next row.
    pub(super) fn begin_row(&mut self) {
        self.left = MAX_ROW_BYTES;
    }

    /// Replaces the error if the row limit caused it.
    pub(super) fn row_error(&self, row: u64, error: Error) -> Error {
        if self.left > 0 {
            return error;
        }
        Error::data(format!("input row {row} is longer than {} MiB", MAX_ROW_BYTES >> 20))
            .hint("each row needs a line of its own: is a line break or a closing quote missing?")
    }
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::other("the row is too long"));
        }
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.reader.read(&mut buffer[..most])?;
        self.left -= count as u64;
        Ok(count)
    }
}

impl<R: BufRead> BoundedReader<R> {
    /// Reads a line; false at the end.
    pub(super) fn line(&mut self, line: &mut Vec<u8>) -> Result<bool, io::Error> {
        line.clear();
        let count = self.reader.by_ref().take(self.left).read_until(b'\n', line)? as u64;
        self.left -= count;
        if self.left == 0 && line.last() != Some(&b'\n') {
            return Err(io::Error::other("the row is too long"));
        }
        Ok(count > 0)
    }
}
