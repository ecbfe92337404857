//! A reader that gives no more than a row may hold: whoever sends rows must not be able to fill the memory with one.

use std::io::{self, BufRead, Read};
use thalweg_core::{Error, Result};

/// The most bytes of a row: an image of a few million pixels, each spelled out, has room.
pub(super) const LONGEST_ROW: u64 = 1 << 26;

/// Reads until a row has been too long.
pub(super) struct Bounded<R> {
    reader: R,
    left: u64,
}

impl<R> Bounded<R> {
    pub(super) fn new(reader: R) -> Bounded<R> {
        Bounded { reader, left: LONGEST_ROW }
    }

    /// Another row begins.
    pub(super) fn begin_row(&mut self) {
        self.left = LONGEST_ROW;
    }

    /// What went wrong: the length of this row, if it was that.
    pub(super) fn explain(&self, row: u64, error: Error) -> Error {
        if self.left > 0 {
            return error;
        }
        Error::data(format!("input row {row} is longer than {} MiB", LONGEST_ROW >> 20))
            .hint("rows stand on lines of their own: is a line break or a closing quote missing?")
    }
}

impl<R: Read> Read for Bounded<R> {
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

impl<R: BufRead> Bounded<R> {
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
