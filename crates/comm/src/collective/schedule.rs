//! What one rank does in a collective, as data: steps of sends and receives over numbered chunks of its buffer.

use std::ops::Range;

/// What one rank does in a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Number of chunks the buffer is divided into, see [`chunk_range`].
    pub chunks: usize,
    /// One after the other; all that a step contains happens at once.
    pub steps: Vec<Step>,
}

/// Sends and receives that happen at once.
///
/// Sends read the buffer as it was before the step. A chunk that is overwritten in place ([`Action::Copy`]) is touched
/// by nothing else in its step; received chunks are combined in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Chunks that leave.
    pub sends: Vec<SendChunks>,
    /// Chunks that arrive.
    pub receives: Vec<ReceiveChunks>,
}

/// Neighbouring chunks that travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// The first one.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl Chunks {
    /// A single chunk.
    pub fn one(chunk: usize) -> Chunks {
        Chunks { first: chunk, count: 1 }
    }

    /// All chunks of a buffer.
    pub fn all(chunks: usize) -> Chunks {
        Chunks { first: 0, count: chunks }
    }

    /// Their numbers.
    pub fn numbers(self) -> Range<usize> {
        self.first..self.first.saturating_add(self.count)
    }

    /// The elements they hold of a buffer of `length` elements in `chunks` chunks.
    pub fn elements(self, length: usize, chunks: usize) -> Range<usize> {
        let start = chunk_range(length, chunks, self.first).start;
        start..chunk_range(length, chunks, self.first + self.count).start
    }

    /// Whether any chunk is in both.
    pub fn overlaps(self, other: Chunks) -> bool {
        self.numbers().start < other.numbers().end && other.numbers().start < self.numbers().end
    }
}

/// Chunks that leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendChunks {
    /// The rank that receives them.
    pub to: usize,
    /// Which.
    pub chunks: Chunks,
}

/// Chunks that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveChunks {
    /// The rank that sends them.
    pub from: usize,
    /// The number of the first at the sender. Only an all-to-all puts chunks in another place than they came from.
    pub sent: usize,
    /// Where they go.
    pub chunks: Chunks,
    /// What becomes of those that are already there.
    pub action: Action,
}

impl ReceiveChunks {
    /// Chunks that go to the place they have at the sender.
    pub fn new(from: usize, chunks: Chunks, action: Action) -> ReceiveChunks {
        ReceiveChunks { from, sent: chunks.first, chunks, action }
    }
}

/// What becomes of the chunk that is already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is replaced, straight from the network: no one may still be reading it.
    Copy,
    /// It is replaced when all that the step sends of it has left: the two may change places.
    Exchange,
    /// The arriving one is combined with it, in most cases added.
    Reduce,
}

/// What a schedule costs one rank for a buffer of a given length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Steps, each of which pays the latency once.
    pub steps: u64,
    /// Payload bytes that leave this rank.
    pub bytes_sent: u64,
    /// Payload bytes that arrive at this rank.
    pub bytes_received: u64,
    /// Additions of two elements.
    pub additions: u64,
}

impl Cost {
    /// The cost of so many steps in which these numbers of elements of `width` bytes are sent, received and added.
    pub fn of(steps: usize, sent: usize, received: usize, added: usize, width: usize) -> Cost {
        let bytes = |elements: usize| elements as u64 * width as u64;
        Cost {
            steps: steps as u64,
            bytes_sent: bytes(sent),
            bytes_received: bytes(received),
            additions: added as u64,
        }
    }
}

impl std::ops::Add for Cost {
    type Output = Cost;

    /// One after the other.
    fn add(self, other: Cost) -> Cost {
        Cost {
            steps: self.steps + other.steps,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            additions: self.additions + other.additions,
        }
    }
}

impl Step {
    /// A step that only sends.
    pub fn sending(to: usize, chunks: Chunks) -> Step {
        Step { sends: vec![SendChunks { to, chunks }], receives: Vec::new() }
    }

    /// A step that only receives.
    pub fn receiving(from: usize, chunks: Chunks, action: Action) -> Step {
        Step { sends: Vec::new(), receives: vec![ReceiveChunks::new(from, chunks, action)] }
    }
}

impl Step {
    /// Whether every rank and every chunk it names exists, and none of the ranks is its own.
    pub fn is_within(&self, rank: usize, world: usize, chunks: usize) -> bool {
        let fits = |peer: usize, of: Chunks| peer < world && peer != rank && of.numbers().end <= chunks;
        self.sends.iter().all(|send| fits(send.to, send.chunks))
            && self.receives.iter().all(|receive| {
                fits(receive.from, receive.chunks)
                    && receive.sent.saturating_add(receive.chunks.count) <= chunks
            })
    }

    /// Chunks that it overwrites although it also sends them, or that it receives a second time.
    pub fn overwritten(&self) -> Option<Chunks> {
        let is_sent = |chunks: Chunks| self.sends.iter().any(|send| send.chunks.overlaps(chunks));
        let is_received_beside = |index: usize, chunks: Chunks| {
            let mut others = self.receives.iter().enumerate().filter(|(other, _)| *other != index);
            others.any(|(_, other)| other.chunks.overlaps(chunks))
        };
        let mut receives = self.receives.iter().enumerate();
        let found = receives.find(|(index, receive)| match receive.action {
            Action::Copy => is_sent(receive.chunks) || is_received_beside(*index, receive.chunks),
            Action::Exchange => is_received_beside(*index, receive.chunks),
            Action::Reduce => false,
        });
        found.map(|(_, receive)| receive.chunks)
    }
}

impl Schedule {
    /// What this schedule costs for `length` elements of `width` bytes, counted step by step.
    pub fn cost(&self, length: usize, width: usize) -> Cost {
        let elements = |chunks: Chunks| chunks.elements(length, self.chunks).len();
        let sends = self.steps.iter().flat_map(|step| &step.sends);
        let receives = || self.steps.iter().flat_map(|step| &step.receives);
        let reduces = receives().filter(|receive| receive.action == Action::Reduce);
        Cost::of(
            self.steps.len(),
            sends.map(|send| elements(send.chunks)).sum(),
            receives().map(|receive| elements(receive.chunks)).sum(),
            reduces.map(|receive| elements(receive.chunks)).sum(),
            width,
        )
    }

    /// The same steps among some ranks of a larger world: `members[r]` does what rank `r` does here. A schedule over
    /// a single chunk can be `divided` into any number of them, as it moves all of them together.
    pub fn among(mut self, members: &[usize], divided: usize) -> Schedule {
        let whole = self.chunks == 1;
        let widen = |chunks: &mut Chunks| {
            if whole {
                *chunks = Chunks::all(divided);
            }
        };
        for step in &mut self.steps {
            for send in &mut step.sends {
                send.to = members[send.to];
                widen(&mut send.chunks);
            }
            for receive in &mut step.receives {
                receive.from = members[receive.from];
                widen(&mut receive.chunks);
            }
        }
        self.chunks = if whole { divided } else { self.chunks };
        self
    }

    /// This, then that, over the same chunks.
    pub fn then(mut self, next: Schedule) -> Schedule {
        self.chunks = self.chunks.max(next.chunks);
        self.steps.extend(next.steps);
        self
    }
}

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

/// The smallest k with 2^k >= n: the depth of a binary tree over n ranks.
pub fn ceil_log2(n: usize) -> usize {
    n.max(1).next_power_of_two().trailing_zeros() as usize
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

    #[test]
    fn neighbours_overlap_only_where_they_share_a_chunk() {
        let chunks = Chunks { first: 2, count: 3 };
        assert!(chunks.overlaps(Chunks::one(4)) && chunks.overlaps(Chunks::all(3)));
        assert!(!chunks.overlaps(Chunks::one(5)) && !chunks.overlaps(Chunks::all(2)));
    }

    #[test]
    fn logarithms_round_up() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9].map(ceil_log2), [0, 1, 2, 2, 3, 3, 4]);
    }
}
