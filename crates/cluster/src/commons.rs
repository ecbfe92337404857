//! What ranks of one host do together in shared memory.

use crate::rank::Rank;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use thalweg_comm::Traffic;
use thalweg_comm::arena::{Commons, Terms};
use thalweg_comm::collective::{Brackets, Slots};
use thalweg_comm::transport::Fault;
use thalweg_core::Result;
use thalweg_core::clock::Clock;

impl Rank {
    /// Whether all ranks are on this host and share memory. Pairs settle it between them, and one pair may fail where others
    /// do not, so the ranks agree: all must ask at the same place, the first time in a generation.
    pub fn shares_memory(&mut self) -> Result<bool> {
        let generation = self.parts.generation;
        if let Some((_, known)) = self.sharing.filter(|(asked, _)| *asked == generation) {
            return Ok(known);
        }
        let near = self.parts.neighbours.iter().flatten().count();
        let mine = near + 1 == self.world();
        let one_host = self.world() > 1 && self.parts.hosts.population(0) == self.world();
        let agreed = one_host
            && self.all_gather("shared memory", &[u8::from(mine)])?.iter().all(|said| said[..] == [1]);
        self.sharing = Some((generation, agreed));
        Ok(agreed)
    }

    /// Makes arenas and columns of that length for all ranks, or says who could not and why. All ranks must call it.
    pub fn open_commons(
        &mut self,
        name: &str,
        length: usize,
        columns: usize,
    ) -> Result<Result<Commons, String>> {
        self.open_slots(name, Slots::one(length), columns)
    }

    /// The same with several slots in every arena.
    pub fn open_slots(
        &mut self,
        name: &str,
        slots: Slots,
        columns: usize,
    ) -> Result<Result<Commons, String>> {
        let mut opened = Err(String::new());
        self.operate("opening", name, |rank, tag, deadline| {
            let terms = Terms { transport: rank.parts.transport.as_mut(), tag, deadline };
            opened = Commons::open_slots(&rank.parts.neighbours, slots, columns, terms)?;
            Ok(())
        })?;
        Ok(opened)
    }

    /// Adds up the first `count` elements of all arenas; the sums are in the first column. Each rank then does `work` on
    /// its share of all columns, which is booked as computing. Says how long the exchange took without it.
    pub fn sum_and<T>(
        &mut self,
        name: &str,
        commons: &mut Commons,
        count: usize,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<(T, Duration)> {
        let timed = timed(Arc::clone(&self.parts.clock), work);
        let run = |commons: &mut Commons, terms: Terms<'_>| commons.sum_and(count, terms, timed);
        let done = self.together("all-reduce", name, commons, run)?;
        Ok(self.book(done))
    }

    /// The same for terms in all slots, added up as the brackets say.
    pub fn sum_brackets_and<T>(
        &mut self,
        name: &str,
        commons: &mut Commons,
        brackets: &Brackets,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<(T, Duration)> {
        let timed = timed(Arc::clone(&self.parts.clock), work);
        let run = |commons: &mut Commons, terms: Terms<'_>| commons.sum_brackets_and(brackets, terms, timed);
        let done = self.together("all-reduce", name, commons, run)?;
        Ok(self.book(done))
    }

    /// Books the work that was part of an operation; what is left is how long the exchange took.
    fn book<T>(&mut self, ((answer, worked), took): ((T, Duration), Duration)) -> (T, Duration) {
        self.book_work(worked);
        (answer, took.saturating_sub(worked))
    }

    /// Each rank writes its share of all columns.
    pub fn write_shares<T>(
        &mut self,
        name: &str,
        commons: &mut Commons,
        count: usize,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<(T, Duration)> {
        self.together("gathering", name, commons, |commons, terms| commons.write_shares(count, terms, work))
    }

    /// Adds up private memory by way of the arenas.
    pub fn all_reduce_copying(
        &mut self,
        name: &str,
        commons: &mut Commons,
        buffer: &mut [f32],
    ) -> Result<Duration> {
        let run = |commons: &mut Commons, terms: Terms<'_>| commons.all_reduce_copying(buffer, terms);
        Ok(self.together("all-reduce", name, commons, run)?.1)
    }

    /// Returns when every rank has come here.
    pub fn meet(&mut self, name: &str, commons: &mut Commons) -> Result<Duration> {
        Ok(self.together("barrier", name, commons, |commons, terms| commons.barrier(terms))?.1)
    }

    fn together<T>(
        &mut self,
        kind: &str,
        name: &str,
        commons: &mut Commons,
        run: impl FnOnce(&mut Commons, Terms<'_>) -> Result<T, Fault>,
    ) -> Result<(T, Duration)> {
        let before = commons.traffic();
        let mut answer = None;
        let took = self.operate(kind, name, |rank, tag, deadline| {
            let terms = Terms { transport: rank.parts.transport.as_mut(), tag, deadline };
            answer = Some(run(commons, terms)?);
            Ok(())
        })?;
        self.shared = plus(self.shared, difference(commons.traffic(), before));
        let answer = answer.ok_or_else(|| thalweg_core::Error::internal("an operation without an answer"))?;
        Ok((answer, took))
    }
}

/// Work that says how long it took.
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
