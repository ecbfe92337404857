//! A simulated group without membership changes: any number of ranks as threads on a simulated network, in virtual
//! time. The loss of a rank ends the run.

use crate::engine::threads::{RankObserver, RankOutcome, ThreadWorld, run_collecting_events, run_threads};
use crate::rank::Rank;
use std::sync::Arc;
use std::time::Duration;
use thalweg_comm::host::LocalPeers;
use thalweg_comm::transport::Transport;
use thalweg_comm::transport::sim::{Network, SimClock, SimulatedFault, Simulation, Trace};
use thalweg_core::Result;
use thalweg_core::clock::Clock;

/// Runs a program on every rank of a simulated network; the same arguments give the same results and the same trace.
pub fn simulate<T: Send>(
    network: Network,
    faults: &[SimulatedFault],
    step_deadline: Duration,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> (Vec<RankOutcome<T>>, Trace) {
    let simulation = Simulation::new(network.clone(), faults);
    let outcomes = run_collecting_events(thread_world(&simulation, &network, step_deadline), program);
    (outcomes, simulation.trace())
}

/// The same without faults, with an observer of each running rank.
pub fn simulate_observed<T: Send>(
    network: Network,
    step_deadline: Duration,
    observer: &(dyn Fn(usize) -> RankObserver + Sync),
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> (Vec<Result<T>>, Trace) {
    let simulation = Simulation::new(network.clone(), &[]);
    let results = run_threads(thread_world(&simulation, &network, step_deadline), observer, program);
    (results, simulation.trace())
}

fn thread_world(simulation: &Simulation, network: &Network, step_deadline: Duration) -> ThreadWorld {
    let ranks = simulation.ranks().into_iter().map(|transport| {
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock(simulation.clock(transport.rank())));
        (Box::new(transport) as Box<dyn Transport>, clock, LocalPeers::new())
    });
    ThreadWorld { ranks: ranks.collect(), seed: network.seed, step_deadline, carrier: "sim" }
}

/// The clock of a simulated rank.
struct VirtualClock(SimClock);

impl Clock for VirtualClock {
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
