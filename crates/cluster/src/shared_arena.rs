//! Collectives of ranks of one host through shared arenas.
//!
//! Arenas are those of the world: on a smaller group these operations fail. `arena_barrier` and `all_reduce_copying`
//! are called by `bench allreduce` alone, which compares arenas with messages.

use crate::group::{Group, Operation};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use thalweg_comm::Traffic;
use thalweg_comm::arena::{OperationContext, SharedArena};
use thalweg_comm::collective::{PartialSums, ReductionTree};
use thalweg_comm::transport::TransportError;
use thalweg_core::Result;
use thalweg_core::clock::Clock;

/// What [`Group::require_world`] names in its error.
const ARENA: &str = "a shared arena";

impl Group<'_> {
    /// Whether all ranks are on one host and share memory: an all-gather at the first call of a generation, which all
    /// ranks must make together; later calls return the known result. Each pair of ranks sets up its memory by itself
    /// and may fail alone, so no rank can decide this locally.
    pub fn agree_on_shared_memory(&mut self) -> Result<bool> {
        self.require_world(ARENA)?;
        if let Some(known) = self.state().shares_memory {
            return Ok(known);
        }
        let (parts, size) = (&self.rank.parts, self.size());
        let mine = parts.local_peers.iter().flatten().count() + 1 == size;
        let one_host = size > 1 && parts.hosts.population(0) == size;
        let agreed = one_host
            && self.all_gather("shared memory", &[u8::from(mine)])?.iter().all(|shares| shares[..] == [1]);
        self.state_mut().shares_memory = Some(agreed);
        Ok(agreed)
    }

    /// Allocates shared memory on all ranks: an arena of partial sums per rank, and `columns` that all ranks share. The
    /// inner error names the rank that could not, and why. All ranks must call it.
    pub fn open_arena(
        &mut self,
        name: &str,
        slots: PartialSums,
        columns: usize,
    ) -> Result<Result<SharedArena, String>> {
        self.require_world(ARENA)?;
        let (opened, _) = self.operate("opening", name, |operation| {
            let Operation { parts, tag, deadline, .. } = operation;
            let context = OperationContext { transport: parts.transport.as_mut(), tag, deadline };
            SharedArena::open(&parts.local_peers, slots, columns, context)
        })?;
        Ok(opened)
    }

    /// Sums the first `count` elements of all arenas into the first column. Each rank then runs `work` on its shard of
    /// all columns, which is booked as computing. Returns the time of the exchange without it.
    pub fn sum_and_apply<T>(
        &mut self,
        name: &str,
        arena: &mut SharedArena,
        count: usize,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<(T, Duration)> {
        let timed = timed(Arc::clone(&self.rank.parts.clock), work);
        let run = |arena: &mut SharedArena, context: OperationContext<'_>| {
            arena.sum_and_apply(count, context, timed)
        };
        let done = self.run_on_arena("all-reduce", name, arena, run)?;
        Ok(self.book_apply(done))
    }

    /// The same for terms in all slots, summed in the order of the tree.
    pub fn tree_sum_and_apply<T>(
        &mut self,
        name: &str,
        arena: &mut SharedArena,
        tree: &ReductionTree,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<(T, Duration)> {
        let timed = timed(Arc::clone(&self.rank.parts.clock), work);
        let run = |arena: &mut SharedArena, context: OperationContext<'_>| {
            arena.tree_sum_and_apply(tree, context, timed)
        };
        let done = self.run_on_arena("all-reduce", name, arena, run)?;
        Ok(self.book_apply(done))
    }

    /// Books the work done within an operation as computing; returns the time of the exchange without it.
    fn book_apply<T>(&mut self, ((result, worked), took): ((T, Duration), Duration)) -> (T, Duration) {
        self.rank.book_work(worked);
        (result, took.saturating_sub(worked))
    }

    /// Each rank writes its shard of all columns.
    pub fn write_shards<T>(
        &mut self,
        name: &str,
        arena: &mut SharedArena,
        count: usize,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<(T, Duration)> {
        self.run_on_arena("gathering", name, arena, |arena, context| arena.write_shards(count, context, work))
    }

    /// Sums private buffers by copying them through the arenas.
    pub fn all_reduce_copying(
        &mut self,
        name: &str,
        arena: &mut SharedArena,
        buffer: &mut [f32],
    ) -> Result<Duration> {
        let run = |arena: &mut SharedArena, context: OperationContext<'_>| {
            arena.all_reduce_copying(buffer, context)
        };
        Ok(self.run_on_arena("all-reduce", name, arena, run)?.1)
    }

    /// A barrier in shared memory.
    pub fn arena_barrier(&mut self, name: &str, arena: &mut SharedArena) -> Result<Duration> {
        Ok(self.run_on_arena("barrier", name, arena, |arena, context| arena.barrier(context))?.1)
    }

    fn run_on_arena<T>(
        &mut self,
        kind: &str,
        name: &str,
        arena: &mut SharedArena,
        run: impl FnOnce(&mut SharedArena, OperationContext<'_>) -> Result<T, TransportError>,
    ) -> Result<(T, Duration)> {
        self.require_world(ARENA)?;
        let before = arena.traffic();
        let done = self.operate(kind, name, |operation| {
            let Operation { parts, tag, deadline, .. } = operation;
            run(arena, OperationContext { transport: parts.transport.as_mut(), tag, deadline })
        })?;
        self.rank.shared = plus(self.rank.shared, difference(arena.traffic(), before));
        Ok(done)
    }
}

/// Wraps `work` so that it also returns its duration.
fn timed<T>(
    clock: Arc<dyn Clock>,
    work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
) -> impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> (T, Duration) {
    move |range, columns| {
        let start = clock.now();
        (work(range, columns), clock.now() - start)
    }
}

fn plus(one: Traffic, other: Traffic) -> Traffic {
    Traffic {
        payload_sent: one.payload_sent + other.payload_sent,
        payload_received: one.payload_received + other.payload_received,
        ..one
    }
}

fn difference(after: Traffic, before: Traffic) -> Traffic {
    Traffic {
        payload_sent: after.payload_sent - before.payload_sent,
        payload_received: after.payload_received - before.payload_received,
        ..after
    }
}
