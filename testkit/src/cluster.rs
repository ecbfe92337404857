//! A cluster inside one process: every rank a thread, connected by memory, with the same [`Rank`] as real ones.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_cluster::Beacon;
use thalweg_cluster::rank::{Parts, Rank};
use thalweg_comm::transport::mesh;
use thalweg_core::clock::SystemClock;
use thalweg_core::event::Event;
use thalweg_core::{Error, Result};

/// What a rank's program returned, and the events it told.
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
    std::thread::scope(|scope| {
        let threads: Vec<_> = mesh(world)
            .into_iter()
            .map(|transport| {
                let program = &program;
                scope.spawn(move || {
                    let events = Arc::new(Mutex::new(Vec::new()));
                    let heard = Arc::clone(&events);
                    let mut rank = Rank::new(Parts {
                        transport: Box::new(transport),
                        clock: Arc::new(SystemClock::default()),
                        emit: Arc::new(move |event| {
                            heard.lock().unwrap_or_else(PoisonError::into_inner).push(event)
                        }),
                        beacon: Beacon::new(),
                        hosts: vec!["memory".into(); world],
                        generation: 1,
                        step_deadline: Duration::from_secs(30),
                        seed,
                    });
                    let result = program(&mut rank);
                    if result.is_ok() {
                        rank.leave();
                    }
                    drop(rank);
                    let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
                    Ended { result, events }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| Ended {
                    result: Err(Error::internal("a rank panicked")),
                    events: Vec::new(),
                })
            })
            .collect()
    })
}
