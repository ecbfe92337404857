//! A simulated network: virtual time, links with latency and bandwidth, injected faults, everything from a seed.
//!
//! Every rank is a thread, but only one runs at a time: a rank that waits (for bytes, for room, for a moment) yields
//! to the rank whose wait ends next in virtual time, lower ranks first. So a run does not depend on the machine: the
//! same seed gives the same bytes, the same faults and the same [`Trace`], and an hour of waiting takes no time.
//!
//! The layers above, with their frames, checksums, deadlines and close frames, are those of every other transport:
//! they are what is tested here.
//!
//! ```text
//! [`network`]    latency, bandwidth, speed                  [`simulated_fault`]  faults and their times
//! [`simulator`]  runs ranks; holds all state                [`streams`]         bytes in transit
//! [`schedule`]   which rank runs next                       [`endpoint`]        a rank's streams and clock
//! [`trace`]      events of a run                           [`reserve`]         ranks that join when they are told to
//! ```

mod endpoint;
mod network;
mod reserve;
mod schedule;
mod simulated_fault;
mod simulator;
mod streams;
mod trace;
mod wakeup;

pub use super::link_fault::ForgedFrame;
pub use endpoint::{Sim, SimClock, SimulatedEndpoint};
pub use network::{LinkParameters, Network};
pub use reserve::SimulationControl;
pub use simulated_fault::{SimulatedFault, SimulatedFaultKind};
pub use simulator::SimulatedRankState;
pub use trace::{Trace, TraceEntry, TraceEvent};

use simulator::{Scheduling, Simulator};
use std::sync::Arc;

/// A group of simulated ranks, each to be run in a thread of its own.
pub struct Simulation {
    simulator: Arc<Simulator>,
}

impl Simulation {
    /// A group in which rank 0 runs first. Every rank must be run.
    pub fn new(network: Network, faults: &[SimulatedFault]) -> Simulation {
        Simulation { simulator: Simulator::new(network, faults, 0, Scheduling::Deterministic) }
    }

    /// A group whose members change, with one more endpoint behind all ranks (those that will join included) for the
    /// coordinator. It is woken one latency after every fault and every end of a rank. `reserved` more ranks join when
    /// [`SimulationControl`] tells them to.
    pub fn with_coordinator(network: Network, faults: &[SimulatedFault], reserved: usize) -> Simulation {
        Simulation { simulator: Simulator::new(network, faults, reserved, Scheduling::WithCoordinator) }
    }

    /// A group whose threads may start late, never, or wait for each other by other means. Correct, but not
    /// reproducible: for tests.
    #[doc(hidden)]
    pub fn unordered(network: Network) -> Simulation {
        Simulation { simulator: Simulator::new(network, &[], 0, Scheduling::Unordered) }
    }

    /// The transports of all ranks.
    pub fn ranks(&self) -> Vec<Sim> {
        let all: Vec<usize> = (0..self.simulator.size()).collect();
        all.iter().map(|rank| SimulatedEndpoint::new(&self.simulator, *rank).connect(0, &all)).collect()
    }

    /// Number of ranks, those that will join included.
    pub fn size(&self) -> usize {
        self.simulator.size()
    }

    /// The endpoint of a rank, by which it connects in each generation. To be called once per rank.
    pub fn endpoint(&self, rank: usize) -> SimulatedEndpoint {
        SimulatedEndpoint::new(&self.simulator, rank)
    }

    /// Acts on the ranks from outside while they run.
    pub fn control(&self) -> SimulationControl {
        SimulationControl::new(&self.simulator)
    }

    pub fn clock(&self, rank: usize) -> SimClock {
        SimClock::new(Arc::clone(&self.simulator), rank)
    }

    /// Inserts bytes into the stream from one rank to another.
    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        self.simulator.inject(from, to, bytes);
    }

    /// The events so far, without those of an earlier call.
    pub fn trace(&self) -> Trace {
        self.simulator.trace()
    }
}
