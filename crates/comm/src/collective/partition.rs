//! How a buffer is divided into chunks: evenly, where a list says, or into pieces for and of every rank.

use super::schedule::Chunks;
use std::ops::Range;

/// How a buffer is divided into chunks.
#[derive(Clone, Copy, Debug)]
pub enum Partition<'a> {
    /// So many elements, divided evenly, see [`chunk_range`].
    Even(usize),
    /// Each chunk ends where the list says, and begins where the one before it ends.
    Ends(&'a [usize]),
    /// Pieces for every rank, then pieces of every rank, as rank `rank` has them.
    Pairs(Counts<'a>, usize),
}

/// How many elements every rank has for every other.
#[derive(Clone, Copy, Debug)]
pub struct Counts<'a> {
    /// Those of rank r for rank s are at `r * world + s`.
    pub counts: &'a [usize],
    /// So many ranks.
    pub world: usize,
}

impl Counts<'_> {
    /// Elements that a rank has for others.
    pub fn leaving(self, rank: usize) -> usize {
        (0..self.world).filter(|&to| to != rank).map(|to| self.counts[rank * self.world + to]).sum()
    }

    /// Elements that others have for a rank.
    pub fn arriving(self, rank: usize) -> usize {
        (0..self.world).filter(|&from| from != rank).map(|from| self.counts[from * self.world + rank]).sum()
    }

    fn row(self, from: usize) -> impl Iterator<Item = usize> {
        (0..self.world).map(move |to| self.counts[from * self.world + to])
    }

    /// The lengths of all chunks of a rank.
    fn lengths(self, rank: usize) -> impl Iterator<Item = usize> {
        self.row(rank).chain((0..self.world).map(move |from| self.counts[from * self.world + rank]))
    }

    /// The elements of some chunks of a rank.
    fn elements(self, rank: usize, of: Chunks) -> Range<usize> {
        let start = self.lengths(rank).take(of.first).sum();
        start..start + self.lengths(rank).skip(of.first).take(of.count).sum::<usize>()
    }
}

impl Partition<'_> {
    /// All elements.
    pub fn length(self) -> usize {
        match self {
            Partition::Even(length) => length,
            Partition::Ends(ends) => ends.last().copied().unwrap_or(0),
            Partition::Pairs(counts, rank) => counts.lengths(rank).sum(),
        }
    }

    /// Whether it divides into so many chunks.
    pub fn fits(self, chunks: usize) -> bool {
        match self {
            Partition::Even(_) => true,
            Partition::Ends(ends) => ends.len() == chunks && ends.is_sorted(),
            Partition::Pairs(Counts { counts, world }, rank) => {
                rank < world && counts.len() == world * world && chunks == 2 * world
            }
        }
    }

    /// The elements that some of so many chunks hold.
    pub fn elements(self, of: Chunks, chunks: usize) -> Range<usize> {
        match self {
            Partition::Even(length) => of.elements(length, chunks),
            Partition::Ends(ends) => {
                let start = |chunk: usize| chunk.checked_sub(1).map_or(0, |before| ends[before]);
                start(of.first)..start(of.first + of.count)
            }
            Partition::Pairs(counts, rank) => counts.elements(rank, of),
        }
    }

    /// The elements of what arrives in `of`, as they lie at its sender, who sent it as chunks from `sent` on.
    pub fn elements_sent(self, sent: usize, of: Chunks, chunks: usize) -> Range<usize> {
        let theirs = Chunks { first: sent, ..of };
        match self {
            // What comes from a rank goes to that rank's place behind the pieces for all.
            Partition::Pairs(counts, _) => counts.elements(of.first.saturating_sub(counts.world), theirs),
            _ => self.elements(theirs, chunks),
        }
    }
}

/// Chunk `index` of `chunks` of a buffer of `length` elements: all of nearly the same size, the first ones one
/// element longer where it does not divide, and empty ones at the end if there are more chunks than elements.
pub fn chunk_range(length: usize, chunks: usize, index: usize) -> Range<usize> {
    let chunks = chunks.max(1);
    let (size, longer) = (length / chunks, length % chunks);
    let start = |index: usize| index * size + index.min(longer);
    start(index)..start(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_partition_any_buffer() {
        for length in [0, 1, 2, 7, 64, 1000] {
            for chunks in 1..=9 {
                let ranges: Vec<_> = (0..chunks).map(|index| chunk_range(length, chunks, index)).collect();
                assert_eq!(ranges[0].start, 0);
                assert_eq!(ranges[chunks - 1].end, length);
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                let sizes = || ranges.iter().map(|range| range.len());
                assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
                assert_eq!(Chunks::all(chunks).elements(length, chunks), 0..length);
            }
        }
    }

    #[test]
    fn ragged_chunks_end_where_they_are_told() {
        let partition = Partition::Ends(&[3, 3, 10]);
        assert_eq!([0, 1, 2].map(|chunk| partition.elements(Chunks::one(chunk), 3)), [0..3, 3..3, 3..10]);
        assert_eq!((partition.elements(Chunks::all(3), 3), partition.length()), (0..10, 10));
        assert!(partition.fits(3) && !partition.fits(2) && !Partition::Ends(&[2, 1]).fits(2));
    }

    #[test]
    fn pieces_for_all_stand_before_pieces_of_all() {
        // Rank 0 has 1 and 2 elements for ranks 0 and 1, rank 1 has 3 and 4.
        let partition = Partition::Pairs(Counts { counts: &[1, 2, 3, 4], world: 2 }, 0);
        assert!(partition.fits(4) && !partition.fits(2));
        let elements = [0, 1, 2, 3].map(|chunk| partition.elements(Chunks::one(chunk), 4));
        assert_eq!((elements, partition.length()), ([0..1, 1..3, 3..4, 4..7], 7));
        assert_eq!(partition.elements_sent(0, Chunks::one(3), 4), 0..3, "the first that rank 1 has");
    }
}
