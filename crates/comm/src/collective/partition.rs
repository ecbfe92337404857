//! Range splitting: how a buffer is divided into chunks of a collective, and into the shards of the ranks.

use super::reduction_tree::GRAIN;
use super::schedule::Chunks;
use std::ops::Range;

/// The chunks of a buffer.
#[derive(Clone, Copy, Debug)]
pub enum Partition<'a> {
    /// A buffer of this length, divided evenly by [`chunk_range`].
    Even(usize),
    /// The end of each chunk; it begins at the end of the chunk before.
    Ends(&'a [usize]),
    /// All-to-all: the chunks that this rank sends to each rank, then those that it receives from each.
    Pairs(Counts<'a>, usize),
}

/// How many elements every rank sends to every other, MPI's `alltoallv` counts.
#[derive(Clone, Copy, Debug)]
pub struct Counts<'a> {
    /// From rank r to rank s at `r * world + s`.
    pub counts: &'a [usize],
    pub world: usize,
}

impl Counts<'_> {
    /// Elements that `rank` sends to other ranks.
    pub fn sent_by(self, rank: usize) -> usize {
        (0..self.world).filter(|&to| to != rank).map(|to| self.counts[rank * self.world + to]).sum()
    }

    /// Elements that `rank` receives from other ranks.
    pub fn received_by(self, rank: usize) -> usize {
        (0..self.world).filter(|&from| from != rank).map(|from| self.counts[from * self.world + rank]).sum()
    }

    fn row(self, from: usize) -> impl Iterator<Item = usize> {
        (0..self.world).map(move |to| self.counts[from * self.world + to])
    }

    fn lengths(self, rank: usize) -> impl Iterator<Item = usize> {
        self.row(rank).chain((0..self.world).map(move |from| self.counts[from * self.world + rank]))
    }

    fn elements(self, rank: usize, of: Chunks) -> Range<usize> {
        let start = self.lengths(rank).take(of.first).sum();
        start..start + self.lengths(rank).skip(of.first).take(of.count).sum::<usize>()
    }
}

impl Partition<'_> {
    pub fn length(self) -> usize {
        match self {
            Partition::Even(length) => length,
            Partition::Ends(ends) => ends.last().copied().unwrap_or(0),
            Partition::Pairs(counts, rank) => counts.lengths(rank).sum(),
        }
    }

    /// Whether it is a valid division into `chunks`.
    pub fn fits(self, chunks: usize) -> bool {
        match self {
            Partition::Even(_) => true,
            Partition::Ends(ends) => ends.len() == chunks && ends.is_sorted(),
            Partition::Pairs(Counts { counts, world }, rank) => {
                rank < world && counts.len() == world * world && chunks == 2 * world
            }
        }
    }

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

    /// The elements at the sender of what is received into `of` and was sent as chunks from `sent` on.
    pub fn elements_sent(self, sent: usize, of: Chunks, chunks: usize) -> Range<usize> {
        let at_sender = Chunks { first: sent, ..of };
        match self {
            // The chunk received from rank r has index world + r.
            Partition::Pairs(counts, _) => counts.elements(of.first.saturating_sub(counts.world), at_sender),
            _ => self.elements(at_sender, chunks),
        }
    }
}

/// Chunk `index` of `chunks` of a buffer of `length` elements. Sizes differ by at most one, the longer chunks first; with
/// more chunks than elements the last ones are empty.
pub fn chunk_range(length: usize, chunks: usize, index: usize) -> Range<usize> {
    let chunks = chunks.max(1);
    let (size, longer) = (length / chunks, length % chunks);
    let start = |index: usize| index * size + index.min(longer);
    start(index)..start(index + 1)
}

/// The shard of `rank` of `world` of a buffer in memory that all ranks write: nearly equal, in the order of ranks.
///
/// Apart from the last, shards end at multiples of `GRAIN`, so that no cache line is written by two ranks. This makes
/// them different from [`chunk_range`], which balances to the element.
pub fn shard_range(length: usize, rank: usize, world: usize) -> Range<usize> {
    let grains = length / GRAIN;
    let cut = |rank: usize| if rank == world { length } else { grains * rank / world * GRAIN };
    cut(rank)..cut(rank + 1)
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
    fn ragged_chunks_end_where_the_list_says() {
        let partition = Partition::Ends(&[3, 3, 10]);
        assert_eq!([0, 1, 2].map(|chunk| partition.elements(Chunks::one(chunk), 3)), [0..3, 3..3, 3..10]);
        assert_eq!((partition.elements(Chunks::all(3), 3), partition.length()), (0..10, 10));
        assert!(partition.fits(3) && !partition.fits(2) && !Partition::Ends(&[2, 1]).fits(2));
    }

    #[test]
    fn sent_chunks_come_before_received_chunks() {
        // Rank 0 sends 1 and 2 elements to ranks 0 and 1, rank 1 sends 3 and 4.
        let partition = Partition::Pairs(Counts { counts: &[1, 2, 3, 4], world: 2 }, 0);
        assert!(partition.fits(4) && !partition.fits(2));
        let elements = [0, 1, 2, 3].map(|chunk| partition.elements(Chunks::one(chunk), 4));
        assert_eq!((elements, partition.length()), ([0..1, 1..3, 3..4, 4..7], 7));
        assert_eq!(partition.elements_sent(0, Chunks::one(3), 4), 0..3, "the first chunk of rank 1");
    }

    #[test]
    fn shards_are_contiguous_and_balanced() {
        for world in 1..=9 {
            for length in [0, 1, 31, 32, 100, 1000, 12345] {
                let shards: Vec<Range<usize>> =
                    (0..world).map(|rank| shard_range(length, rank, world)).collect();
                assert_eq!((shards[0].start, shards[world - 1].end), (0, length));
                assert!(shards.windows(2).all(|pair| pair[0].end == pair[1].start));
                let longest = shards.iter().map(|shard| shard.len()).max();
                assert!(longest <= Some(length / world + 2 * GRAIN), "{length} {world} {shards:?}");
            }
        }
    }
}
