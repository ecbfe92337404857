//! The scenario of a seed: what the ranks do, and which faults are injected meanwhile.

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::time::Duration;
use thalweg_comm::collective::{Algorithm, AlgorithmEntry, Collective};
use thalweg_comm::transport::sim::{ForgedFrame, SimulatedFault, SimulatedFaultKind};

/// Deadline of an operation.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// What the ranks do, a few rounds in a row.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    AllReduce(Algorithm),
    /// Two all-reduces concurrently.
    Concurrent(Algorithm),
    /// Another collective, by any of its algorithms.
    Other(Collective, &'static AlgorithmEntry),
    Messages,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub world: usize,
    pub work: Work,
    /// Elements of a buffer.
    pub length: usize,
    /// In order of time, as fractions of a run without faults, between 0 and 1 s.
    pub faults: Vec<SimulatedFault>,
}

impl Scenario {
    pub fn of(seed: u64) -> Scenario {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let random = &mut TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let world = random.random_range(2..7);
        let algorithm = Algorithm::ALL[random.random_range(0..Algorithm::ALL.len())];
        let work = match random.random_range(0..10) {
            0..=4 => Work::AllReduce(algorithm),
            5..=6 => Work::Concurrent(algorithm),
            7..=8 => {
                let collective =
                    [Collective::AllToAll, Collective::Broadcast { root: 1 }, Collective::AllGather]
                        [random.random_range(0..3)];
                Work::Other(
                    collective,
                    &collective.algorithms()[random.random_range(0..collective.algorithms().len())],
                )
            }
            _ => Work::Messages,
        };
        let length = [60, 3000, 60_000][random.random_range(0..3)];
        let count = random.random_range(1..5);
        let mut faults: Vec<SimulatedFault> = (0..count).map(|_| draw(random, world)).collect();
        faults.sort_by_key(|fault| fault.at);
        Scenario { world, work, length, faults }
    }
}

fn draw(random: &mut TestRng, world: usize) -> SimulatedFault {
    let rank = random.random_range(0..world);
    let other = (rank + random.random_range(1..world)) % world;
    let milliseconds =
        |range: std::ops::Range<u64>, random: &mut TestRng| Duration::from_millis(random.random_range(range));
    let kind = match random.random_range(0..8) {
        0 => SimulatedFaultKind::Kill { rank },
        // Briefly, without any error; or longer than every deadline.
        1 => SimulatedFaultKind::Stop { rank, duration: milliseconds(1..50, random) },
        2 => SimulatedFaultKind::Stop { rank, duration: milliseconds(4000..60_000, random) },
        3 => SimulatedFaultKind::Cut { one: rank, other },
        4 => SimulatedFaultKind::CutOneWay { from: rank, to: other },
        5 => SimulatedFaultKind::Livelock { rank },
        6 => {
            let frame = ForgedFrame::ALL[random.random_range(0..ForgedFrame::ALL.len())];
            SimulatedFaultKind::Forge { from: rank, to: other, frame }
        }
        _ => SimulatedFaultKind::Garbage { from: rank, to: other },
    };
    SimulatedFault::at(Duration::from_secs_f64(random.random_range(0.0..1.0)), kind)
}

/// Whether a stop exceeds the deadline.
pub fn is_long(duration: Duration) -> bool {
    duration > DEADLINE
}
