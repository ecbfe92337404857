//! Ranks as threads of one process: connected by memory, or over a simulated network in virtual time.
//!
//! Programs cannot tell: they see the same [`Rank`]. Tests run strategies on it, and simulations any number of ranks.

use crate::beacon::Beacon;
use crate::rank::{PREPARATION, Parts, Rank};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_comm::host::{self, Neighbours};
use thalweg_comm::transport::sim::{Mishap, Network, SimClock, Simulation, Trace};
use thalweg_comm::transport::{Transport, mesh};
use thalweg_core::clock::{Clock, SystemClock};
use thalweg_core::event::Event;
use thalweg_core::{Error, Result};

/// What a rank's program returned, and the events it told.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended<T> {
    /// The program's answer.
    pub result: Result<T>,
    /// Its events, in order.
    pub events: Vec<Event>,
}

/// Runs a program on every rank of a world of threads; the answers come in the order of ranks.
pub fn run<T: Send>(
    world: usize,
    seed: u64,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> Vec<Ended<T>> {
    // Threads share memory as processes of one host do; where the system does not allow it, they do without.
    let mut neighbours = host::threads(world).unwrap_or_default().into_iter();
    let ranks = mesh(world).into_iter().map(|transport| {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        (Box::new(transport) as Box<dyn Transport>, clock, neighbours.next().unwrap_or_default())
    });
    each(ranks.collect(), seed, Duration::from_secs(30), program)
}

/// Runs a program on every rank of a simulated world; the same arguments give the same answers and the same trace.
pub fn simulate<T: Send>(
    network: Network,
    mishaps: &[Mishap],
    step_deadline: Duration,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> (Vec<Ended<T>>, Trace) {
    let seed = network.seed;
    let simulation = Simulation::new(network, mishaps);
    let ranks = simulation.ranks().into_iter().map(|transport| {
        let clock: Arc<dyn Clock> = Arc::new(Virtual(simulation.clock(transport.rank())));
        (Box::new(transport) as Box<dyn Transport>, clock, Neighbours::new())
    });
    let ended = each(ranks.collect(), seed, step_deadline, program);
    (ended, simulation.trace())
}

/// The clock of a simulated rank.
struct Virtual(SimClock);

impl Clock for Virtual {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration);
    }

    fn charge(&self, operations: u64) {
        self.0.charge(operations);
    }

    fn is_virtual(&self) -> bool {
        true
    }
}

/// What a rank needs to take part: its connections, its time, and whom it shares memory with.
type Seat = (Box<dyn Transport>, Arc<dyn Clock>, Neighbours);

fn each<T: Send>(
    ranks: Vec<Seat>,
    seed: u64,
    step_deadline: Duration,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> Vec<Ended<T>> {
    let (world, program) = (ranks.len(), &program);
    let one = move |transport, clock, neighbours| {
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&events);
        let mut rank = Rank::new(Parts {
            transport,
            clock,
            emit: Arc::new(move |event| heard.lock().unwrap_or_else(PoisonError::into_inner).push(event)),
            beacon: Beacon::new(),
            hosts: vec!["memory".into(); world],
            neighbours,
            carrier: "mem",
            generation: 1,
            numbers: Vec::new(),
            change: Default::default(),
            delegate: None,
            step_deadline,
            prepare_deadline: PREPARATION,
            seed,
        });
        let result = program(&mut rank);
        if result.is_ok() {
            rank.leave();
        }
        drop(rank);
        let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
        Ended { result, events }
    };
    std::thread::scope(|scope| {
        let start = |(transport, clock, neighbours)| scope.spawn(move || one(transport, clock, neighbours));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        let panicked = |_| Ended { result: Err(Error::internal("a rank panicked")), events: Vec::new() };
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}
