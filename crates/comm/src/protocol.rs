//! The memory ordering of everything in shared memory, in one place.
//!
//! Every counter has one writer. Four protocols use them, each generic over its counters so that a model checker can run
//! all interleavings (see the tests below).
//!
//! **Stream** ([`StreamCounters`]), a single-producer single-consumer ring: the writer stores bytes, then publishes the
//! total it has written (release); the reader loads the total (acquire), then the bytes. In the other direction, the reader
//! publishes the total it has consumed, and the writer loads it before it overwrites them.
//!
//! **Phases** ([`Phases`]), a barrier: every rank has a counter of the phases it has ended. A rank ends a phase by a release
//! store to its own counter, and enters the next one when it has loaded that value from all counters (acquire): all writes
//! of a phase are visible to all ranks in the next. Memory that one rank writes in a phase may be read by other ranks in the
//! next one, and written again in the one after.
//!
//! **Sleep** ([`announce_sleep`], [`publish_change`], [`is_sleeping`]): a rank that is about to sleep sets its flag, then
//! polls once more; a rank that changed something publishes the change, then checks the flags. With a full fence between
//! the two accesses on both sides, at least one of them sees the other: no wake-up is lost.
//!
//! **Sequence lock** ([`sequence_lock`]): memory that its owner rewrites at any time, and that others copy whole or not at
//! all.

pub mod sequence_lock;

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A counter that one rank writes and other ranks read.
pub trait Counter {
    fn acquire(&self) -> u64;
    /// A relaxed load, for the writer or between fences.
    fn value(&self) -> u64;
    fn release(&self, value: u64);
    /// A full (sequentially consistent) fence.
    fn fence();
}

impl Counter for AtomicU64 {
    fn acquire(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn value(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn release(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// The totals of bytes written and consumed of a stream, as seen from one end.
pub struct StreamCounters<'a, C> {
    pub mine: &'a C,
    pub theirs: &'a C,
}

/// The other end's counter has an impossible value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCounter;

impl<C: Counter> StreamCounters<'_, C> {
    /// For the writer: the position to write at, and the free bytes.
    pub fn room(&self, capacity: u64) -> Result<(u64, u64), InvalidCounter> {
        let (written, consumed) = (self.mine.value(), self.theirs.acquire());
        let room = written.checked_sub(consumed).and_then(|unread| capacity.checked_sub(unread));
        room.map(|room| (written, room)).ok_or(InvalidCounter)
    }

    /// For the reader: the position to read at, and the unread bytes.
    pub fn unread(&self, capacity: u64) -> Result<(u64, u64), InvalidCounter> {
        let (consumed, written) = (self.mine.value(), self.theirs.acquire());
        let unread = written.checked_sub(consumed).filter(|unread| *unread <= capacity);
        unread.map(|unread| (consumed, unread)).ok_or(InvalidCounter)
    }

    /// Publishes that `count` more bytes have been written or consumed.
    pub fn advance(&self, count: u64) {
        self.mine.release(self.mine.value() + count);
    }
}

/// One rank's counter of phases.
pub struct Phases<'a, C> {
    pub mine: &'a C,
}

impl<C: Counter> Phases<'_, C> {
    /// Ends a phase; the next one begins when all ranks have ended as many phases as it returns.
    pub fn end(&self) -> u64 {
        let ended = self.mine.value() + 1;
        self.mine.release(ended);
        ended
    }

    /// Whether another rank has ended that many phases.
    pub fn has_ended(theirs: &C, phases: u64) -> bool {
        theirs.acquire() >= phases
    }
}

/// Announces that this rank is about to sleep. The caller must poll once more before it does.
pub fn announce_sleep<C: Counter>(asleep: &C) {
    asleep.release(1);
    C::fence();
}

pub fn mark_awake<C: Counter>(asleep: &C) {
    asleep.release(0);
}

/// Makes a change visible to all ranks that announce their sleep from now on. Call it once, then [`is_sleeping`] for each
/// rank.
pub fn publish_change<C: Counter>() {
    C::fence();
}

/// Whether another rank sleeps or is about to; for use after [`publish_change`].
pub fn is_sleeping<C: Counter>(asleep: &C) -> bool {
    asleep.value() == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    pub(super) type Word = loom::sync::atomic::AtomicU64;

    impl Counter for Word {
        fn acquire(&self) -> u64 {
            self.load(Ordering::Acquire)
        }

        fn value(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }

        fn release(&self, value: u64) {
            self.store(value, Ordering::Release);
        }

        fn fence() {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    #[test]
    fn invalid_counters_are_detected() {
        let (mine, theirs) = (AtomicU64::new(5), AtomicU64::new(0));
        let counters = StreamCounters { mine: &mine, theirs: &theirs };
        assert_eq!((counters.room(8), counters.room(4)), (Ok((5, 3)), Err(InvalidCounter)));
        assert_eq!(counters.unread(8), Err(InvalidCounter), "less written than consumed");
        theirs.store(u64::MAX, Ordering::Relaxed);
        assert_eq!((counters.room(8), counters.unread(8)), (Err(InvalidCounter), Err(InvalidCounter)));
    }

    /// A stream of three values through one slot: loom finds any access that is not ordered after the other side's.
    #[test]
    fn a_stream_never_reads_and_writes_a_slot_at_once() {
        loom::model(|| {
            let shared = Arc::new((Word::new(0), Word::new(0), UnsafeCell::new(0u64)));
            let reader = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (written, consumed, slot) = &*reader;
                for value in 1..=3 {
                    let counters = StreamCounters { mine: consumed, theirs: written };
                    while counters.unread(1).expect("possible").1 == 0 {
                        thread::yield_now();
                    }
                    // SAFETY: a published value is not overwritten before it is consumed; loom checks it.
                    slot.with(|slot| assert_eq!(unsafe { *slot }, value));
                    counters.advance(1);
                }
            });
            let (written, consumed, slot) = &*shared;
            for value in 1..=3 {
                let counters = StreamCounters { mine: written, theirs: consumed };
                while counters.room(1).expect("possible").1 == 0 {
                    thread::yield_now();
                }
                // SAFETY: the reader does not access a free slot; loom checks it.
                slot.with_mut(|slot| unsafe { *slot = value });
                counters.advance(1);
            }
            thread.join().expect("a reader");
        });
    }

    /// Two all-reduces in shared memory: write the own value, sum the own shard, read all shards.
    #[test]
    fn phases_keep_readers_and_writers_apart() {
        struct Shared {
            phases: Vec<Word>,
            owned: Vec<UnsafeCell<u64>>,
            sums: Vec<UnsafeCell<u64>>,
            /// Polls before a rank gives up.
            polls: usize,
        }
        fn barrier(shared: &Shared, rank: usize) -> bool {
            let ended = Phases { mine: &shared.phases[rank] }.end();
            for _ in 0..shared.polls {
                if shared.phases.iter().all(|theirs| Phases::has_ended(theirs, ended)) {
                    return true;
                }
                thread::yield_now();
            }
            false
        }
        fn rank(shared: &Shared, rank: usize, rounds: u64) -> bool {
            let ranks = shared.phases.len() as u64;
            for round in 1..=rounds {
                // SAFETY: no other rank accesses it in this phase; loom checks it.
                shared.owned[rank].with_mut(|mine| unsafe { *mine = round * 10 + rank as u64 });
                if !barrier(shared, rank) {
                    return false;
                }
                // SAFETY: all owners have ended the phase in which they write it; loom checks it.
                let sum = shared.owned.iter().map(|one| one.with(|one| unsafe { *one })).sum();
                // SAFETY: each rank writes its own shard; loom checks it.
                shared.sums[rank].with_mut(|shard| unsafe { *shard = sum });
                if !barrier(shared, rank) {
                    return false;
                }
                let sum = 10 * ranks * round + (0..ranks).sum::<u64>();
                for shard in &shared.sums {
                    // SAFETY: all shards were written in the phase before; loom checks it.
                    shard.with(|shard| assert_eq!(unsafe { *shard }, sum));
                }
            }
            true
        }
        let check = |ranks: usize, rounds: u64, polls: usize, preemptions: Option<usize>| {
            let completed = std::sync::Arc::new(AtomicU64::new(0));
            let counted = std::sync::Arc::clone(&completed);
            let mut model = loom::model::Builder::new();
            model.preemption_bound = preemptions;
            model.check(move || {
                let shared = Arc::new(Shared {
                    phases: (0..ranks).map(|_| Word::new(0)).collect(),
                    owned: (0..ranks).map(|_| UnsafeCell::new(0)).collect(),
                    sums: (0..ranks).map(|_| UnsafeCell::new(0)).collect(),
                    polls,
                });
                let others: Vec<_> = (1..ranks)
                    .map(|other| {
                        let shared = Arc::clone(&shared);
                        thread::spawn(move || rank(&shared, other, rounds))
                    })
                    .collect();
                let first = rank(&shared, 0, rounds);
                let all = others.into_iter().all(|other| other.join().expect("a rank"));
                counted.fetch_add(u64::from(first && all), Ordering::Relaxed);
            });
            assert!(completed.load(Ordering::Relaxed) > 0, "no interleaving completed");
        };
        check(2, 2, usize::MAX, None);
        // All interleavings of three ranks are too many, and loom cannot wait for two threads at once: each rank polls a few
        // times and is preempted once.
        check(3, 1, 2, Some(1));
    }

    /// A rank that waits for several changes on one eventfd announces its sleep, polls once more, sleeps until the eventfd is
    /// signalled, and clears it when it wakes, for any reason. That can also clear the signal of a later change, which must
    /// then be seen by polling. A lost wake-up would make this test hang.
    #[test]
    fn clearing_the_eventfd_loses_no_change() {
        const CHANGES: u64 = 2;
        struct Shared {
            change: Word,
            asleep: Word,
            eventfd: Word,
        }
        fn wait_for_all(shared: &Shared) {
            let Shared { change, asleep, eventfd } = shared;
            let (mut seen, mut announced) = (0, false);
            let wake = || {
                mark_awake(asleep);
                eventfd.swap(0, Ordering::AcqRel);
            };
            while seen < CHANGES {
                let moved = change.acquire();
                if moved > seen {
                    seen = moved;
                    if std::mem::take(&mut announced) {
                        wake();
                    }
                } else if !std::mem::replace(&mut announced, true) {
                    announce_sleep(asleep);
                } else {
                    while eventfd.acquire() == 0 {
                        thread::yield_now();
                    }
                    announced = false;
                    wake();
                }
            }
        }
        loom::model(|| {
            let shared =
                Arc::new(Shared { change: Word::new(0), asleep: Word::new(0), eventfd: Word::new(0) });
            let sleeper = Arc::clone(&shared);
            let thread = thread::spawn(move || wait_for_all(&sleeper));
            for change in 1..=CHANGES {
                shared.change.release(change);
                publish_change::<Word>();
                if is_sleeping(&shared.asleep) {
                    shared.eventfd.release(1);
                }
            }
            thread.join().expect("a sleeper");
        });
    }

    /// In every interleaving a rank that sleeps has seen the change or is woken.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let shared = Arc::new((Word::new(0), Word::new(0)));
            let sleeper = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (change, asleep) = &*sleeper;
                announce_sleep(asleep);
                change.value() == 1
            });
            let (change, asleep) = &*shared;
            change.release(1);
            publish_change::<Word>();
            let woken = is_sleeping(asleep);
            assert!(thread.join().expect("a sleeper") || woken);
        });
    }
}
