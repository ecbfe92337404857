//! Ranks in reserve: they join when they are told to, not at a moment that was planned.

use super::SimulatedFaultKind;
use super::schedule::RunState;
use super::simulator::Simulator;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Acts on the ranks of a simulation from outside, at the moment at which they are. Used by the thread of the rank that
/// runs, it leaves the simulation reproducible.
#[derive(Clone)]
pub struct SimulationControl {
    simulator: Arc<Simulator>,
}

impl SimulationControl {
    pub(super) fn new(simulator: &Arc<Simulator>) -> SimulationControl {
        SimulationControl { simulator: Arc::clone(simulator) }
    }

    pub fn now(&self) -> Duration {
        self.simulator.lock().now
    }

    /// Tells the next rank in reserve to join, and returns it. If it is unreachable, no other rank can connect to it.
    pub fn start_rank(&self, is_unreachable: bool) -> Option<usize> {
        let rank = self.simulator.lock().schedule.first(RunState::Reserved)?;
        for other in (0..rank).filter(|_| is_unreachable) {
            self.simulator.inject_now(SimulatedFaultKind::Cut { one: rank, other });
        }
        self.simulator.inject_now(SimulatedFaultKind::Join { rank });
        Some(rank)
    }
}

impl Simulator {
    /// Blocks until a rank in reserve is told to join; false if the simulation ends before.
    pub fn await_join(&self, rank: usize) -> bool {
        let mut state = self.lock();
        while state.schedule.state(rank) == RunState::Reserved {
            state = self.scheduled[rank].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.schedule.state(rank) != RunState::Ended
    }
}
