//! Ranks as threads of one process: connected by memory, or over a simulated network in virtual time.
//!
//! Programs cannot tell: they see the same [`Rank`]. Tests run strategies on it, and simulations any number of ranks.

use crate::beacon::Beacon;
use crate::hosts::Hosts;
use crate::rank::{Emit, PREPARATION, Parts, Rank};
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
    heard(
        Stage { seats: ranks.collect(), seed, step_deadline: Duration::from_secs(30), name: "mem" },
        program,
    )
}

/// Runs a program on every rank of a simulated world; the same arguments give the same answers and the same trace.
pub fn simulate<T: Send>(
    network: Network,
    mishaps: &[Mishap],
    step_deadline: Duration,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> (Vec<Ended<T>>, Trace) {
    let simulation = Simulation::new(network.clone(), mishaps);
    let ended = heard(stage(&simulation, &network, step_deadline), program);
    (ended, simulation.trace())
}

/// The same, with somebody who watches every rank while it runs.
pub fn simulate_watched<T: Send>(
    network: Network,
    step_deadline: Duration,
    watcher: &(dyn Fn(usize) -> Watcher + Sync),
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> (Vec<Result<T>>, Trace) {
    let simulation = Simulation::new(network.clone(), &[]);
    let ended = each(stage(&simulation, &network, step_deadline), watcher, program);
    (ended, simulation.trace())
}

/// Who watches a rank.
pub struct Watcher {
    /// Hears its events.
    pub emit: Emit,
    /// Sees what it does, and can ask it to stop.
    pub beacon: Arc<Beacon>,
}

fn stage(simulation: &Simulation, network: &Network, step_deadline: Duration) -> Stage {
    let seats = simulation.ranks().into_iter().map(|transport| {
        let clock: Arc<dyn Clock> = Arc::new(Virtual(simulation.clock(transport.rank())));
        (Box::new(transport) as Box<dyn Transport>, clock, Neighbours::new())
    });
    Stage { seats: seats.collect(), seed: network.seed, step_deadline, name: "sim" }
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

/// A world of threads before its program begins.
struct Stage {
    seats: Vec<Seat>,
    seed: u64,
    step_deadline: Duration,
    /// What carries its bytes.
    name: &'static str,
}

/// Keeps the events of every rank.
fn heard<T: Send>(stage: Stage, program: impl Fn(&mut Rank) -> Result<T> + Sync) -> Vec<Ended<T>> {
    let events: Vec<Arc<Mutex<Vec<Event>>>> = stage.seats.iter().map(|_| Arc::default()).collect();
    let watcher = |rank: usize| {
        let heard = Arc::clone(&events[rank]);
        let emit: Emit =
            Arc::new(move |event| heard.lock().unwrap_or_else(PoisonError::into_inner).push(event));
        Watcher { emit, beacon: Beacon::new() }
    };
    let results = each(stage, &watcher, program);
    let told = |events: &Mutex<Vec<Event>>| {
        std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner))
    };
    results.into_iter().zip(&events).map(|(result, events)| Ended { result, events: told(events) }).collect()
}

fn each<T: Send>(
    stage: Stage,
    watcher: &(dyn Fn(usize) -> Watcher + Sync),
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let Stage { seats, seed, step_deadline, name } = stage;
    let (world, program) = (seats.len(), &program);
    let one = move |(transport, clock, neighbours): Seat| {
        let Watcher { emit, beacon } = watcher(transport.rank());
        let mut rank = Rank::new(Parts {
            transport: transport.into(),
            clock,
            emit,
            beacon,
            hosts: Hosts::one("memory", world),
            neighbours,
            carrier: name,
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
        result
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = seats.into_iter().map(|seat| scope.spawn(move || one(seat))).collect();
        let panicked = |_| Err(Error::internal("a rank panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}
