//! A thread team: the calling thread and helper threads that run one task together.
//!
//! A task is split into chunks; every free thread takes the next one, the calling thread included. The chunks depend
//! on the task and on the number of threads only, never on scheduling: the same number of threads gives the same
//! bits. A helper that the kernel has descheduled delays at most the chunk it holds.
//!
//! Helpers live as long as the team. Between tasks they spin briefly, if the machine has a core for every thread of the
//! job, then yield, then park: waking a parked thread costs more than a small task.

use crate::op::matrix::prepare_thread;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Most threads of a team, and most chunks of a task.
pub const MAX_CHUNKS: usize = 64;

/// Spin iterations before a waiting thread yields or reads the clock.
const SPINS: u32 = 1000;

/// How long an idle helper spins and yields before it parks.
const IDLE_TIMEOUT: Duration = Duration::from_micros(300);

/// A task: called with the index of a chunk.
type ChunkTask<'a> = dyn Fn(usize) + Sync + 'a;

/// The least work of a chunk, in elements that are read and written once: a few microseconds.
const MIN_CHUNK_WORK: usize = 1 << 13;

/// Threads that run tasks together. The default is the calling thread alone.
#[derive(Default)]
pub struct Team {
    /// Whether even the smallest work is split.
    eager: bool,
    /// `None` without helpers.
    shared: Option<Arc<TaskState>>,
    /// Held by the thread that has published a task; a thread that finds it locked runs its task alone.
    busy: Mutex<()>,
    helpers: Vec<(Thread, Option<JoinHandle<()>>)>,
}

/// The published task, shared by all threads of a team.
#[derive(Debug)]
struct TaskState {
    /// Number of the task, count of its chunks, next chunk to take: 32, 16 and 16 bits.
    state: AtomicU64,
    task: TaskPointer,
    done: AtomicUsize,
    panicked: AtomicBool,
    shutdown: AtomicBool,
    /// Per helper: whether it is parked.
    parked: Vec<AtomicBool>,
    /// Whether there is a core for every thread.
    spins: bool,
}

#[derive(Debug)]
struct TaskPointer(UnsafeCell<Option<*const ChunkTask<'static>>>);

// SAFETY: the pointer is written by the one thread that holds `Team::busy` while no chunk of any task is taken, and
// read only by threads that have taken a chunk; `TaskState::state` (released by the writer, acquired by the thread
// that takes a chunk) and `TaskState::done` (the other way round) order the two. The task may be called from any
// thread.
unsafe impl Send for TaskPointer {}
// SAFETY: as above.
unsafe impl Sync for TaskPointer {}

impl Team {
    /// A team of `threads` threads, the caller's included. Callers of one process with the same arguments get the same
    /// team. `ranks` is the number of processes on this machine that each have such a team.
    pub fn shared(threads: usize, ranks: usize) -> Arc<Team> {
        static TEAMS: Mutex<Vec<([usize; 2], Weak<Team>)>> = Mutex::new(Vec::new());
        let threads = threads.clamp(1, MAX_CHUNKS);
        let key = [threads, ranks];
        let mut teams = TEAMS.lock().unwrap_or_else(PoisonError::into_inner);
        teams.retain(|(_, team)| team.strong_count() > 0);
        let existing = teams.iter().find(|(other, _)| *other == key).and_then(|(_, team)| team.upgrade());
        existing.unwrap_or_else(|| {
            let team = Arc::new(Team::new(threads, ranks, false));
            teams.push((key, Arc::downgrade(&team)));
            team
        })
    }

    /// A team that splits even the smallest work, so that small tests cover the code of large batches.
    pub fn eager(threads: usize) -> Arc<Team> {
        Arc::new(Team::new(threads, 1, true))
    }

    fn new(threads: usize, ranks: usize, eager: bool) -> Team {
        if threads == 1 {
            return Team::default();
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(TaskState {
            state: AtomicU64::new(0),
            task: TaskPointer(UnsafeCell::new(None)),
            done: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            parked: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            spins: threads * ranks <= cores,
        });
        let (ready, all_ready) = channel();
        // Where the system refuses more threads, the team works with those it has.
        let helpers = (0..threads - 1).map_while(|number| {
            let (shared, ready) = (Arc::clone(&shared), ready.clone());
            let name = format!("helper {number}");
            let spawned = thread::Builder::new().name(name).spawn(move || shared.helper_loop(number, &ready));
            let handle = spawned.ok()?;
            Some((handle.thread().clone(), Some(handle)))
        });
        let helpers: Vec<_> = helpers.collect();
        drop(ready);
        all_ready.iter().take(helpers.len()).for_each(|()| {});
        Team { eager, shared: Some(shared), busy: Mutex::new(()), helpers }
    }

    pub fn threads(&self) -> usize {
        self.shared.as_ref().map_or(1, |shared| shared.parked.len() + 1)
    }

    /// The least work of a chunk, in elements that are read and written once.
    pub fn min_chunk_work(&self) -> usize {
        if self.eager { 1 } else { MIN_CHUNK_WORK }
    }

    /// Calls `work` for every item, in parallel; each item is a chunk.
    pub fn for_each<T: Send>(&self, items: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
        let (count, first) = (items.len(), AtomicPtr::new(items.as_mut_ptr()));
        self.run(count, &|chunk| {
            assert!(chunk < count, "a chunk of the task");
            // SAFETY: the items are borrowed mutably until `run` returns, each chunk index is below their number and
            // handed out once, so that no two references to an item exist; items may be sent to other threads.
            let item = unsafe { &mut *first.load(Ordering::Relaxed).add(chunk) };
            work(chunk, item);
        });
    }

    /// Calls the task once for every chunk; returns when all are done.
    pub fn run(&self, chunks: usize, task: &ChunkTask<'_>) {
        let busy = match self.busy.try_lock() {
            Ok(busy) => Some(busy),
            // A task panicked, but all its chunks were done before the panic went on: no task is published.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let (Some(shared), Some(_busy), 2..=MAX_CHUNKS) = (&self.shared, &busy, chunks) else {
            return (0..chunks).for_each(task);
        };
        shared.publish(chunks, task);
        for ((helper, _), parked) in self.helpers.iter().zip(&shared.parked) {
            if parked.load(Ordering::SeqCst) && parked.swap(false, Ordering::SeqCst) {
                helper.unpark();
            }
        }
        let mut panic = None;
        loop {
            match catch_unwind(AssertUnwindSafe(|| shared.run_next_chunk())) {
                Ok(true) => {}
                Ok(false) => break,
                Err(cause) => panic = Some(cause),
            }
        }
        shared.wait_until_done(chunks);
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Some(cause) = panic {
            resume_unwind(cause);
        }
        assert!(!panicked, "a helper panicked in a chunk of the task");
    }
}

impl TaskState {
    fn publish(&self, chunks: usize, task: &ChunkTask<'_>) {
        let task: *const ChunkTask<'_> = task;
        // SAFETY: only the lifetime changes. The task is called only by threads that have taken a chunk of it, and
        // `run` does not return before all chunks are done. No thread reads the pointer now: all chunks of the task
        // before were done when its `run` returned, and the lock leaves one writer.
        unsafe {
            *self.task.0.get() =
                Some(std::mem::transmute::<*const ChunkTask<'_>, *const ChunkTask<'static>>(task))
        };
        self.done.store(0, Ordering::Relaxed);
        let number = (self.state.load(Ordering::Relaxed) >> 32) + 1;
        self.state.store((number << 32) | ((chunks as u64) << 16), Ordering::SeqCst);
    }

    /// Takes a chunk and runs it; false if none is left.
    fn run_next_chunk(&self) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let (chunks, next) = ((state >> 16) & 0xffff, state & 0xffff);
            if next >= chunks {
                return false;
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.run_chunk(next as usize);
                    return true;
                }
                Err(now) => state = now,
            }
        }
    }

    fn run_chunk(&self, chunk: usize) {
        // SAFETY: this chunk was taken and is not done, so the task is alive and the pointer is not written.
        let task = unsafe { (*self.task.0.get()).map(|task| &*task) };
        // Counted even if it panics: `run` waits for the count.
        let counted = ChunkGuard(self);
        if let Some(task) = task {
            task(chunk);
        }
        drop(counted);
    }

    fn wait_until_done(&self, chunks: usize) {
        while self.done.load(Ordering::Acquire) < chunks {
            for _ in 0..SPINS {
                if self.done.load(Ordering::Acquire) >= chunks {
                    return;
                }
                std::hint::spin_loop();
            }
            thread::yield_now();
        }
    }

    /// The main loop of a helper thread.
    fn helper_loop(&self, number: usize, ready: &Sender<()>) {
        prepare_thread();
        // The receiver is gone only if the thread that makes the team has panicked.
        let _ = ready.send(());
        let mut idle_since = Instant::now();
        while !self.shutdown.load(Ordering::Acquire) {
            // The guard of the chunk has recorded a panic for the waiting caller.
            match catch_unwind(AssertUnwindSafe(|| self.run_next_chunk())) {
                Ok(false) => self.wait_for_task(number, &mut idle_since),
                Ok(true) | Err(_) => idle_since = Instant::now(),
            }
        }
    }

    fn has_task(&self) -> bool {
        let state = self.state.load(Ordering::SeqCst);
        state & 0xffff < (state >> 16) & 0xffff
    }

    /// Spins, then yields, then parks until a task is published. May return early.
    fn wait_for_task(&self, number: usize, idle_since: &mut Instant) {
        if self.spins {
            for _ in 0..SPINS {
                if self.has_task() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        if self.spins && idle_since.elapsed() < IDLE_TIMEOUT {
            return thread::yield_now();
        }
        self.parked[number].store(true, Ordering::SeqCst);
        while self.parked[number].load(Ordering::SeqCst)
            && !self.has_task()
            && !self.shutdown.load(Ordering::Acquire)
        {
            thread::park();
        }
        self.parked[number].store(false, Ordering::SeqCst);
        *idle_since = Instant::now();
    }
}

/// Counts a chunk as done when it is dropped, and records a panic.
struct ChunkGuard<'a>(&'a TaskState);

impl Drop for ChunkGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.panicked.store(true, Ordering::Relaxed);
        }
        self.0.done.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.shutdown.store(true, Ordering::Release);
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
    fn every_chunk_runs_once() {
        for threads in [1, 2, 3] {
            let team = Team::new(threads, 1, false);
            for round in 0..200 {
                let mut items = vec![0; 1 + round % MAX_CHUNKS];
                team.for_each(&mut items, |chunk, item| *item += chunk + 1);
                assert!(items.iter().enumerate().all(|(chunk, item)| *item == chunk + 1));
            }
        }
    }

    #[test]
    fn nested_and_concurrent_tasks_run_alone() {
        let team = Team::shared(2, 1);
        assert_eq!((team.threads(), Team::shared(2, 1).threads()), (2, 2));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut sums = [0usize; 4];
                    team.for_each(&mut sums, |_, sum| {
                        let mut inner = [1usize; 3];
                        team.for_each(&mut inner, |chunk, item| *item += chunk);
                        *sum = inner.iter().sum();
                    });
                    assert_eq!(sums, [6; 4]);
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_stays_usable() {
        let team = Team::new(2, 1, false);
        let mut items = [0; 8];
        let caught =
            catch_unwind(AssertUnwindSafe(|| team.for_each(&mut items, |chunk, _| assert_ne!(chunk, 5))));
        assert!(caught.is_err());
        let published = || team.shared.as_ref().map(|shared| shared.state.load(Ordering::SeqCst) >> 32);
        let before = published();
        team.for_each(&mut items, |_, item| *item = 1);
        assert_eq!(items, [1; 8]);
        assert_eq!(published(), before.map(|number| number + 1), "the task went to the helpers again");
    }

    #[test]
    fn equal_arguments_give_the_same_team() {
        let team = Team::shared(3, 1);
        assert!(Arc::ptr_eq(&team, &Team::shared(3, 1)));
        let crowded = Team::shared(3, 1_000_000);
        assert!(!Arc::ptr_eq(&team, &crowded));
        assert!(!crowded.shared.as_ref().is_some_and(|shared| shared.spins), "no core for every thread");
    }
}
