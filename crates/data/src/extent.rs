//! Byte ranges of blocks within files.

use crate::block::{BLOCK_BYTES, BLOCK_ROWS, BlockIndex};
use serde::{Deserialize, Serialize};

/// The byte range of a block; a block never spans two files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Extent {
    pub(crate) file: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) rows: u64,
}

/// Cuts files into blocks during the index pass.
#[derive(Debug, Default)]
pub(crate) struct ExtentBuilder {
    complete: Vec<Extent>,
    file: usize,
    start: u64,
    rows: u64,
}

impl ExtentBuilder {
    /// Starts a file whose rows begin at offset `start`.
    pub(crate) fn begin_file(&mut self, file: usize, start: u64) {
        (self.file, self.start, self.rows) = (file, start, 0);
    }

    /// Ends a row at offset `end`.
    pub(crate) fn end_row(&mut self, end: u64) {
        self.rows += 1;
        thalweg_core::progress::advance();
        if self.rows == BLOCK_ROWS || end - self.start >= BLOCK_BYTES {
            self.cut(end);
        }
    }

    /// Ends the file at offset `end`.
    pub(crate) fn end_file(&mut self, end: u64) {
        if self.rows > 0 {
            self.cut(end);
        }
    }

    pub(crate) fn finish(self) -> Vec<Extent> {
        self.complete
    }

    fn cut(&mut self, end: u64) {
        self.complete.push(Extent { file: self.file, start: self.start, end, rows: self.rows });
        (self.start, self.rows) = (end, 0);
    }
}

pub(crate) fn block_index(extents: &[Extent]) -> BlockIndex {
    BlockIndex::from_sizes(extents.iter().map(|extent| extent.rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_by_rows_by_bytes_and_by_file() {
        let mut extents = ExtentBuilder::default();
        extents.begin_file(0, 10);
        (1..=BLOCK_ROWS + 1).for_each(|row| extents.end_row(10 + row));
        extents.end_file(20_000);
        extents.begin_file(1, 0);
        extents.end_row(BLOCK_BYTES);
        extents.end_row(BLOCK_BYTES + 1);
        extents.end_file(BLOCK_BYTES + 1);
        extents.begin_file(2, 0);
        extents.end_file(0);
        let found: Vec<_> = extents.finish().iter().map(|e| (e.file, e.start, e.end, e.rows)).collect();
        let whole = BLOCK_BYTES;
        assert_eq!(
            found,
            [(0, 10, 4106, 4096), (0, 4106, 20_000, 1), (1, 0, whole, 1), (1, whole, whole + 1, 1)]
        );
    }
}
