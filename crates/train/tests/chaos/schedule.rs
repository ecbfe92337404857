//! What befalls a job, drawn from a seed.

use std::time::Duration;
use thalweg_comm::transport::sim::{Forgery, Kind, Mishap};
use thalweg_core::Rng;

/// The longest a simulated rank may hold up a step.
pub const STEP_DEADLINE: Duration = Duration::from_secs(1);

/// By then the ranks have met.
const MEETING: Duration = Duration::from_millis(3);

/// So long after it came a newcomer is known, and mostly not let in yet.
const WAITING: Duration = Duration::from_millis(2);

/// A world and its faults.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub world: usize,
    pub mishaps: Vec<Mishap>,
}

impl Schedule {
    /// One to six faults on three to five ranks, while a job runs that takes `span` undisturbed.
    pub fn draw(seed: u64, span: Duration) -> Schedule {
        let mut random = Rng::keyed(seed, "chaos", &[]);
        let world = 3 + random.below(3) as usize;
        let faults = 1 + random.below(6);
        let (mut mishaps, mut numbers, mut at) = (Vec::new(), world, MEETING);
        for _ in 0..faults {
            // Now and then at the same moment as the last.
            if random.below(5) > 0 {
                at += span.mul_f64(1.5 * fraction(&mut random) / faults as f64);
            }
            let kind = fault(&mut random, &mut numbers);
            let recovery = match kind {
                Kind::Stop { duration, .. } => 2 * STEP_DEADLINE.min(duration),
                Kind::Livelock { .. } => 3 * STEP_DEADLINE,
                Kind::Cut { .. } | Kind::CutOneWay { .. } => 12 * STEP_DEADLINE,
                _ => Duration::ZERO,
            };
            // Some die before they have met the others.
            let early = matches!(kind, Kind::Kill { .. }) && random.below(20) == 0;
            if let Kind::Join { rank } = kind {
                mishaps.extend(hindrance(&mut random, rank, at));
            }
            mishaps.push(Mishap::at(if early { Duration::ZERO } else { at }, kind));
            // What comes next comes while the others recover from this, or later.
            if random.below(2) == 0 {
                at += recovery;
            }
        }
        Schedule { world, mishaps }
    }

    /// Whether this was done to a rank.
    pub fn befell(&self, what: impl Fn(&Kind) -> bool) -> bool {
        self.mishaps.iter().any(|mishap| what(&mishap.kind))
    }
}

/// Kills are the most frequent; the rest share what is left.
fn fault(random: &mut Rng, numbers: &mut usize) -> Kind {
    let rank = random.below(*numbers as u64) as usize;
    let other = (rank + 1 + random.below(*numbers as u64 - 1) as usize) % *numbers;
    match random.below(20) {
        0..6 => Kind::Kill { rank },
        6..9 => {
            *numbers += 1;
            Kind::Join { rank: *numbers - 1 }
        }
        // From a hundredth of a second to a minute.
        9..11 => {
            Kind::Stop { rank, duration: Duration::from_secs_f64(60.0 * fraction(random).powi(4) + 0.01) }
        }
        11..13 => Kind::Livelock { rank },
        13 => Kind::Cut { one: rank, other },
        14 => Kind::CutOneWay { from: rank, to: other },
        15 => Kind::Lie { rank },
        16 => {
            let forgery = Forgery::ALL[random.below(Forgery::ALL.len() as u64) as usize];
            Kind::Forge { from: rank, to: other, forgery }
        }
        17 => Kind::Slow { rank, factor: 1.0 + 9.0 * fraction(random) },
        18 => Kind::Garbage { from: rank, to: other },
        _ => Kind::Leave { rank },
    }
}

/// One newcomer in four is cut off from a rank, in one direction or both; one in eight says that it failed before it was let in.
fn hindrance(random: &mut Rng, newcomer: usize, at: Duration) -> Option<Mishap> {
    let other = random.below(newcomer as u64) as usize;
    match random.below(16) {
        0..2 => Some(Mishap::at(at, Kind::Cut { one: newcomer, other })),
        2 => Some(Mishap::at(at, Kind::CutOneWay { from: newcomer, to: other })),
        3 => Some(Mishap::at(at, Kind::CutOneWay { from: other, to: newcomer })),
        4..6 => Some(Mishap::at(at + WAITING, Kind::Lie { rank: newcomer })),
        _ => None,
    }
}

fn fraction(random: &mut Rng) -> f64 {
    random.below(1 << 20) as f64 / f64::from(1 << 20)
}
