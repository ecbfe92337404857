//! What a seed stands for: who does what, and what goes wrong meanwhile.

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::time::Duration;
use thalweg_comm::collective::{Algorithm, Goal, Way};
use thalweg_comm::transport::sim::{Forgery, Kind, Mishap};

/// How long an operation may take.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// What the ranks do, a few times in a row.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    AllReduce(Algorithm),
    /// Two at once.
    InFlight(Algorithm),
    /// Another goal, by any way to it.
    Other(Goal, &'static Way),
    Letters,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Scene {
    pub world: usize,
    pub work: Work,
    /// Elements of a buffer.
    pub length: usize,
    /// In order; their moments are shares of an undisturbed run, between 0 and 1 s.
    pub mishaps: Vec<Mishap>,
}

impl Scene {
    pub fn of(seed: u64) -> Scene {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let random = &mut TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let world = random.random_range(2..7);
        let algorithm = Algorithm::ALL[random.random_range(0..Algorithm::ALL.len())];
        let work = match random.random_range(0..10) {
            0..=4 => Work::AllReduce(algorithm),
            5..=6 => Work::InFlight(algorithm),
            7..=8 => {
                let goal =
                    [Goal::AllToAll, Goal::Broadcast { root: 1 }, Goal::AllGather][random.random_range(0..3)];
                Work::Other(goal, &goal.ways()[random.random_range(0..goal.ways().len())])
            }
            _ => Work::Letters,
        };
        let length = [60, 3000, 60_000][random.random_range(0..3)];
        let count = random.random_range(1..5);
        let mut mishaps: Vec<Mishap> = (0..count).map(|_| draw(random, world)).collect();
        mishaps.sort_by_key(|mishap| mishap.at);
        Scene { world, work, length, mishaps }
    }
}

fn draw(random: &mut TestRng, world: usize) -> Mishap {
    let rank = random.random_range(0..world);
    let other = (rank + random.random_range(1..world)) % world;
    let milliseconds =
        |range: std::ops::Range<u64>, random: &mut TestRng| Duration::from_millis(random.random_range(range));
    let kind = match random.random_range(0..8) {
        0 => Kind::Kill { rank },
        // Briefly: nobody is to notice. Or for longer than anybody waits.
        1 => Kind::Stop { rank, duration: milliseconds(1..50, random) },
        2 => Kind::Stop { rank, duration: milliseconds(4000..60_000, random) },
        3 => Kind::Cut { one: rank, other },
        4 => Kind::CutOneWay { from: rank, to: other },
        5 => Kind::Livelock { rank },
        6 => {
            let forgery = Forgery::ALL[random.random_range(0..Forgery::ALL.len())];
            Kind::Forge { from: rank, to: other, forgery }
        }
        _ => Kind::Garbage { from: rank, to: other },
    };
    Mishap::at(Duration::from_secs_f64(random.random_range(0.0..1.0)), kind)
}

/// Whether a stop is longer than anybody waits.
pub fn is_long(duration: Duration) -> bool {
    duration > DEADLINE
}
