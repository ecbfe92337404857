//! Ranks as threads of one process, connected in memory.
//!
//! Programs see the same [`Rank`] as in worker processes. Tests run strategies this way.

use crate::fault_injection::OwnProcess;
use crate::hosts::Hosts;
use crate::meeting_policy::{MeetingPolicy, WorkReport};
use crate::rank::{Emit, PREPARATION, Rank, RankParts};
use crate::rank_status::RankStatus;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use thalweg_comm::host::{self, LocalPeers};
use thalweg_comm::transport::{Transport, mesh};
use thalweg_core::clock::{Clock, SystemClock};
use thalweg_core::event::Event;
use thalweg_core::{Error, Result};

const STEP_DEADLINE: Duration = Duration::from_secs(30);

/// The result of a rank's program, and its events in order.
#[derive(Clone, Debug, PartialEq)]
pub struct RankOutcome<T> {
    pub result: Result<T>,
    pub events: Vec<Event>,
}

/// Runs a program on every rank of a world of threads; results are in rank order.
pub fn run<T: Send>(
    world: usize,
    seed: u64,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> Vec<RankOutcome<T>> {
    // Threads share memory like processes of one host; where the system does not allow it, they run without.
    let mut local_peers = host::connect_threads(world).unwrap_or_default().into_iter();
    let ranks = mesh(world).into_iter().map(|transport| {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        (Box::new(transport) as Box<dyn Transport>, clock, local_peers.next().unwrap_or_default())
    });
    let collected = CollectedEvents::default();
    let observer = |rank| collected.observer(rank);
    let results = run_threads(ranks.collect(), seed, STEP_DEADLINE, &observer, program);
    collected.outcomes(results)
}

/// The caller's view of a running rank.
pub struct RankObserver {
    pub emit: Emit,
    /// Shows the rank's progress, and takes requests to stop.
    pub rank_status: Arc<RankStatus>,
}

/// A rank's transport, clock, and the peers it shares memory with.
type ThreadRank = (Box<dyn Transport>, Arc<dyn Clock>, LocalPeers);

/// The events of all ranks, kept for the caller.
#[derive(Default)]
pub(super) struct CollectedEvents(Mutex<BTreeMap<usize, Arc<Mutex<Vec<Event>>>>>);

impl CollectedEvents {
    pub(super) fn observer(&self, rank: usize) -> RankObserver {
        let events = Arc::clone(lock(&self.0).entry(rank).or_default());
        RankObserver {
            emit: Arc::new(move |event| lock(&events).push(event)),
            rank_status: RankStatus::new(),
        }
    }

    /// The results of all ranks, in their order, with their events.
    pub(super) fn outcomes<T>(self, results: Vec<Result<T>>) -> Vec<RankOutcome<T>> {
        let mut collected = lock(&self.0);
        let mut events =
            |rank| collected.remove(&rank).map_or(Vec::new(), |all| std::mem::take(&mut *lock(&all)));
        let outcome = |(rank, result)| RankOutcome { result, events: events(rank) };
        results.into_iter().enumerate().map(outcome).collect()
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls meetings of ranks that have no coordinator.
#[derive(Default)]
struct MeetingCalls {
    policy: MeetingPolicy,
    rank_statuses: Vec<Weak<RankStatus>>,
}

impl MeetingCalls {
    /// The reports of this rank arrive here.
    fn follow(calls: &Arc<Mutex<MeetingCalls>>, rank: usize, rank_status: &Arc<RankStatus>) {
        lock(calls).rank_statuses.push(Arc::downgrade(rank_status));
        let calls = Arc::clone(calls);
        rank_status.set_work_handler(Box::new(move |report| lock(&calls).on_report(rank, report)));
    }

    fn on_report(&mut self, rank: usize, report: WorkReport) {
        let called = self.policy.on_report(rank, report);
        for rank_status in self.rank_statuses.iter().filter_map(Weak::upgrade) {
            rank_status.set_group_rows(self.policy.rows());
            called.into_iter().for_each(|number| rank_status.call_meeting(number));
        }
    }
}

fn run_threads<T: Send>(
    ranks: Vec<ThreadRank>,
    seed: u64,
    step_deadline: Duration,
    observer: &(dyn Fn(usize) -> RankObserver + Sync),
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let (world, program) = (ranks.len(), &program);
    let calls = Arc::default();
    let calls = &calls;
    let run_rank = move |(transport, clock, local_peers): ThreadRank| {
        let RankObserver { emit, rank_status } = observer(transport.rank());
        MeetingCalls::follow(calls, transport.rank(), &rank_status);
        let mut rank = Rank::new(RankParts {
            transport: transport.into(),
            clock,
            emit,
            rank_status,
            hosts: Hosts::one("memory", world),
            local_peers,
            carrier: "mem",
            generation: 1,
            member_ids: Vec::new(),
            change: Default::default(),
            process: Arc::new(OwnProcess),
            membership_client: None,
            step_deadline,
            prepare_deadline: PREPARATION,
            seed,
        });
        let result = program(&mut rank);
        if result.is_ok() {
            rank.leave();
        }
        result
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run_rank(rank))).collect();
        let panicked = |_| Err(Error::internal("a rank panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}

/// The same threads on a simulated network: what a rank finds out from its links alone, in virtual time.
#[cfg(test)]
pub(crate) mod simulated_links {
    use super::*;
    use thalweg_comm::transport::sim::{Network, SimClock, SimulatedFault, Simulation};

    pub(crate) fn run<T: Send>(
        network: Network,
        faults: &[SimulatedFault],
        step_deadline: Duration,
        program: impl Fn(&mut Rank) -> Result<T> + Sync,
    ) -> Vec<Result<T>> {
        let seed = network.seed;
        let simulation = Simulation::new(network, faults);
        let ranks = simulation.ranks().into_iter().map(|transport| {
            let clock: Arc<dyn Clock> = Arc::new(VirtualClock(simulation.clock(transport.rank())));
            (Box::new(transport) as Box<dyn Transport>, clock, LocalPeers::new())
        });
        let collected = CollectedEvents::default();
        run_threads(ranks.collect(), seed, step_deadline, &|rank| collected.observer(rank), program)
    }

    struct VirtualClock(SimClock);

    impl Clock for VirtualClock {
        fn now(&self) -> Duration {
            self.0.now()
        }

        fn sleep(&self, duration: Duration) {
            self.0.sleep(duration);
        }

        fn is_virtual(&self) -> bool {
            true
        }
    }
}
