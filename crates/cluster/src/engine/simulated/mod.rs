//! Ranks on a simulated network that come and go: kills, stops, cuts, newcomers, all in virtual time and from a seed.
//!
//! Programs see the same [`Rank`] as everywhere, with a way into the next generation of their group. Who is lost and who
//! the next group is decides the [`Judgement`](crate::judgement::Judgement) that decides it for real processes.
//!
//! ```text
//! [`chair`]  leads the group      [`envoy`]  speaks for a rank      [`office`]  what is between them
//! ```

mod chair;
mod envoy;
mod office;

use super::threads::Ended;
use crate::judgement::Rules;
use crate::rank::{Emit, Parts, Rank};
use crate::regroup::Generation;
use crate::rendezvous::message::Control;
use chair::Chair;
use envoy::{Envoy, Killed};
use office::{Office, Said};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use thalweg_comm::transport::sim::{Kind as What, Mishap, Network, Simulation, Trace};
use thalweg_core::event::Event;
use thalweg_core::{Error, Kind, Result};

/// Runs a program on every rank of a simulated world that survives its losses, and on those that join it. The answers come
/// in the order of their numbers; the same arguments give the same answers and the same trace.
pub fn simulate<T: Send>(
    network: Network,
    mishaps: &[Mishap],
    rules: &Rules,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> (Vec<Ended<T>>, Trace) {
    let (seed, world) = (network.seed, network.world);
    let simulation = Simulation::watched(network, mishaps);
    let size = simulation.size();
    let joins = |number| mishaps.iter().any(|mishap| mishap.kind == What::Join { rank: number });
    let office = Office::new(size);
    let chair = Chair::new(simulation.seat(size), Arc::clone(&office), rules.clone(), world);
    let envoys: Vec<Envoy> = (0..size)
        .map(|number| Envoy {
            number,
            seat: simulation.seat(number),
            office: Arc::clone(&office),
            rules: rules.clone(),
            generation: Arc::default(),
        })
        .collect();
    let program = &program;
    let ended = std::thread::scope(|scope| {
        scope.spawn(move || chair.preside());
        let start = |envoy: Envoy| {
            let comes = envoy.number < world || joins(envoy.number);
            scope.spawn(move || if comes { live(envoy, world, seed, program) } else { never(envoy) })
        };
        let threads: Vec<_> = envoys.into_iter().map(start).collect();
        let panicked = |_| Ended { result: Err(Error::internal("a rank panicked")), events: Vec::new() };
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    (ended, simulation.trace())
}

/// A number that nobody has.
fn never<T>(envoy: Envoy) -> Ended<T> {
    let words = format!("rank {} never came", envoy.number);
    Ended { result: Err(Error::new(Kind::Rendezvous, words)), events: Vec::new() }
}

/// The life of one rank.
fn live<T>(envoy: Envoy, world: usize, seed: u64, program: impl Fn(&mut Rank) -> Result<T>) -> Ended<T> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let (heard, witness) = (Arc::clone(&told), envoy.clone());
    let emit = move |event: Event| heard.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    let beacon = Arc::clone(&envoy.office.beacons[envoy.number]);
    beacon.call_witness(Box::new(move |error, pulse, source| witness.testify(error, pulse, source)));
    let number = envoy.number;
    let life = catch_unwind(AssertUnwindSafe(|| {
        let mut delegate = envoy.clone();
        let first = delegate.arrive(number >= world)?;
        let mut rank = seated(delegate, first, Arc::new(emit), seed);
        let result = program(&mut rank);
        if result.is_ok() {
            rank.leave();
        }
        result
    }));
    let result = match life {
        Err(panic) if panic.is::<Killed>() => {
            Err(Error::new(Kind::RankFailed, format!("rank {number} was killed")))
        }
        ended => {
            let result = ended.unwrap_or_else(|_| Err(Error::internal(format!("rank {number} panicked"))));
            envoy.say(Said::Word(match &result {
                Ok(_) => Control::Goodbye,
                Err(error) => Control::Failed(Box::new(error.clone()), beacon.pulse()),
            }));
            envoy.say(Said::Closed);
            result
        }
    };
    // Nobody speaks for it any more: its place in the world is free.
    beacon.call_witness(Box::new(|_, _, _| {}));
    drop(envoy);
    let events = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
    Ended { result, events }
}

fn seated(envoy: Envoy, first: Generation, emit: Emit, seed: u64) -> Rank {
    let Generation { number, transport, neighbours, carrier, numbers, hosts, change } = first;
    Rank::new(Parts {
        transport: transport.into(),
        clock: Arc::new(envoy.clone()),
        emit,
        beacon: Arc::clone(&envoy.office.beacons[envoy.number]),
        hosts,
        neighbours,
        carrier,
        generation: number,
        numbers,
        change,
        step_deadline: envoy.rules.step_deadline,
        prepare_deadline: envoy.rules.prepare_deadline,
        delegate: Some(Box::new(envoy)),
        seed,
    })
}
