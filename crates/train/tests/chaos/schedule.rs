//! The faults of a job, drawn from a seed.

use std::time::Duration;
use thalweg_comm::transport::sim::{ForgedFrame, SimulatedFault, SimulatedFaultKind};
use thalweg_core::Rng;

/// The longest a simulated rank may hold up a step.
pub const STEP_DEADLINE: Duration = Duration::from_secs(1);

/// The rendezvous is over by then.
pub const MEETING: Duration = Duration::from_millis(3);

/// Time from the arrival of a new member until it is known, mostly before its admission.
const WAITING: Duration = Duration::from_millis(2);

/// A world and its faults.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Servers included.
    pub world: usize,
    /// So many of the last ranks serve.
    pub servers: usize,
    pub faults: Vec<SimulatedFault>,
}

impl Schedule {
    /// One to six faults on three to five ranks, while a job runs that takes `span` undisturbed.
    pub fn draw(seed: u64, span: Duration) -> Schedule {
        let mut random = Rng::keyed(seed, "chaos", &[]);
        let world = 3 + random.below(3) as usize;
        let count = 1 + random.below(6);
        let (mut faults, mut numbers, mut at) = (Vec::new(), world, MEETING);
        for _ in 0..count {
            // Now and then at the same moment as the last.
            if random.below(5) > 0 {
                at += span.mul_f64(1.5 * fraction(&mut random) / count as f64);
            }
            let kind = fault(&mut random, &mut numbers);
            let recovery = match kind {
                SimulatedFaultKind::Stop { duration, .. } => 2 * STEP_DEADLINE.min(duration),
                SimulatedFaultKind::Livelock { .. } => 3 * STEP_DEADLINE,
                SimulatedFaultKind::Cut { .. } | SimulatedFaultKind::CutOneWay { .. } => 12 * STEP_DEADLINE,
                _ => Duration::ZERO,
            };
            // Some die before they have met the others.
            let early = matches!(kind, SimulatedFaultKind::Kill { .. }) && random.below(20) == 0;
            if let SimulatedFaultKind::Join { rank } = kind {
                faults.extend(hindrance(&mut random, rank, at));
            }
            faults.push(SimulatedFault::at(if early { Duration::ZERO } else { at }, kind));
            // What comes next comes while the others recover from this, or later.
            if random.below(2) == 0 {
                at += recovery;
            }
        }
        Schedule { world, servers: 0, faults }
    }

    /// The same with one more rank, the last, which serves and which no fault strikes.
    pub fn with_server(mut self) -> Schedule {
        let server = self.world;
        (self.world, self.servers) = (self.world + 1, self.servers + 1);
        let move_beyond = |rank: &mut usize| *rank += usize::from(*rank >= server);
        for fault in &mut self.faults {
            match &mut fault.kind {
                SimulatedFaultKind::Kill { rank }
                | SimulatedFaultKind::Stop { rank, .. }
                | SimulatedFaultKind::Livelock { rank }
                | SimulatedFaultKind::Slow { rank, .. }
                | SimulatedFaultKind::FalseReport { rank }
                | SimulatedFaultKind::Join { rank }
                | SimulatedFaultKind::Leave { rank } => move_beyond(rank),
                SimulatedFaultKind::Cut { one, other }
                | SimulatedFaultKind::CutOneWay { from: one, to: other }
                | SimulatedFaultKind::Garbage { from: one, to: other }
                | SimulatedFaultKind::Forge { from: one, to: other, .. } => {
                    move_beyond(one);
                    move_beyond(other);
                }
            }
        }
        self
    }

    /// Whether this rank may leave in good order: it is asked to; or the last worker was, which stops the job for a server
    /// and for those that join it then.
    pub fn may_leave(&self, rank: usize) -> bool {
        let asked = |who: &dyn Fn(usize) -> bool| {
            self.has(|kind| matches!(kind, SimulatedFaultKind::Leave { rank } if who(*rank)))
        };
        let stops_with_workers = self.servers > 0 && rank >= self.world - self.servers;
        asked(&|leaving| leaving == rank) || stops_with_workers && asked(&|_| true)
    }

    /// Whether a fault of this kind is among them.
    pub fn has(&self, what: impl Fn(&SimulatedFaultKind) -> bool) -> bool {
        self.faults.iter().any(|fault| what(&fault.kind))
    }
}

/// Kills are the most frequent; the rest share what is left.
fn fault(random: &mut Rng, numbers: &mut usize) -> SimulatedFaultKind {
    let rank = random.below(*numbers as u64) as usize;
    let other = (rank + 1 + random.below(*numbers as u64 - 1) as usize) % *numbers;
    match random.below(20) {
        0..6 => SimulatedFaultKind::Kill { rank },
        6..9 => {
            *numbers += 1;
            SimulatedFaultKind::Join { rank: *numbers - 1 }
        }
        // From a hundredth of a second to a minute.
        9..11 => SimulatedFaultKind::Stop {
            rank,
            duration: Duration::from_secs_f64(60.0 * fraction(random).powi(4) + 0.01),
        },
        11..13 => SimulatedFaultKind::Livelock { rank },
        13 => SimulatedFaultKind::Cut { one: rank, other },
        14 => SimulatedFaultKind::CutOneWay { from: rank, to: other },
        15 => SimulatedFaultKind::FalseReport { rank },
        16 => {
            let frame = ForgedFrame::ALL[random.below(ForgedFrame::ALL.len() as u64) as usize];
            SimulatedFaultKind::Forge { from: rank, to: other, frame }
        }
        17 => SimulatedFaultKind::Slow { rank, factor: 1.0 + 9.0 * fraction(random) },
        18 => SimulatedFaultKind::Garbage { from: rank, to: other },
        _ => SimulatedFaultKind::Leave { rank },
    }
}

/// One new member in four is cut off from a rank, in one direction or both; one in eight reports a failure before its admission.
fn hindrance(random: &mut Rng, joining: usize, at: Duration) -> Option<SimulatedFault> {
    let other = random.below(joining as u64) as usize;
    match random.below(16) {
        0..2 => Some(SimulatedFault::at(at, SimulatedFaultKind::Cut { one: joining, other })),
        2 => Some(SimulatedFault::at(at, SimulatedFaultKind::CutOneWay { from: joining, to: other })),
        3 => Some(SimulatedFault::at(at, SimulatedFaultKind::CutOneWay { from: other, to: joining })),
        4..6 => Some(SimulatedFault::at(at + WAITING, SimulatedFaultKind::FalseReport { rank: joining })),
        _ => None,
    }
}

fn fraction(random: &mut Rng) -> f64 {
    random.below(1 << 20) as f64 / f64::from(1 << 20)
}
