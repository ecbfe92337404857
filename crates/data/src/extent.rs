//! Where blocks stand in files.

use crate::block::{BLOCK_BYTES, BLOCK_ROWS, Blocks};
use serde::{Deserialize, Serialize};

/// The bytes of a block, all of one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Extent {
    pub(crate) file: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) rows: u64,
}

/// Cuts the rows of files into blocks while they are passed over.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    done: Vec<Extent>,
    file: usize,
    start: u64,
    rows: u64,
}

impl Extents {
    /// The rows of a file follow, from this place on.
    pub(crate) fn begin(&mut self, file: usize, start: u64) {
        (self.file, self.start, self.rows) = (file, start, 0);
    }

    /// A row ends here.
    pub(crate) fn row(&mut self, end: u64) {
        self.rows += 1;
        thalweg_core::progress::advance();
        if self.rows == BLOCK_ROWS || end - self.start >= BLOCK_BYTES {
            self.cut(end);
        }
    }

    /// The file ends here.
    pub(crate) fn end(&mut self, end: u64) {
        if self.rows > 0 {
            self.cut(end);
        }
    }

    /// All blocks.
    pub(crate) fn finish(self) -> Vec<Extent> {
        self.done
    }

    fn cut(&mut self, end: u64) {
        self.done.push(Extent { file: self.file, start: self.start, end, rows: self.rows });
        (self.start, self.rows) = (end, 0);
    }
}

/// The rows of each extent.
pub(crate) fn blocks(extents: &[Extent]) -> Blocks {
    Blocks::of_sizes(extents.iter().map(|extent| extent.rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_by_rows_by_bytes_and_by_file() {
        let mut extents = Extents::default();
        extents.begin(0, 10);
        (1..=BLOCK_ROWS + 1).for_each(|row| extents.row(10 + row));
        extents.end(20_000);
        extents.begin(1, 0);
        extents.row(BLOCK_BYTES);
        extents.row(BLOCK_BYTES + 1);
        extents.end(BLOCK_BYTES + 1);
        extents.begin(2, 0);
        extents.end(0);
        let found: Vec<_> = extents.finish().iter().map(|e| (e.file, e.start, e.end, e.rows)).collect();
        let whole = BLOCK_BYTES;
        assert_eq!(
            found,
            [(0, 10, 4106, 4096), (0, 4106, 20_000, 1), (1, 0, whole, 1), (1, whole, whole + 1, 1)]
        );
    }
}
