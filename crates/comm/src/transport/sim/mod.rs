//! A simulated network: virtual time, links with latency and bandwidth, faults as data, everything from a seed.
//!
//! Every rank is a thread, but only one of them runs at a time: whoever waits (for bytes, for room, for a moment) gives
//! way to the rank whose wait ends next in virtual time, lower ranks first. So a run does not depend on the machine: the
//! same seed gives the same bytes, the same faults and the same [`Trace`], and an hour of waiting takes no time.
//!
//! Above it are the frames, checksums, deadlines and farewells of every other transport: they are what is tested here.
//!
//! ```text
//! [`network`]  what is simulated: links and ranks, as numbers      [`mishap`]  what goes wrong, and when
//! [`world`]    who runs: the only state of it all                  [`streams`] whose bytes are where
//! [`wire`]     a rank's ends of them                               [`trace`]   what happened
//! ```

mod mishap;
mod network;
mod streams;
mod trace;
mod wire;
mod world;

pub use super::link_fault::Forgery;
pub use mishap::{Kind, Mishap};
pub use network::{Link, Network};
pub use trace::{Entry, Happening, Trace};
pub use wire::{Seat, Sim, SimClock};
pub use world::Fate;

use std::sync::Arc;
use world::{Order, World};

/// A group of simulated ranks, one for each thread to run; and the handle to its time and trace.
pub struct Simulation {
    world: Arc<World>,
}

impl Simulation {
    /// A group in which rank 0 runs first. Every rank must be run, in a thread of its own.
    pub fn new(network: Network, mishaps: &[Mishap]) -> Simulation {
        Simulation { world: World::new(network, mishaps, Order::Strict) }
    }

    /// The same for ranks that come and go: beside the ranks, those that will join included, there is one more seat, the
    /// last, for whoever leads their group. It is rung a moment after every mishap and every end of a rank.
    pub fn watched(network: Network, mishaps: &[Mishap]) -> Simulation {
        Simulation { world: World::new(network, mishaps, Order::Watched) }
    }

    /// A group whose ranks come and go with threads that also wait for each other by other means. Correct, but a
    /// repeat may differ: for tests.
    #[doc(hidden)]
    pub fn unordered(network: Network) -> Simulation {
        Simulation { world: World::new(network, &[], Order::Loose) }
    }

    /// The transports of all ranks.
    pub fn ranks(&self) -> Vec<Sim> {
        let all: Vec<usize> = (0..self.world.size()).collect();
        all.iter().map(|rank| Seat::take(&self.world, *rank).connect(0, &all)).collect()
    }

    /// How many ranks there are at some time.
    pub fn size(&self) -> usize {
        self.world.size()
    }

    /// The place of a rank, to connect it as its group changes. To be taken once.
    pub fn seat(&self, rank: usize) -> Seat {
        Seat::take(&self.world, rank)
    }

    /// The time as a rank sees it.
    pub fn clock(&self, rank: usize) -> SimClock {
        SimClock::new(Arc::clone(&self.world), rank)
    }

    /// Puts bytes on the way from one rank to another as if they had been sent.
    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        self.world.inject(from, to, bytes);
    }

    /// What happened so far.
    pub fn trace(&self) -> Trace {
        self.world.trace()
    }
}
