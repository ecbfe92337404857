//! The barrier of the ranks of one host, in the words at the head of each rank's arena.

use crate::host::Segment;
use crate::linux::current_core;
use crate::protocol::{Counter, Phases};
use crate::transport::{Cause, Interest, Tag, Transport, TransportError, WaitState};
use crate::wait::is_oversubscribed;
use std::time::Duration;

/// Words that a rank publishes, all in one cache line: the phases it has ended, its current operation, and its core if
/// there are more ranks than cores.
const PHASES: usize = 0;
const OPERATION: usize = 8;
const COUNT: usize = 16;
const TENSOR: usize = 24;
const CORE: usize = 32;

/// Polls of the other ranks in a tight loop, a few microseconds.
const SPINS: usize = 100;

/// Yields of the core, with more ranks than cores, between two checks for deadlines, lost ranks and aborts: most barriers
/// end before the first check.
const YIELDS: usize = 4;

/// The wait of one operation; its barriers share one deadline.
pub(super) struct OperationWait<'a> {
    transport: &'a mut dyn Transport,
    deadline: Duration,
    /// Created when a barrier does not complete at once.
    wait_state: Option<WaitState>,
    /// The time waited until the last completed barrier: a rank that is missing afterwards has entered the operation and is
    /// slow, not silent.
    last_barrier: Option<Duration>,
}

impl<'a> OperationWait<'a> {
    pub(super) fn new(transport: &'a mut dyn Transport, deadline: Duration) -> OperationWait<'a> {
        OperationWait { transport, deadline, wait_state: None, last_barrier: None }
    }

    /// Waits until another poll makes sense.
    fn wait(&mut self, wanted: &[Interest]) -> Result<(), TransportError> {
        let wait_state =
            self.wait_state.get_or_insert_with(|| WaitState::new(self.transport.now(), self.deadline));
        let waited = self.transport.wait(wait_state, wanted, false);
        waited.map_err(|error| self.last_barrier.map_or(error.clone(), |after| error.slow_since(after)))
    }

    fn on_barrier_complete(&mut self) {
        self.transport.progress_counters().count_move();
        self.last_barrier = Some(self.wait_state.as_ref().map_or(Duration::ZERO, WaitState::waited));
    }
}

/// One rank's side of the barrier.
pub(super) struct Barrier {
    rank: usize,
    /// By rank: whether it is still missing.
    wanted: Vec<Interest>,
    /// Whether there are more ranks than cores.
    crowded: bool,
}

impl Barrier {
    pub(super) fn new(rank: usize, world: usize) -> Barrier {
        Barrier { rank, wanted: vec![Interest::default(); world], crowded: is_oversubscribed(world) }
    }

    /// The first barrier of an operation, which also checks that all ranks are in the same one.
    pub(super) fn wait_matching(
        &mut self,
        arenas: &[Segment],
        tag: Tag,
        count: usize,
        wait: &mut OperationWait<'_>,
    ) -> Result<(), TransportError> {
        let mine = &arenas[self.rank];
        mine.counter(OPERATION).release(tag.operation);
        mine.counter(COUNT).release(count as u64);
        mine.counter(TENSOR).release(u64::from(tag.tensor));
        self.wait(arenas, wait)?;
        check_match(arenas, tag, count)
    }

    /// Ends a phase, and waits until all ranks have.
    pub(super) fn wait(
        &mut self,
        arenas: &[Segment],
        wait: &mut OperationWait<'_>,
    ) -> Result<(), TransportError> {
        let mine = &arenas[self.rank];
        let core = if self.crowded { current_core() } else { None };
        mine.counter(CORE).release(core.unwrap_or(u64::MAX));
        let mut arrivals =
            Arrivals { arenas, phase: Phases { mine: mine.counter(PHASES) }.end(), missing: 0 };
        wait.transport.wake_peers();
        loop {
            for _ in 0..if self.crowded { YIELDS } else { 1 } {
                // A rank that needs this core cannot arrive while this rank spins on it.
                let spins = if core.is_some_and(|core| arrivals.misses_rank_on(core)) { 1 } else { SPINS };
                for _ in 0..spins {
                    if arrivals.is_complete() {
                        wait.on_barrier_complete();
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
                if self.crowded {
                    std::thread::yield_now();
                }
            }
            for (peer, wanted) in self.wanted.iter_mut().enumerate() {
                wanted.read = !arrivals.has_arrived(peer);
            }
            wait.wait(&self.wanted)?;
        }
    }
}

/// Which ranks have arrived at a barrier.
struct Arrivals<'a> {
    arenas: &'a [Segment],
    /// The phase that the barrier ends.
    phase: u64,
    /// All ranks before this one have arrived.
    missing: usize,
}

impl Arrivals<'_> {
    fn has_arrived(&self, rank: usize) -> bool {
        Phases::has_ended(self.arenas[rank].counter(PHASES), self.phase)
    }

    fn is_complete(&mut self) -> bool {
        while self.missing < self.arenas.len() && self.has_arrived(self.missing) {
            self.missing += 1;
        }
        self.missing == self.arenas.len()
    }

    /// Whether a missing rank was on that core at its last barrier.
    fn misses_rank_on(&self, core: u64) -> bool {
        (self.missing..self.arenas.len())
            .any(|rank| self.arenas[rank].counter(CORE).value() == core && !self.has_arrived(rank))
    }
}

/// Checks that all ranks are in the same operation.
fn check_match(arenas: &[Segment], tag: Tag, count: usize) -> Result<(), TransportError> {
    for (peer, arena) in arenas.iter().enumerate() {
        let (operation, length) = (arena.counter(OPERATION).value(), arena.counter(COUNT).value());
        let tensor = arena.counter(TENSOR).value();
        if (operation, tensor, length) != (tag.operation, u64::from(tag.tensor), count as u64) {
            let what = format!(
                "expected {count} elements in operation {}, tensor {:08x}; got {length} in operation {operation}, tensor {tensor:08x}",
                tag.operation, tag.tensor
            );
            let same = (operation, tensor) == (tag.operation, u64::from(tag.tensor));
            let cause = if same { Cause::Protocol(what) } else { Cause::OtherOperation(what) };
            return Err(TransportError::new(peer, cause));
        }
    }
    Ok(())
}
