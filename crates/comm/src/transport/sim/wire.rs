//! A rank's streams into the simulated world, and its clock there.

use super::Network;
use super::streams::Way;
use super::world::{Fate, World};
use crate::transport::links::{Link, Wires};
use crate::transport::stream::Streamed;
use crate::transport::vigil::Interest;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// A transport of a simulated rank.
pub type Sim = Streamed<SimWires>;

/// The streams of one rank in one generation of its group.
pub struct SimWires {
    seat: Seat,
    generation: u32,
    /// By place in the group.
    links: Vec<Option<SimLink>>,
    numbers: Vec<usize>,
}

/// The stream to one other rank.
pub struct SimLink {
    world: Arc<World>,
    /// To the other; what comes from it goes the other way.
    way: Way,
}

/// A place in the simulated world. When the last handle to it is gone, so is the rank.
#[derive(Clone)]
pub struct Seat(Arc<Presence>);

struct Presence {
    world: Arc<World>,
    rank: usize,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.world.leave(self.rank);
    }
}

impl Seat {
    pub(super) fn take(world: &Arc<World>, rank: usize) -> Seat {
        Seat(Arc::new(Presence { world: Arc::clone(world), rank }))
    }

    /// Fresh streams among these ranks, in the order of their places; the own rank is one of them.
    pub fn connect(&self, generation: u32, numbers: &[usize]) -> Sim {
        let Presence { world, rank } = &*self.0;
        world.lay(generation);
        let link = |&to: &usize| {
            let way = Way { generation, from: *rank, to };
            (to != *rank).then(|| SimLink { world: Arc::clone(world), way })
        };
        let links = numbers.iter().map(link).collect();
        let place = numbers.iter().position(|number| number == rank).unwrap_or(0);
        let wires = SimWires { seat: self.clone(), generation, links, numbers: numbers.to_vec() };
        Streamed::over(place, wires)
    }

    /// The time as this rank sees it.
    pub fn clock(&self) -> SimClock {
        SimClock::new(Arc::clone(&self.0.world), self.0.rank)
    }

    /// What happens from here on ends the next [`Seat::wait`].
    pub fn mark(&self) {
        self.0.world.mark(self.0.rank);
    }

    /// Gives way until somebody rings or something happens to a stream, or for so long.
    pub fn wait(&self, timeout: Duration) {
        self.0.world.wait(self.0.rank, timeout);
    }

    /// Ends the wait of another at that moment.
    pub fn ring(&self, rank: usize, at: Duration) {
        self.0.world.ring(rank, at);
    }

    /// What has become of a rank.
    pub fn fate(&self, rank: usize) -> Fate {
        self.0.world.fate(rank)
    }

    /// Kills another rank, as its launcher would.
    pub fn kill(&self, rank: usize) {
        self.0.world.kill(rank);
    }

    /// Whether no connection between these two can be made.
    pub fn are_cut_off(&self, one: usize, other: usize) -> bool {
        self.0.world.is_cut(one, other)
    }

    /// Whether no connection to another can be made.
    pub fn is_cut_off(&self, rank: usize) -> bool {
        self.0.world.is_cut(self.0.rank, rank)
    }

    /// What is simulated.
    pub fn network(&self) -> &Network {
        self.0.world.network()
    }
}

impl Read for SimLink {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.world.read(self.way.back(), buffer)
    }
}

impl Write for SimLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.world.write(self.way, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for SimLink {
    fn last_words(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.world.unread(self.way.back()))
    }

    fn is_drained(&mut self) -> bool {
        self.world.is_drained(self.way)
    }

    fn finish(&mut self) {
        self.world.close(self.way);
    }
}

impl Wires for SimWires {
    type Link = SimLink;

    fn links(&mut self) -> &mut [Option<SimLink>] {
        &mut self.links
    }

    fn mark(&mut self) {
        self.seat.mark();
    }

    fn wait(
        &mut self,
        _interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        self.seat.wait(timeout);
        let Presence { world, rank } = &*self.seat.0;
        let way = |place: usize| Way { generation: self.generation, from: self.numbers[place], to: *rank };
        let gone = |place: usize| world.has_hung_up(way(place));
        hung_up.extend((0..watched.len()).filter(|&peer| watched[peer] && gone(peer)));
        Ok(())
    }

    fn now(&self) -> Duration {
        self.seat.0.world.now(self.seat.0.rank)
    }

    fn pause(&self, duration: Duration) {
        self.seat.0.world.sleep(self.seat.0.rank, duration);
    }
}

impl Drop for SimWires {
    fn drop(&mut self) {
        self.seat.0.world.disconnect(self.seat.0.rank, self.generation);
    }
}

/// The time of one simulated rank.
#[derive(Clone)]
pub struct SimClock {
    world: Arc<World>,
    rank: usize,
}

impl SimClock {
    pub(super) fn new(world: Arc<World>, rank: usize) -> SimClock {
        SimClock { world, rank }
    }

    /// Virtual time since the start.
    pub fn now(&self) -> Duration {
        self.world.now(self.rank)
    }

    /// Lets virtual time pass.
    pub fn sleep(&self, duration: Duration) {
        self.world.sleep(self.rank, duration);
    }

    /// Lets the time pass that so many floating-point operations take this rank.
    pub fn charge(&self, operations: u64) {
        self.world.charge(self.rank, operations);
    }
}
