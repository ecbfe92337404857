//! Faults, joins and leaves as data: a seed can draw them, and a test can name them.

use super::ForgedFrame;
use std::time::Duration;

/// A fault at a moment of virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedFault {
    pub at: Duration,
    pub kind: SimulatedFaultKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SimulatedFaultKind {
    /// The rank's process dies; its connections close.
    Kill { rank: usize },
    /// The rank is stopped for a while, its connections open.
    Stop { rank: usize, duration: Duration },
    /// The rank stops progressing in its next wait. Its process lives, and its heartbeats continue, until it is
    /// [killed](super::SimulatedEndpoint::kill).
    Livelock { rank: usize },
    /// The rank computes slower from now on, by this factor.
    Slow { rank: usize, factor: f64 },
    /// All bytes between the two ranks are silently lost from now on.
    Cut { one: usize, other: usize },
    /// All bytes from one rank to another are silently lost from now on. The other direction still works, but no new
    /// connection can be made over it.
    CutOneWay { from: usize, to: usize },
    /// Bytes that were never sent arrive at `to`, apparently from `from`.
    Garbage { from: usize, to: usize },
    /// `from` sends a well-formed but invalid frame.
    Forge { from: usize, to: usize, frame: ForgedFrame },
    /// The rank sends the coordinator a report that cannot be true.
    FalseReport { rank: usize },
    /// A new rank joins. Its number is beyond those of the initial ranks.
    Join { rank: usize },
    /// The rank is asked to leave in good order.
    Leave { rank: usize },
}

impl SimulatedFault {
    pub fn at(at: Duration, kind: SimulatedFaultKind) -> SimulatedFault {
        SimulatedFault { at, kind }
    }
}
