//! The memory of one rank of a window: who wrote what and when, and the elements.
//!
//! ```text
//! bytes that its owner has read from rank 0, 1, ...    one word each
//! sequence number and version of block 0, 1, ...       two words each
//! (up to a page)
//! elements
//! ```

use super::racing_copy::copy;
use crate::host::Segment;
use crate::protocol::sequence_lock::SequenceLock;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Elements that are published under one version. Their copy fits into a core's cache.
pub(super) const BLOCK: usize = 16 << 10;

const PAGE: usize = 4096;

/// A mapped region, writable if it is this rank's own.
pub(super) struct Region {
    segment: Segment,
    world: usize,
    length: usize,
}

/// Bytes of a region of this many elements; the largest number if they have none.
pub(super) fn bytes(world: usize, length: usize) -> usize {
    let elements = length.saturating_mul(size_of::<f32>());
    offset(world, length).saturating_add(elements)
}

fn words(world: usize, length: usize) -> usize {
    world + 2 * length.div_ceil(BLOCK)
}

/// Byte offset of the elements.
fn offset(world: usize, length: usize) -> usize {
    (size_of::<u64>() * words(world, length)).next_multiple_of(PAGE)
}

/// The parts of a range that are in one block each, with the index of the block.
pub(super) fn blocks(range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let first = range.start / BLOCK;
    let end = if range.is_empty() { first } else { range.end.div_ceil(BLOCK) };
    (first..end).map(move |block| (block, range.start.max(block * BLOCK)..range.end.min((block + 1) * BLOCK)))
}

impl Region {
    /// A region of this many elements in a segment of [`bytes`].
    pub(super) fn new(segment: Segment, world: usize, length: usize) -> Region {
        assert_eq!(segment.length(), bytes(world, length), "the length of the segment");
        Region { segment, world, length }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    fn counters(&self) -> &[AtomicU64] {
        // SAFETY: the elements begin behind these words, which every process accesses through this function alone.
        unsafe { self.segment.counters(words(self.world, self.length)) }
    }

    /// Bytes that the owner of this region has read from that of a rank.
    pub(super) fn bytes_read_from(&self, rank: usize) -> &AtomicU64 {
        &self.counters()[..self.world][rank]
    }

    pub(super) fn lock(&self, block: usize) -> SequenceLock<'_, AtomicU64> {
        SequenceLock(&self.counters()[self.world + 2 * block])
    }

    /// The version of a block; protected by its lock.
    pub(super) fn version(&self, block: usize) -> &AtomicU64 {
        &self.counters()[self.world + 2 * block + 1]
    }

    /// Copies elements that their owner may write meanwhile: with a lock around it, the caller finds that out.
    pub(super) fn copy(&self, start: usize, into: &mut [f32]) {
        assert!(start <= self.length && into.len() <= self.length - start, "inside the region");
        // SAFETY: inside the mapping, which lives as long as `self`.
        unsafe { copy(self.element(start), into) }
    }

    /// Elements of this rank's own region.
    pub(super) fn own(&self, range: Range<usize>) -> &[f32] {
        self.check_own(&range);
        // SAFETY: inside the mapping, aligned, every bit pattern is a number, and only this rank writes them, which needs
        // `&mut self`.
        unsafe { std::slice::from_raw_parts(self.element(range.start), range.len()) }
    }

    /// Elements of this rank's own region, for writing. Their blocks must be locked, or readers keep what is half-written.
    pub(super) fn own_mut(&mut self, range: Range<usize>) -> &mut [f32] {
        self.check_own(&range);
        // SAFETY: as above, and writable. Other ranks have mappings of their own, which they copy from with atomic loads.
        unsafe { std::slice::from_raw_parts_mut(self.element(range.start), range.len()) }
    }

    fn check_own(&self, range: &Range<usize>) {
        assert!(self.segment.is_writable(), "a region of another rank");
        assert!(range.start <= range.end && range.end <= self.length, "inside the region");
    }

    fn element(&self, index: usize) -> *mut f32 {
        let offset = offset(self.world, self.length) + size_of::<f32>() * index;
        // SAFETY: callers check that the index is inside the region, or its end.
        unsafe { self.segment.base().add(offset).cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_divided_at_blocks() {
        let parts = |range| blocks(range).collect::<Vec<_>>();
        assert_eq!(parts(0..0), []);
        assert_eq!(parts(BLOCK..BLOCK), []);
        assert_eq!(parts(3..5), [(0, 3..5)]);
        assert_eq!(parts(BLOCK..2 * BLOCK), [(1, BLOCK..2 * BLOCK)]);
        let three = [(0, BLOCK - 1..BLOCK), (1, BLOCK..2 * BLOCK), (2, 2 * BLOCK..2 * BLOCK + 1)];
        assert_eq!(parts(BLOCK - 1..2 * BLOCK + 1), three);
    }

    #[test]
    fn elements_begin_at_a_page_behind_the_words() {
        assert_eq!((bytes(2, 0), bytes(2, 10)), (4096, 4136));
        assert_eq!(offset(512, 1), 8192);
        assert_eq!(bytes(2, usize::MAX), usize::MAX);
    }
}
