//! How ranks take turns in shared memory: all the ordering there is, in one place.
//!
//! Every counter has one writer. Three protocols are made of them, each generic over its counters so that a model
//! checker can run it through all interleavings (see the tests below).
//!
//! **A stream** ([`Gauge`]): the writer of bytes puts them in place, then publishes how many it has written in all
//! (release); the reader sees the count (acquire), then the bytes. The other way round, the reader publishes how many
//! it has taken, and the writer sees that before it writes to their place again.
//!
//! **Phases** ([`Phases`]): every rank has a counter of phases it has ended. A rank ends one by a release store to its
//! own counter, and enters the next when it has seen everybody's counter there (acquire): what anybody wrote in a
//! phase is seen by all in the next. So memory that one rank writes in a phase may be read by others in the next one,
//! and be written again in the one after.
//!
//! **Sleep** ([`doze`], [`announce`], [`is_asleep`]): who is about to sleep says so, then looks once more; who changed
//! something announces it, then looks whether somebody sleeps. With a full fence between the two accesses on both sides, at least one of them
//! sees the other: a change is never slept through.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A counter that one rank writes and others read.
pub trait Counter {
    /// Its value, and all that its writer did before it.
    fn acquire(&self) -> u64;
    /// Its value alone, for its writer or between fences.
    fn value(&self) -> u64;
    /// Sets it, after all that was done before.
    fn release(&self, value: u64);
    /// Nothing before it is put off until after it, nor the reverse.
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

/// How far the two ends of a stream are apart, as one of them sees it: bytes written and bytes taken, counted from the
/// beginning.
pub struct Gauge<'a, C> {
    /// The counter of this end.
    pub mine: &'a C,
    /// The counter of the other end.
    pub theirs: &'a C,
}

/// The other end's counter says what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible;

impl<C: Counter> Gauge<'_, C> {
    /// At the writing end: where to write next, and how many bytes there is room for.
    pub fn room(&self, capacity: u64) -> Result<(u64, u64), Impossible> {
        let (written, taken) = (self.mine.value(), self.theirs.acquire());
        let room = written.checked_sub(taken).and_then(|unread| capacity.checked_sub(unread));
        room.map(|room| (written, room)).ok_or(Impossible)
    }

    /// At the reading end: where to read next, and how many bytes there are.
    pub fn unread(&self, capacity: u64) -> Result<(u64, u64), Impossible> {
        let (taken, written) = (self.mine.value(), self.theirs.acquire());
        let unread = written.checked_sub(taken).filter(|unread| *unread <= capacity);
        unread.map(|unread| (taken, unread)).ok_or(Impossible)
    }

    /// At either end: so many more have been written, or taken.
    pub fn advance(&self, count: u64) {
        self.mine.release(self.mine.value() + count);
    }
}

/// The phases of a group, as one rank sees them.
pub struct Phases<'a, C> {
    /// The counter of this rank.
    pub mine: &'a C,
}

impl<C: Counter> Phases<'_, C> {
    /// Ends a phase; the next begins when all have ended as many as is returned.
    pub fn end(&self) -> u64 {
        let ended = self.mine.value() + 1;
        self.mine.release(ended);
        ended
    }

    /// Whether another rank has ended so many phases.
    pub fn has_ended(theirs: &C, phases: u64) -> bool {
        theirs.acquire() >= phases
    }
}

/// Says that this rank is about to sleep. It must look once more for what it waits for before it does.
pub fn doze<C: Counter>(asleep: &C) {
    asleep.release(1);
    C::fence();
}

/// Says that this rank is awake.
pub fn awake<C: Counter>(asleep: &C) {
    asleep.release(0);
}

/// Lets a change be seen by all who doze from now on. Once is enough before any number of [`is_asleep`].
pub fn announce<C: Counter>() {
    C::fence();
}

/// Whether another rank, by its own word, sleeps or is about to; asked after a change it may wait for was announced.
pub fn is_asleep<C: Counter>(asleep: &C) -> bool {
    asleep.value() == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    type Word = loom::sync::atomic::AtomicU64;

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
    fn impossible_counters_are_noticed() {
        let (mine, theirs) = (AtomicU64::new(5), AtomicU64::new(0));
        let gauge = Gauge { mine: &mine, theirs: &theirs };
        assert_eq!((gauge.room(8), gauge.room(4)), (Ok((5, 3)), Err(Impossible)));
        assert_eq!(gauge.unread(8), Err(Impossible), "less was written than taken");
        theirs.store(u64::MAX, Ordering::Relaxed);
        assert_eq!((gauge.room(8), gauge.unread(8)), (Err(Impossible), Err(Impossible)));
    }

    /// A stream of three values through one place: loom finds any access that is not ordered after the other side's.
    #[test]
    fn a_stream_never_reads_and_writes_one_place_at_once() {
        loom::model(|| {
            let shared = Arc::new((Word::new(0), Word::new(0), UnsafeCell::new(0u64)));
            let reader = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (written, taken, place) = &*reader;
                for value in 1..=3 {
                    let gauge = Gauge { mine: taken, theirs: written };
                    while gauge.unread(1).expect("possible").1 == 0 {
                        thread::yield_now();
                    }
                    // SAFETY: a published value is not written again before it is taken; loom checks it.
                    place.with(|place| assert_eq!(unsafe { *place }, value));
                    gauge.advance(1);
                }
            });
            let (written, taken, place) = &*shared;
            for value in 1..=3 {
                let gauge = Gauge { mine: written, theirs: taken };
                while gauge.room(1).expect("possible").1 == 0 {
                    thread::yield_now();
                }
                // SAFETY: a place with room is read by nobody; loom checks it.
                place.with_mut(|place| unsafe { *place = value });
                gauge.advance(1);
            }
            thread.join().expect("a reader");
        });
    }

    /// What an all-reduce in shared memory does, twice over: write one's own, sum one's share of all, read all shares.
    #[test]
    fn phases_keep_readers_and_writers_apart() {
        struct Shared {
            phases: Vec<Word>,
            owned: Vec<UnsafeCell<u64>>,
            sums: Vec<UnsafeCell<u64>>,
            /// How often a rank looks for the others before it gives up.
            looks: usize,
        }
        fn meet(shared: &Shared, rank: usize) -> bool {
            let ended = Phases { mine: &shared.phases[rank] }.end();
            for _ in 0..shared.looks {
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
                // SAFETY: nobody else touches what a rank owns while it writes it; loom checks it.
                shared.owned[rank].with_mut(|mine| unsafe { *mine = round * 10 + rank as u64 });
                if !meet(shared, rank) {
                    return false;
                }
                // SAFETY: all owners have ended the phase in which they write; loom checks it.
                let sum = shared.owned.iter().map(|one| one.with(|one| unsafe { *one })).sum();
                // SAFETY: each rank writes its own share; loom checks it.
                shared.sums[rank].with_mut(|share| unsafe { *share = sum });
                if !meet(shared, rank) {
                    return false;
                }
                let sum = 10 * ranks * round + (0..ranks).sum::<u64>();
                for share in &shared.sums {
                    // SAFETY: all shares were written in the phase before; loom checks it.
                    share.with(|share| assert_eq!(unsafe { *share }, sum));
                }
            }
            true
        }
        let check = |ranks: usize, rounds: u64, looks: usize, preemptions: Option<usize>| {
            let through = std::sync::Arc::new(AtomicU64::new(0));
            let counted = std::sync::Arc::clone(&through);
            let mut model = loom::model::Builder::new();
            model.preemption_bound = preemptions;
            model.check(move || {
                let shared = Arc::new(Shared {
                    phases: (0..ranks).map(|_| Word::new(0)).collect(),
                    owned: (0..ranks).map(|_| UnsafeCell::new(0)).collect(),
                    sums: (0..ranks).map(|_| UnsafeCell::new(0)).collect(),
                    looks,
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
            assert!(through.load(Ordering::Relaxed) > 0, "nobody got to the end");
        };
        check(2, 2, usize::MAX, None);
        // All interleavings of three are too many, and a checker cannot wait for two at once: each looks a few times, and is
        // preempted as few.
        check(3, 1, 2, Some(1));
    }

    /// What a rank does that waits for several changes on one bell: it asks to be rung for, looks once more, sleeps until the
    /// bell rings, and silences it when it is awake, however it came to be. That may silence a ring for a later change, too,
    /// which must then be seen without. One that slept through the last change would never end here.
    #[test]
    fn a_bell_that_is_silenced_hides_no_change() {
        const CHANGES: u64 = 2;
        struct Shared {
            change: Word,
            asleep: Word,
            bell: Word,
        }
        fn wait_for_all(shared: &Shared) {
            let Shared { change, asleep, bell } = shared;
            let (mut seen, mut dozing) = (0, false);
            let rouse = || {
                awake(asleep);
                bell.swap(0, Ordering::AcqRel);
            };
            while seen < CHANGES {
                let moved = change.acquire();
                if moved > seen {
                    seen = moved;
                    if std::mem::take(&mut dozing) {
                        rouse();
                    }
                } else if !std::mem::replace(&mut dozing, true) {
                    doze(asleep);
                } else {
                    while bell.acquire() == 0 {
                        thread::yield_now();
                    }
                    dozing = false;
                    rouse();
                }
            }
        }
        loom::model(|| {
            let shared = Arc::new(Shared { change: Word::new(0), asleep: Word::new(0), bell: Word::new(0) });
            let sleeper = Arc::clone(&shared);
            let thread = thread::spawn(move || wait_for_all(&sleeper));
            for change in 1..=CHANGES {
                shared.change.release(change);
                announce::<Word>();
                if is_asleep(&shared.asleep) {
                    shared.bell.release(1);
                }
            }
            thread.join().expect("a sleeper");
        });
    }

    /// Whatever the order: a rank that sleeps has seen the change, or is woken.
    #[test]
    fn a_change_is_never_slept_through() {
        loom::model(|| {
            let shared = Arc::new((Word::new(0), Word::new(0)));
            let sleeper = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (change, asleep) = &*sleeper;
                doze(asleep);
                change.value() == 1
            });
            let (change, asleep) = &*shared;
            change.release(1);
            announce::<Word>();
            let woken = is_asleep(asleep);
            assert!(thread.join().expect("a sleeper") || woken);
        });
    }
}
