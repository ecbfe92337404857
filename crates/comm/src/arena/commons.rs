//! What the ranks of one host hold in common, and how they work on it together.

use super::meeting::{Meeting, Wait};
use super::opening::{Sizes, attach, offer};
use super::share;
use super::sum::sum_into;
use crate::collective::brackets::{Brackets, Slots};
use crate::collective::gather::all_gather;
use crate::host::{Neighbours, Segment};
use crate::transport::{Fault, Tag, Traffic, Transport};
use std::io;
use std::ops::Range;
use std::time::Duration;

/// Elements of private memory that pass through the arenas at a time: little enough to stay in the caches.
const PASSAGE: usize = 256 << 10;

/// The arenas of all ranks of a group on one host, and the columns that they share.
pub struct Commons {
    rank: usize,
    slots: Slots,
    columns: usize,
    /// By rank: its arena; only the own one can be written.
    arenas: Vec<Segment>,
    shared: Segment,
    meeting: Meeting,
    traffic: Traffic,
    /// Whether no operation is under way, here or, after a failure, elsewhere.
    quiet: bool,
}

/// What one operation is given by its caller.
pub struct Terms<'a> {
    /// How the others are watched meanwhile.
    pub transport: &'a mut dyn Transport,
    /// Its number: all ranks must mean the same.
    pub tag: Tag,
    /// How long it may take.
    pub deadline: Duration,
}

impl<'a> Terms<'a> {
    fn into_wait(self) -> Wait<'a> {
        Wait::new(self.transport, self.deadline)
    }
}

impl Commons {
    /// Makes them, together with all the others: arenas and `columns` columns of `length` elements each, all zero.
    ///
    /// It fails for all if it fails for one; the words say for whom and why, and the group goes on without.
    pub fn open(
        neighbours: &Neighbours,
        length: usize,
        columns: usize,
        terms: Terms<'_>,
    ) -> Result<Result<Commons, String>, Fault> {
        Commons::open_slots(neighbours, Slots::one(length), columns, terms)
    }

    /// The same with several slots in every arena; columns are as long as one of them.
    pub fn open_slots(
        neighbours: &Neighbours,
        slots: Slots,
        columns: usize,
        terms: Terms<'_>,
    ) -> Result<Result<Commons, String>, Fault> {
        let Terms { transport, tag, deadline } = terms;
        let (rank, world) = (transport.rank(), transport.world());
        let sizes = Sizes { arena: slots.elements(), shared: slots.length * columns };
        // Nobody makes any before all have looked: what one has made is no room for the others any more.
        let words = sizes.check_room(world).err().map(|error| error.to_string());
        let start = transport.now();
        let mut tell_all = |words: Option<String>| {
            let left = deadline.saturating_sub(transport.now().saturating_sub(start));
            all_gather(transport, tag, words.unwrap_or_default().as_bytes(), left)
        };
        let looked = tell_all(words)?;
        if let Some(words) = first_reason(looked.iter(), world) {
            return Ok(Err(words));
        }
        let offered = offer(neighbours, rank, world, sizes);
        let words = offered.as_ref().err().map(io::Error::to_string);
        let made = tell_all(words)?;
        let attached = attach(neighbours, offered, &made, rank, sizes);
        let words = attached.as_ref().err().map(io::Error::to_string);
        let all = tell_all(words)?;
        // The first reason is the original one: others only miss what it did not give.
        if let Some(words) = first_reason(made.iter().chain(&all), world) {
            return Ok(Err(words));
        }
        let Ok((arenas, shared)) = attached else {
            return Ok(Err("shared memory was lost".into()));
        };
        Ok(Ok(Commons {
            rank,
            slots,
            columns,
            arenas,
            shared,
            meeting: Meeting::of(rank, world),
            traffic: Traffic::default(),
            quiet: true,
        }))
    }

    /// Elements of a slot and of each column.
    pub fn length(&self) -> usize {
        self.slots.length
    }

    /// How an arena is divided.
    pub fn slots(&self) -> Slots {
        self.slots
    }

    /// This rank's arena with all its slots, to be written.
    pub fn arena(&mut self) -> &mut [f32] {
        self.expect_quiet();
        // SAFETY: in quiet nobody else touches it; the borrow of `self` keeps this rank in quiet.
        unsafe { elements_mut(&self.arenas[self.rank], 0..self.slots.elements()) }
    }

    /// This rank's arena, to be written, and what is in a column beside it.
    pub fn arena_beside(&mut self, column: usize) -> (&mut [f32], &[f32]) {
        self.expect_quiet();
        let commons = &*self;
        // SAFETY: as in `arena`; arena and columns are apart from each other.
        let arena = unsafe { elements_mut(&commons.arenas[commons.rank], 0..commons.slots.elements()) };
        (arena, commons.column(column))
    }

    /// What is in a column. The sums of the last operation are in the first.
    pub fn column(&self, column: usize) -> &[f32] {
        self.expect_quiet();
        assert!(column < self.columns, "column {column} of {}", self.columns);
        // SAFETY: in quiet nobody writes to columns; the borrow of `self` keeps this rank in quiet, and the others
        // cannot leave it without this one.
        unsafe { elements(&self.shared, column * self.slots.length..(column + 1) * self.slots.length) }
    }

    /// Copies what is in a column, whatever became of the group: the only look at memory that a failure left in the middle
    /// of an operation. Which columns are whole then is the caller's to know.
    pub fn rescue(&self, column: usize, into: &mut [f32]) {
        assert!(
            column < self.columns && into.len() <= self.slots.length,
            "column {column} of {}",
            self.columns
        );
        let end = (column * self.slots.length) + into.len();
        assert!(Sizes::bytes(end) <= self.shared.length(), "inside the segment");
        // SAFETY: inside the mapping, which begins with the counters.
        let start = unsafe { self.shared.base().add(Sizes::bytes(0)).cast::<f32>() };
        for (index, value) in into.iter_mut().enumerate() {
            // SAFETY: within the segment; read as single numbers, without a reference to memory that somebody may still
            // be writing to.
            *value = unsafe { start.add(column * self.slots.length + index).read_volatile() };
        }
    }

    /// The elements of which this rank writes the columns.
    pub fn share(&self, count: usize) -> Range<usize> {
        share(count, self.rank, self.arenas.len())
    }

    /// Adds up the first `count` elements of all arenas into the first column.
    pub fn all_reduce(&mut self, count: usize, terms: Terms<'_>) -> Result<(), Fault> {
        self.sum_and(count, terms, |_, _| ())
    }

    /// Each rank adds up its share of the first `count` elements of all arenas into its share of the first column,
    /// then does `work` on its share of all columns. Returns when all have.
    ///
    /// A fault in the middle leaves the columns as they are then: some shares new, some old.
    pub fn sum_and<T>(
        &mut self,
        count: usize,
        terms: Terms<'_>,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<T, Fault> {
        let tag = terms.tag;
        self.sum_share(count, tag, &mut terms.into_wait(), work)
    }

    fn sum_share<T>(
        &mut self,
        count: usize,
        tag: Tag,
        wait: &mut Wait<'_>,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<T, Fault> {
        let others = self.arenas.len() - 1;
        let summed = self.work_together(count, tag, wait, |commons, columns| {
            let share = commons.share(count);
            sum_into(columns[0], &commons.first_slots(&share), count);
            work(share, columns)
        })?;
        let share = self.share(count).len();
        self.book(count - share, others * share);
        self.book_column(count);
        Ok(summed)
    }

    /// The same for terms in all slots: each rank adds up its share of them as the brackets say. What is behind the terms
    /// in the first slots is added in the order of ranks.
    pub fn sum_brackets_and<T>(
        &mut self,
        brackets: &Brackets,
        terms: Terms<'_>,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<T, Fault> {
        let Slots { length, head, .. } = self.slots;
        let tag = terms.tag;
        let result = self.work_together(length, tag, &mut terms.into_wait(), |commons, columns| {
            let share = commons.share(length);
            let of_terms = share.start.min(head)..share.end.min(head);
            let behind = share.start.max(head)..share.end.max(head);
            let terms = brackets.terms().iter().map(|term| {
                let start = commons.slots.start(term.slot);
                let range = start + of_terms.start..start + of_terms.end;
                // SAFETY: at work nobody writes to arenas.
                unsafe { elements(&commons.arenas[term.rank], range) }
            });
            let (sums, others) = columns[0].split_at_mut(of_terms.len());
            brackets.evaluate(sums, &terms.collect::<Vec<_>>());
            sum_into(others, &commons.first_slots(&behind), length);
            work(share, columns)
        })?;
        let share = self.share(length).len();
        self.book(length - share, (self.arenas.len() - 1) * share);
        self.book_column(length);
        self.count_terms(brackets);
        Ok(result)
    }

    /// Some elements of the first slot of every arena.
    fn first_slots(&self, range: &Range<usize>) -> Vec<&[f32]> {
        // SAFETY: at work nobody writes to arenas.
        self.arenas.iter().map(|arena| unsafe { elements(arena, range.clone()) }).collect()
    }

    /// Ranks with more terms than one are read more than once, those without any not at all.
    fn count_terms(&mut self, brackets: &Brackets) {
        let Slots { length, head, .. } = self.slots;
        let share = self.share(length);
        let mine = share.start.min(head)..share.end.min(head);
        let held = brackets.terms().iter().filter(|term| term.rank == self.rank).count();
        let (terms, others) = (brackets.terms().len(), self.arenas.len() - 1);
        let change = |terms: usize, ranks: usize, elements: usize| {
            (4 * elements) as i64 * (terms as i64 - ranks as i64)
        };
        let received = change(terms - held, others, mine.len());
        let sent = change(held, 1, head - mine.len());
        self.traffic.payload_received = self.traffic.payload_received.saturating_add_signed(received);
        self.traffic.payload_sent = self.traffic.payload_sent.saturating_add_signed(sent);
    }

    /// Each rank writes its share of the first `count` elements of all columns; the bytes of one are booked,
    /// as if each had told the others its share. Returns when all have.
    pub fn write_shares<T>(
        &mut self,
        count: usize,
        terms: Terms<'_>,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<T, Fault> {
        let tag = terms.tag;
        let written = self.work_together(count, tag, &mut terms.into_wait(), |commons, columns| {
            work(commons.share(count), columns)
        })?;
        self.book_column(count);
        Ok(written)
    }

    /// Adds up private memory, of any length, by way of the arenas: two copies more than in place.
    pub fn all_reduce_copying(&mut self, buffer: &mut [f32], terms: Terms<'_>) -> Result<(), Fault> {
        let tag = terms.tag;
        let wait = &mut terms.into_wait();
        assert!(self.slots.length > 0 || buffer.is_empty(), "nothing passes through an empty arena");
        for piece in buffer.chunks_mut(self.slots.length.clamp(1, PASSAGE)) {
            self.arena()[..piece.len()].copy_from_slice(piece);
            self.sum_share(piece.len(), tag, wait, |_, _| ())?;
            piece.copy_from_slice(&self.column(0)[..piece.len()]);
        }
        Ok(())
    }

    /// Returns when all ranks have come here.
    pub fn barrier(&mut self, terms: Terms<'_>) -> Result<(), Fault> {
        self.meeting.hold(&self.arenas, &mut terms.into_wait())
    }

    /// What was read from others' memory, and they from this rank's, as the bytes it would have been in messages.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn work_together<T>(
        &mut self,
        count: usize,
        tag: Tag,
        wait: &mut Wait<'_>,
        work: impl FnOnce(&Commons, &mut [&mut [f32]]) -> T,
    ) -> Result<T, Fault> {
        assert!(count <= self.slots.length, "{count} of {} elements", self.slots.length);
        self.expect_quiet();
        self.quiet = false;
        self.meeting.open(&self.arenas, tag, count, wait)?;
        let share = self.share(count);
        let mut columns: Vec<&mut [f32]> = (0..self.columns)
            .map(|column| {
                let start = column * self.slots.length;
                // SAFETY: at work each rank touches its own share of the columns only, and these do not overlap.
                unsafe { elements_mut(&self.shared, start + share.start..start + share.end) }
            })
            .collect();
        let result = work(self, &mut columns);
        drop(columns);
        self.meeting.hold(&self.arenas, wait)?;
        self.quiet = true;
        Ok(result)
    }

    /// Books that each rank has written its share of a column and all others read it.
    fn book_column(&mut self, count: usize) {
        let (share, others) = (self.share(count).len(), self.arenas.len() - 1);
        self.book(others * share, count - share);
    }

    /// Books elements that others read here and this rank read elsewhere.
    fn book(&mut self, sent: usize, received: usize) {
        self.traffic.payload_sent += 4 * sent as u64;
        self.traffic.payload_received += 4 * received as u64;
    }

    /// After an operation that failed half-way others may still be at work on this memory: nobody gets at it any more.
    fn expect_quiet(&self) {
        assert!(self.quiet, "an operation failed half-way: its memory is void");
    }
}

/// Who first said why not, in rounds of so many ranks.
fn first_reason<'a>(said: impl Iterator<Item = &'a Vec<u8>>, world: usize) -> Option<String> {
    let (culprit, words) = said.enumerate().find(|(_, words)| !words.is_empty())?;
    Some(format!("rank {}: {}", culprit % world, String::from_utf8_lossy(words)))
}

/// Elements of a segment.
///
/// # Safety
/// Nobody may write to them while the slice lives.
unsafe fn elements(segment: &Segment, range: Range<usize>) -> &[f32] {
    assert!(range.start <= range.end && Sizes::bytes(range.end) <= segment.length(), "inside the segment");
    // SAFETY: inside the mapping, aligned (mappings begin at a page), any bits are a number; the rest is the caller's.
    unsafe {
        std::slice::from_raw_parts(segment.base().add(Sizes::bytes(range.start)).cast::<f32>(), range.len())
    }
}

/// Elements of a segment, to be written.
///
/// # Safety
/// Nobody else may read or write them while the slice lives.
#[allow(clippy::mut_from_ref)]
unsafe fn elements_mut(segment: &Segment, range: Range<usize>) -> &mut [f32] {
    assert!(segment.is_writable(), "a segment of one's own");
    assert!(range.start <= range.end && Sizes::bytes(range.end) <= segment.length(), "inside the segment");
    // SAFETY: as above, and the segment is mapped for writing.
    unsafe {
        std::slice::from_raw_parts_mut(
            segment.base().add(Sizes::bytes(range.start)).cast::<f32>(),
            range.len(),
        )
    }
}
