//! Ranks as threads of one process, connected in memory.
//!
//! Programs see the same [`Rank`] as in worker processes. Tests run strategies this way.

use crate::hosts::Hosts;
use crate::rank::{Emit, PREPARATION, Rank, RankParts};
use crate::rank_status::RankStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_comm::host::{self, LocalPeers};
use thalweg_comm::transport::{Transport, mesh};
use thalweg_core::clock::{Clock, SystemClock};
use thalweg_core::event::Event;
use thalweg_core::{Error, Result};

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
    run_collecting_events(
        ThreadWorld { ranks: ranks.collect(), seed, step_deadline: Duration::from_secs(30), carrier: "mem" },
        program,
    )
}

/// The caller's view of a running rank.
pub struct RankObserver {
    pub emit: Emit,
    /// Shows the rank's progress, and takes requests to stop.
    pub rank_status: Arc<RankStatus>,
}

/// A rank's transport, clock, and the peers it shares memory with.
pub(super) type ThreadRank = (Box<dyn Transport>, Arc<dyn Clock>, LocalPeers);

/// A world of threads before its program starts.
pub(super) struct ThreadWorld {
    pub(super) ranks: Vec<ThreadRank>,
    pub(super) seed: u64,
    pub(super) step_deadline: Duration,
    /// Transport named in the report.
    pub(super) carrier: &'static str,
}

pub(super) fn run_collecting_events<T: Send>(
    world: ThreadWorld,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> Vec<RankOutcome<T>> {
    let events: Vec<Arc<Mutex<Vec<Event>>>> = world.ranks.iter().map(|_| Arc::default()).collect();
    let observer = |rank: usize| {
        let events = Arc::clone(&events[rank]);
        let emit: Emit =
            Arc::new(move |event| events.lock().unwrap_or_else(PoisonError::into_inner).push(event));
        RankObserver { emit, rank_status: RankStatus::new() }
    };
    let results = run_threads(world, &observer, program);
    let take = |events: &Mutex<Vec<Event>>| {
        std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner))
    };
    let outcome =
        |(result, events): (Result<T>, &Arc<Mutex<Vec<Event>>>)| RankOutcome { result, events: take(events) };
    results.into_iter().zip(&events).map(outcome).collect()
}

pub(super) fn run_threads<T: Send>(
    world: ThreadWorld,
    observer: &(dyn Fn(usize) -> RankObserver + Sync),
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let ThreadWorld { ranks, seed, step_deadline, carrier } = world;
    let (world, program) = (ranks.len(), &program);
    let run_rank = move |(transport, clock, local_peers): ThreadRank| {
        let RankObserver { emit, rank_status } = observer(transport.rank());
        let mut rank = Rank::new(RankParts {
            transport: transport.into(),
            clock,
            emit,
            rank_status,
            hosts: Hosts::one("memory", world),
            local_peers,
            carrier,
            generation: 1,
            member_ids: Vec::new(),
            change: Default::default(),
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
