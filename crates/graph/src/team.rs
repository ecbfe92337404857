//! The threads of one process that work on a step together.
//!
//! A task is cut into shares; whoever is free takes the next one, the calling thread included. What a share is depends
//! on the task and on the number of threads alone, never on who takes it or when: the same number of threads gives the
//! same bits. A helper that the machine has put aside holds nobody up, since its share is taken by another.
//!
//! Helpers live as long as the team. Between two tasks they spin, for a short while and only if the machine has a core
//! for every thread of the job, then yield, then sleep: to wake one costs more than a small task does.

use crate::op::matrix::prepare_thread;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Most threads of a team, and most shares of a task.
pub const MOST_SHARES: usize = 64;

/// Glances at the next task before a helper looks at the clock.
const GLANCES: u32 = 1000;

/// How long a helper stays awake without a task.
const PATIENCE: Duration = Duration::from_micros(300);

/// A task: called with the number of a share.
type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// The least work that is worth a share of its own, in elements that are read and written once: a few microseconds.
const LEAST_WORK: usize = 1 << 13;

/// Threads that work together. The default is the calling thread alone.
#[derive(Default)]
pub struct Team {
    /// Whether the smallest work is shared too.
    eager: bool,
    /// Nothing if there are no helpers.
    board: Option<Arc<Board>>,
    /// Held by who has put up a task; whoever finds it held works alone.
    busy: Mutex<()>,
    helpers: Vec<(Thread, Option<JoinHandle<()>>)>,
}

/// Where tasks are put up.
#[derive(Debug)]
struct Board {
    /// Number of the task, its shares, and the next share to take: 32, 16 and 16 bits.
    state: AtomicU64,
    task: Slot,
    done: AtomicUsize,
    failed: AtomicBool,
    closed: AtomicBool,
    /// Which helpers sleep.
    asleep: Vec<AtomicBool>,
    /// Whether there is a core for every thread.
    spins: bool,
}

/// The task that is put up.
#[derive(Debug)]
struct Slot(UnsafeCell<Option<*const Task<'static>>>);

// SAFETY: the slot is written by the one thread that holds `Team::busy` while no share of any task is taken, and
// read only by those who have taken a share; `Board::state` (released by the writer, acquired by who takes a share) and
// `Board::done` (the other way round) order the two. What it points to may be called from any thread.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Team {
    /// A team of that many threads, the caller's included; those of one process who ask for the same get the same.
    /// `ranks` is how many processes like this one share the machine.
    pub fn of(threads: usize, ranks: usize) -> Arc<Team> {
        static TEAMS: Mutex<Vec<([usize; 2], Weak<Team>)>> = Mutex::new(Vec::new());
        let threads = threads.clamp(1, MOST_SHARES);
        let wanted = [threads, ranks];
        let mut teams = TEAMS.lock().unwrap_or_else(PoisonError::into_inner);
        teams.retain(|(_, team)| team.strong_count() > 0);
        let known = teams.iter().find(|(asked, _)| *asked == wanted).and_then(|(_, team)| team.upgrade());
        known.unwrap_or_else(|| {
            let team = Arc::new(Team::new(threads, ranks, false));
            teams.push((wanted, Arc::downgrade(&team)));
            team
        })
    }

    /// A team that shares even the smallest work, so that small tests see what large batches do.
    pub fn eager(threads: usize) -> Arc<Team> {
        Arc::new(Team::new(threads, 1, true))
    }

    fn new(threads: usize, ranks: usize, eager: bool) -> Team {
        if threads == 1 {
            return Team::default();
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let board = Arc::new(Board {
            state: AtomicU64::new(0),
            task: Slot(UnsafeCell::new(None)),
            done: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            asleep: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            spins: threads * ranks <= cores,
        });
        let (ready, all_ready) = channel();
        // A machine that gives no more threads gets the work done with those it gives.
        let helpers = (0..threads - 1).map_while(|number| {
            let (board, ready) = (Arc::clone(&board), ready.clone());
            let name = format!("helper {number}");
            let handle = thread::Builder::new().name(name).spawn(move || board.help(number, &ready)).ok()?;
            Some((handle.thread().clone(), Some(handle)))
        });
        let helpers: Vec<_> = helpers.collect();
        drop(ready);
        all_ready.iter().take(helpers.len()).for_each(|()| {});
        Team { eager, board: Some(board), busy: Mutex::new(()), helpers }
    }

    /// How many threads work together.
    pub fn threads(&self) -> usize {
        self.board.as_ref().map_or(1, |board| board.asleep.len() + 1)
    }

    /// The least work that is worth a share of its own, in elements that are read and written once.
    pub fn least_work(&self) -> usize {
        if self.eager { 1 } else { LEAST_WORK }
    }

    /// Does something to every item, several at a time.
    pub fn each<T: Send>(&self, items: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
        let (count, first) = (items.len(), AtomicPtr::new(items.as_mut_ptr()));
        self.run(count, &|share| {
            assert!(share < count, "a share of the task");
            // SAFETY: the items are borrowed mutably until `run` returns, each share is below their number and handed
            // out once, so that no two references to an item exist; items may be sent to other threads.
            let item = unsafe { &mut *first.load(Ordering::Relaxed).add(share) };
            work(share, item);
        });
    }

    /// Calls the task once for every share; returns when all are done.
    pub fn run(&self, shares: usize, task: &Task<'_>) {
        let busy = match self.busy.try_lock() {
            Ok(busy) => Some(busy),
            // A task panicked, and all its shares were done before the panic went on: the board is free.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let (Some(board), Some(_busy), 2..=MOST_SHARES) = (&self.board, &busy, shares) else {
            return (0..shares).for_each(task);
        };
        board.put_up(shares, task);
        for ((helper, _), asleep) in self.helpers.iter().zip(&board.asleep) {
            if asleep.load(Ordering::SeqCst) && asleep.swap(false, Ordering::SeqCst) {
                helper.unpark();
            }
        }
        let mut panic = None;
        loop {
            match catch_unwind(AssertUnwindSafe(|| board.take_one())) {
                Ok(true) => {}
                Ok(false) => break,
                Err(cause) => panic = Some(cause),
            }
        }
        board.await_all(shares);
        let failed = board.failed.swap(false, Ordering::Relaxed);
        if let Some(cause) = panic {
            resume_unwind(cause);
        }
        assert!(!failed, "a helper panicked in a share of the task");
    }
}

impl Board {
    fn put_up(&self, shares: usize, task: &Task<'_>) {
        let task: *const Task<'_> = task;
        // SAFETY: only the lifetime changes. The task is called only by those who have taken a share of it, and `run`
        // does not return before all shares are done. Nobody reads the slot now: all shares of the task before were
        // done when it returned, and who holds the lock is alone in writing.
        unsafe {
            *self.task.0.get() = Some(std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task))
        };
        self.done.store(0, Ordering::Relaxed);
        let number = (self.state.load(Ordering::Relaxed) >> 32) + 1;
        self.state.store((number << 32) | ((shares as u64) << 16), Ordering::SeqCst);
    }

    /// Takes a share and does it; false if there is none.
    fn take_one(&self) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let (shares, next) = ((state >> 16) & 0xffff, state & 0xffff);
            if next >= shares {
                return false;
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.work(next as usize);
                    return true;
                }
                Err(now) => state = now,
            }
        }
    }

    fn work(&self, share: usize) {
        // SAFETY: this share was taken and is not done, so the task is alive and the slot is not written.
        let task = unsafe { (*self.task.0.get()).map(|task| &*task) };
        // Counted even if it panics: somebody waits for it.
        let counted = Counted(self);
        if let Some(task) = task {
            task(share);
        }
        drop(counted);
    }

    fn await_all(&self, shares: usize) {
        while self.done.load(Ordering::Acquire) < shares {
            for _ in 0..GLANCES {
                if self.done.load(Ordering::Acquire) >= shares {
                    return;
                }
                std::hint::spin_loop();
            }
            thread::yield_now();
        }
    }

    /// The life of a helper.
    fn help(&self, number: usize, ready: &Sender<()>) {
        prepare_thread();
        // Who made the team waits for this.
        let _ = ready.send(());
        let mut idle_since = Instant::now();
        while !self.closed.load(Ordering::Acquire) {
            // A panic is told to who waits for the share.
            match catch_unwind(AssertUnwindSafe(|| self.take_one())) {
                Ok(false) => self.rest(number, &mut idle_since),
                Ok(true) | Err(_) => idle_since = Instant::now(),
            }
        }
    }

    fn has_task(&self) -> bool {
        let state = self.state.load(Ordering::SeqCst);
        state & 0xffff < (state >> 16) & 0xffff
    }

    /// Waits for a task, awake or asleep.
    fn rest(&self, number: usize, idle_since: &mut Instant) {
        if self.spins {
            for _ in 0..GLANCES {
                if self.has_task() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        if self.spins && idle_since.elapsed() < PATIENCE {
            return thread::yield_now();
        }
        self.asleep[number].store(true, Ordering::SeqCst);
        while self.asleep[number].load(Ordering::SeqCst)
            && !self.has_task()
            && !self.closed.load(Ordering::Acquire)
        {
            thread::park();
        }
        self.asleep[number].store(false, Ordering::SeqCst);
        *idle_since = Instant::now();
    }
}

/// Counts a share as done when it is dropped.
struct Counted<'a>(&'a Board);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::Relaxed);
        }
        self.0.done.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Some(board) = &self.board {
            board.closed.store(true, Ordering::Release);
        }
        for (helper, handle) in &mut self.helpers {
            helper.unpark();
            if let Some(handle) = handle.take() {
                // A helper catches every panic of a task.
                let _ = handle.join();
            }
        }
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Team {{ {} threads }}", self.threads())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_is_done_once() {
        for threads in [1, 2, 3] {
            let team = Team::new(threads, 1, false);
            for round in 0..200 {
                let mut items = vec![0; 1 + round % MOST_SHARES];
                team.each(&mut items, |share, item| *item += share + 1);
                assert!(items.iter().enumerate().all(|(share, item)| *item == share + 1));
            }
        }
    }

    #[test]
    fn a_task_may_put_up_another_and_two_callers_may_meet() {
        let team = Team::of(2, 1);
        assert_eq!((team.threads(), Team::of(2, 1).threads()), (2, 2));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut sums = [0usize; 4];
                    team.each(&mut sums, |_, sum| {
                        let mut inner = [1usize; 3];
                        team.each(&mut inner, |share, item| *item += share);
                        *sum = inner.iter().sum();
                    });
                    assert_eq!(sums, [6; 4]);
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::new(2, 1, false);
        let mut items = [0; 8];
        let caught =
            catch_unwind(AssertUnwindSafe(|| team.each(&mut items, |share, _| assert_ne!(share, 5))));
        assert!(caught.is_err());
        let put_up = || team.board.as_ref().map(|board| board.state.load(Ordering::SeqCst) >> 32);
        let before = put_up();
        team.each(&mut items, |_, item| *item = 1);
        assert_eq!(items, [1; 8]);
        assert_eq!(put_up(), before.map(|number| number + 1), "the helpers were asked again");
    }

    #[test]
    fn teams_are_shared_by_those_who_ask_for_the_same() {
        let team = Team::of(3, 1);
        assert!(Arc::ptr_eq(&team, &Team::of(3, 1)));
        let crowded = Team::of(3, 1_000_000);
        assert!(!Arc::ptr_eq(&team, &crowded));
        assert!(!crowded.board.as_ref().is_some_and(|board| board.spins), "no core for every thread");
    }
}
