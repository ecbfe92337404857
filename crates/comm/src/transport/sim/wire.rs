//! A rank's streams into the simulated world, and its clock there.

use super::world::World;
use crate::transport::stream::{Link, Streamed, Wires};
use crate::transport::vigil::Interest;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// A transport of a simulated rank.
pub type Sim = Streamed<SimWires>;

/// The streams of one rank.
pub struct SimWires {
    world: Arc<World>,
    rank: usize,
    links: Vec<Option<SimLink>>,
}

/// The stream to one other rank.
pub struct SimLink {
    world: Arc<World>,
    rank: usize,
    peer: usize,
}

pub(super) fn connect(world: &Arc<World>, rank: usize) -> Sim {
    let link = |peer: usize| (peer != rank).then(|| SimLink { world: Arc::clone(world), rank, peer });
    let links = (0..world.size()).map(link).collect();
    Streamed::over(rank, SimWires { world: Arc::clone(world), rank, links })
}

impl Read for SimLink {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.world.read(self.peer, self.rank, buffer)
    }
}

impl Write for SimLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.world.write(self.rank, self.peer, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for SimLink {
    fn last_words(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.world.unread(self.peer, self.rank))
    }

    fn is_drained(&mut self) -> bool {
        self.world.is_drained(self.rank, self.peer)
    }

    fn finish(&mut self) {
        self.world.close(self.rank, self.peer);
    }
}

impl Wires for SimWires {
    type Link = SimLink;

    fn links(&mut self) -> &mut [Option<SimLink>] {
        &mut self.links
    }

    fn mark(&mut self) {
        self.world.mark(self.rank);
    }

    fn wait(
        &mut self,
        _interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        self.world.wait(self.rank, timeout);
        let gone = |peer: usize| self.world.has_hung_up(peer, self.rank);
        hung_up.extend((0..watched.len()).filter(|&peer| watched[peer] && gone(peer)));
        Ok(())
    }

    fn now(&self) -> Duration {
        self.world.now(self.rank)
    }

    fn pause(&self, duration: Duration) {
        self.world.sleep(self.rank, duration);
    }
}

impl Drop for SimWires {
    fn drop(&mut self) {
        self.world.leave(self.rank);
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
