//! The shared memory of the ranks of one host, and the operations on it.

use super::allocation::{Sizes, allocate, attach};
use super::barrier::{Barrier, OperationWait};
use super::sum::sum_into;
use crate::collective::byte_collectives::all_gather;
use crate::collective::partition::shard_range;
use crate::collective::reduction_tree::{PartialSums, ReductionTree};
use crate::host::{LocalPeers, Segment};
use crate::transport::{Tag, Traffic, Transport, TransportError};
use std::io;
use std::ops::Range;
use std::time::Duration;

/// Elements of private memory that are copied through the arenas at a time: they stay in the caches.
const COPY_BLOCK: usize = 256 << 10;

/// The arenas of all ranks of a group on one host, and the columns that they share; see the [module](super).
pub struct SharedArena {
    rank: usize,
    layout: PartialSums,
    columns: usize,
    /// By rank; only this rank's is writable.
    arenas: Vec<Segment>,
    shared: Segment,
    barrier: Barrier,
    traffic: Traffic,
    /// Whether no operation is in progress, here or, after a failure, on another rank.
    idle: bool,
}

/// The context of one operation: all ranks must use the same tag.
pub struct OperationContext<'a> {
    /// Detects lost ranks during waits.
    pub transport: &'a mut dyn Transport,
    pub tag: Tag,
    pub deadline: Duration,
}

impl<'a> OperationContext<'a> {
    fn into_wait(self) -> OperationWait<'a> {
        OperationWait::new(self.transport, self.deadline)
    }
}

impl SharedArena {
    /// Allocates an arena of this layout per rank, and `columns` columns as long as one slot, all zero. A collective of
    /// all ranks.
    ///
    /// It fails on all ranks if it fails on one. The inner error names that rank and the reason; the group remains usable.
    pub fn open(
        peers: &LocalPeers,
        layout: PartialSums,
        columns: usize,
        context: OperationContext<'_>,
    ) -> Result<Result<SharedArena, String>, TransportError> {
        let OperationContext { transport, tag, deadline } = context;
        let (rank, world) = (transport.rank(), transport.world());
        let sizes = Sizes { arena: layout.elements(), columns: layout.length * columns };
        let start = transport.now();
        let mut gather_errors = |error: Option<&io::Error>| {
            let text = error.map(io::Error::to_string).unwrap_or_default();
            let remaining = deadline.saturating_sub(transport.now().saturating_sub(start));
            all_gather(transport, tag, text.as_bytes(), remaining)
        };
        // All ranks check free memory before any allocates.
        let checked = gather_errors(sizes.check_room(world).err().as_ref())?;
        if let Some(reason) = first_reason(checked.iter(), world) {
            return Ok(Err(reason));
        }
        let own = allocate(peers, rank, world, sizes);
        let allocated = gather_errors(own.as_ref().err())?;
        let segments = attach(peers, own, &allocated, rank, sizes);
        let attached = gather_errors(segments.as_ref().err())?;
        // The first error is the cause; errors of later ranks follow from it.
        if let Some(reason) = first_reason(allocated.iter().chain(&attached), world) {
            return Ok(Err(reason));
        }
        let Ok((arenas, shared)) = segments else {
            return Ok(Err("shared memory was lost".into()));
        };
        Ok(Ok(SharedArena {
            rank,
            layout,
            columns,
            arenas,
            shared,
            barrier: Barrier::new(rank, world),
            traffic: Traffic::default(),
            idle: true,
        }))
    }

    /// Elements of a slot and of each column.
    pub fn length(&self) -> usize {
        self.layout.length
    }

    /// This rank's arena, with all its slots, for writing.
    pub fn arena(&mut self) -> &mut [f32] {
        self.expect_idle();
        // SAFETY: while idle no other rank accesses it; the borrow of `self` keeps this rank idle.
        unsafe { elements_mut(&self.arenas[self.rank], 0..self.layout.elements()) }
    }

    /// This rank's arena for writing, together with a column.
    pub fn arena_and_column(&mut self, column: usize) -> (&mut [f32], &[f32]) {
        self.expect_idle();
        let shared = &*self;
        // SAFETY: as in `arena`; arena and columns are separate segments.
        let arena = unsafe { elements_mut(&shared.arenas[shared.rank], 0..shared.layout.elements()) };
        (arena, shared.column(column))
    }

    /// A column; column 0 contains the sums of the last operation.
    pub fn column(&self, column: usize) -> &[f32] {
        self.expect_idle();
        assert!(column < self.columns, "column {column} of {}", self.columns);
        // SAFETY: while idle no rank writes to columns; the borrow of `self` keeps this rank idle, and no other rank passes
        // the barrier without it.
        unsafe { elements(&self.shared, column * self.layout.length..(column + 1) * self.layout.length) }
    }

    /// Copies a column after a failure, when an operation may be half-done. The caller must know which columns no operation
    /// was writing.
    pub fn read_after_failure(&self, column: usize, into: &mut [f32]) {
        assert!(
            column < self.columns && into.len() <= self.layout.length,
            "column {column} of {}",
            self.columns
        );
        let end = (column * self.layout.length) + into.len();
        assert!(Sizes::bytes(end) <= self.shared.length(), "inside the segment");
        // SAFETY: inside the mapping, which begins with the counters.
        let start = unsafe { self.shared.base().add(Sizes::bytes(0)).cast::<f32>() };
        for (index, value) in into.iter_mut().enumerate() {
            // SAFETY: inside the segment; volatile reads, without a reference to memory that another rank may still write.
            *value = unsafe { start.add(column * self.layout.length + index).read_volatile() };
        }
    }

    /// The elements of the columns that this rank writes.
    fn shard(&self, count: usize) -> Range<usize> {
        shard_range(count, self.rank, self.arenas.len())
    }

    /// Sums the first `count` elements of all arenas into column 0.
    pub fn all_reduce(&mut self, count: usize, context: OperationContext<'_>) -> Result<(), TransportError> {
        self.sum_and_apply(count, context, |_, _| ())
    }

    /// Each rank sums its shard of the first `count` elements of all arenas into column 0, then applies `work` to its shard
    /// of all columns. Returns when all ranks are done.
    ///
    /// After an error some shards of the columns are new and some are old.
    pub fn sum_and_apply<T>(
        &mut self,
        count: usize,
        context: OperationContext<'_>,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<T, TransportError> {
        let tag = context.tag;
        self.sum_shard(count, tag, &mut context.into_wait(), work)
    }

    fn sum_shard<T>(
        &mut self,
        count: usize,
        tag: Tag,
        wait: &mut OperationWait<'_>,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<T, TransportError> {
        let others = self.arenas.len() - 1;
        let summed = self.run_reducing(count, tag, wait, |arena, columns| {
            let shard = arena.shard(count);
            sum_into(columns[0], &arena.first_slots(&shard), count);
            work(shard, columns)
        })?;
        let shard = self.shard(count).len();
        self.count_traffic(count - shard, others * shard);
        self.count_column_traffic(count);
        Ok(summed)
    }

    /// As [`SharedArena::sum_and_apply`], for the terms in all slots, in the order of the reduction tree. The tails are added
    /// in the order of ranks.
    pub fn tree_sum_and_apply<T>(
        &mut self,
        tree: &ReductionTree,
        context: OperationContext<'_>,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<T, TransportError> {
        let PartialSums { length, head, .. } = self.layout;
        let tag = context.tag;
        let result = self.run_reducing(length, tag, &mut context.into_wait(), |arena, columns| {
            let shard = arena.shard(length);
            let of_terms = shard.start.min(head)..shard.end.min(head);
            let tail = shard.start.max(head)..shard.end.max(head);
            let terms = tree.terms().iter().map(|term| {
                let start = arena.layout.start(term.slot);
                let range = start + of_terms.start..start + of_terms.end;
                // SAFETY: while reducing no rank writes to arenas.
                unsafe { elements(&arena.arenas[term.rank], range) }
            });
            let (sums, tail_sums) = columns[0].split_at_mut(of_terms.len());
            tree.evaluate(sums, &terms.collect::<Vec<_>>());
            sum_into(tail_sums, &arena.first_slots(&tail), length);
            work(shard, columns)
        })?;
        let shard = self.shard(length).len();
        self.count_traffic(length - shard, (self.arenas.len() - 1) * shard);
        self.count_column_traffic(length);
        self.count_term_traffic(tree);
        Ok(result)
    }

    /// A range of slot 0 of every arena.
    fn first_slots(&self, range: &Range<usize>) -> Vec<&[f32]> {
        // SAFETY: while reducing no rank writes to arenas.
        self.arenas.iter().map(|arena| unsafe { elements(arena, range.clone()) }).collect()
    }

    /// Corrects the traffic for ranks that hold more or less than one term.
    fn count_term_traffic(&mut self, tree: &ReductionTree) {
        let PartialSums { length, head, .. } = self.layout;
        let shard = self.shard(length);
        let mine = shard.start.min(head)..shard.end.min(head);
        let held = tree.terms().iter().filter(|term| term.rank == self.rank).count();
        let (terms, others) = (tree.terms().len(), self.arenas.len() - 1);
        let change = |terms: usize, ranks: usize, elements: usize| {
            (4 * elements) as i64 * (terms as i64 - ranks as i64)
        };
        let received = change(terms - held, others, mine.len());
        let sent = change(held, 1, head - mine.len());
        self.traffic.payload_received = self.traffic.payload_received.saturating_add_signed(received);
        self.traffic.payload_sent = self.traffic.payload_sent.saturating_add_signed(sent);
    }

    /// Each rank writes its shard of the first `count` elements of all columns; one column is counted as traffic, as if the
    /// shards had been all-gathered. Returns when all ranks are done.
    pub fn write_shards<T>(
        &mut self,
        count: usize,
        context: OperationContext<'_>,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<T, TransportError> {
        let tag = context.tag;
        let written = self.run_reducing(count, tag, &mut context.into_wait(), |arena, columns| {
            work(arena.shard(count), columns)
        })?;
        self.count_column_traffic(count);
        Ok(written)
    }

    /// All-reduces private memory of any length by copying it through the arenas: two copies more than in place.
    pub fn all_reduce_copying(
        &mut self,
        buffer: &mut [f32],
        context: OperationContext<'_>,
    ) -> Result<(), TransportError> {
        let tag = context.tag;
        let wait = &mut context.into_wait();
        assert!(self.layout.length > 0 || buffer.is_empty(), "an empty arena");
        for piece in buffer.chunks_mut(self.layout.length.clamp(1, COPY_BLOCK)) {
            self.arena()[..piece.len()].copy_from_slice(piece);
            self.sum_shard(piece.len(), tag, wait, |_, _| ())?;
            piece.copy_from_slice(&self.column(0)[..piece.len()]);
        }
        Ok(())
    }

    pub fn barrier(&mut self, context: OperationContext<'_>) -> Result<(), TransportError> {
        self.barrier.wait(&self.arenas, &mut context.into_wait())
    }

    /// The bytes that this rank read from the memory of other ranks (received) and they from its own (sent).
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Runs `reduce` between the two barriers of an operation, with this rank's shard of all columns.
    fn run_reducing<T>(
        &mut self,
        count: usize,
        tag: Tag,
        wait: &mut OperationWait<'_>,
        reduce: impl FnOnce(&SharedArena, &mut [&mut [f32]]) -> T,
    ) -> Result<T, TransportError> {
        assert!(count <= self.layout.length, "{count} of {} elements", self.layout.length);
        self.expect_idle();
        self.idle = false;
        self.barrier.wait_matching(&self.arenas, tag, count, wait)?;
        let shard = self.shard(count);
        let mut columns: Vec<&mut [f32]> = (0..self.columns)
            .map(|column| {
                let start = column * self.layout.length;
                // SAFETY: while reducing each rank accesses its own shard of the columns only, and shards do not overlap.
                unsafe { elements_mut(&self.shared, start + shard.start..start + shard.end) }
            })
            .collect();
        let result = reduce(self, &mut columns);
        drop(columns);
        self.barrier.wait(&self.arenas, wait)?;
        self.idle = true;
        Ok(result)
    }

    /// Counts one column of which each rank wrote its shard and read the rest.
    fn count_column_traffic(&mut self, count: usize) {
        let (shard, others) = (self.shard(count).len(), self.arenas.len() - 1);
        self.count_traffic(others * shard, count - shard);
    }

    /// Counts elements that other ranks read here (sent) and this rank read elsewhere (received).
    fn count_traffic(&mut self, sent: usize, received: usize) {
        self.traffic.payload_sent += 4 * sent as u64;
        self.traffic.payload_received += 4 * received as u64;
    }

    /// After an operation that failed other ranks may still access this memory: it must not be used any more.
    fn expect_idle(&self) {
        assert!(self.idle, "an operation on this memory failed");
    }
}

/// The first error text, with its rank; `texts` has one text per rank, repeated.
fn first_reason<'a>(texts: impl Iterator<Item = &'a Vec<u8>>, world: usize) -> Option<String> {
    let (index, text) = texts.enumerate().find(|(_, text)| !text.is_empty())?;
    Some(format!("rank {}: {}", index % world, String::from_utf8_lossy(text)))
}

/// Elements of a segment.
///
/// # Safety
/// No rank may write to them while the slice lives.
unsafe fn elements(segment: &Segment, range: Range<usize>) -> &[f32] {
    assert!(range.start <= range.end && Sizes::bytes(range.end) <= segment.length(), "inside the segment");
    // SAFETY: inside the mapping, aligned (mappings begin at a page), every bit pattern is a number; the rest is up to the
    // caller.
    unsafe {
        std::slice::from_raw_parts(segment.base().add(Sizes::bytes(range.start)).cast::<f32>(), range.len())
    }
}

/// Elements of a segment, for writing.
///
/// # Safety
/// No other rank may read or write them while the slice lives.
#[allow(clippy::mut_from_ref)]
unsafe fn elements_mut(segment: &Segment, range: Range<usize>) -> &mut [f32] {
    assert!(segment.is_writable(), "a read-only segment");
    assert!(range.start <= range.end && Sizes::bytes(range.end) <= segment.length(), "inside the segment");
    // SAFETY: as above, and the segment is mapped for writing.
    unsafe {
        std::slice::from_raw_parts_mut(
            segment.base().add(Sizes::bytes(range.start)).cast::<f32>(),
            range.len(),
        )
    }
}
