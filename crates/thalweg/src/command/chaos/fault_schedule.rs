//! The schedule of faults: drawn from a seed, each injected after the job has recovered from the one before.

use super::gaps::Gaps;
use std::collections::BTreeMap;
use std::ops::Range;
use thalweg_cluster::engine::local::{LaunchAction, LaunchControl};
use thalweg_core::Rng;
use thalweg_core::event::{Event, Record};
use thalweg_core::spec::inject::{FaultKind, InjectedFault};

/// Commit units from a recovery to the next fault.
const GAP: std::ops::Range<u64> = 3..30;

/// Steps after which a slow rank counts as survived.
const SLOW_STEPS: u64 = 20;

/// Actions and their probabilities in percent. Joins balance losses: a group of one has no rank to lose.
const KINDS: [(ChaosAction, u64); 9] = [
    (ChaosAction::Fault(FaultKind::Kill), 30),
    (ChaosAction::Join, 40),
    (ChaosAction::Unreachable, 4),
    (ChaosAction::Fault(FaultKind::Stop), 4),
    (ChaosAction::Fault(FaultKind::Livelock), 6),
    (ChaosAction::Fault(FaultKind::Cut), 5),
    (ChaosAction::Fault(FaultKind::CutOneWay), 4),
    (ChaosAction::Fault(FaultKind::Lie), 4),
    (ChaosAction::Fault(FaultKind::Slow), 3),
];

/// A change to the group: a fault, or a worker that joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChaosAction {
    Fault(FaultKind),
    Join,
    /// A worker joins that the other ranks cannot connect to.
    Unreachable,
}

impl ChaosAction {
    /// Whether the group may continue without a membership change. A link fault is detected by an exchange over that
    /// link, and ranks that share an arena may use none.
    fn may_go_unnoticed(self) -> bool {
        use FaultKind::{Cut, CutOneWay, Lie, Slow};
        matches!(self, ChaosAction::Fault(Slow | Cut | CutOneWay | Lie))
    }

    fn name(self) -> &'static str {
        match self {
            ChaosAction::Fault(kind) => kind.name(),
            ChaosAction::Join => "join",
            ChaosAction::Unreachable => FaultKind::Unreachable.name(),
        }
    }
}

/// Statistics of the faults so far.
#[derive(Clone, Debug, Default)]
pub struct ChaosStats {
    /// Faults recovered from, by kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Seconds until the death of a process was detected.
    pub detect_death: Vec<f64>,
    /// Seconds until a stopped process was excluded.
    pub detect_hang: Vec<f64>,
    /// Seconds until a process without progress was excluded.
    pub detect_livelock: Vec<f64>,
    /// Seconds from detection until training continued.
    pub recover: Vec<f64>,
    /// Largest number of steps repeated for one fault.
    pub steps_redone: u64,
    /// Longest times without an event and without a step.
    pub gaps: Gaps,
}

impl ChaosStats {
    /// Number of faults recovered from.
    pub fn faults(&self) -> u64 {
        self.kinds.values().sum()
    }
}

/// What the schedule depends on besides its seed.
#[derive(Clone, Debug)]
pub struct Pacing {
    /// Steps of a commit unit.
    pub unit: u64,
    /// Ranks at the start.
    pub ranks: usize,
    /// Largest number of workers.
    pub max_workers: usize,
    /// Members with these ids hold parameters for the others: their loss ends the job.
    pub servers: Range<usize>,
}

/// Follows the events of a job and injects faults into it.
pub struct FaultSchedule {
    random: Rng,
    left: u64,
    pacing: Pacing,
    members: Vec<usize>,
    step: u64,
    /// Rank that the current fault was injected into.
    victim: usize,
    /// The current action, and time and step at which it took effect.
    action: Option<(ChaosAction, Option<(f64, u64)>)>,
    begun: bool,
    finished: bool,
    /// Statistics so far.
    pub stats: ChaosStats,
}

impl FaultSchedule {
    pub fn new(seed: u64, faults: u64, pacing: Pacing) -> FaultSchedule {
        FaultSchedule {
            random: Rng::keyed(seed, "chaos", &[]),
            left: faults,
            members: (0..pacing.ranks).collect(),
            pacing,
            step: 0,
            victim: 0,
            action: None,
            begun: false,
            finished: false,
            stats: ChaosStats::default(),
        }
    }

    /// Members whose loss the job survives.
    fn workers(&self) -> impl Iterator<Item = usize> + '_ {
        self.members.iter().copied().filter(|id| !self.pacing.servers.contains(id))
    }

    fn draw(&mut self) -> ChaosAction {
        let mut draw = self.random.below(100);
        let drawn = KINDS.iter().find(|(_, share)| {
            let hit = draw < *share;
            draw = draw.saturating_sub(*share);
            hit
        });
        let action = drawn.map_or(ChaosAction::Join, |(action, _)| *action);
        // Keeps the workers between 1 and `max_workers`.
        let workers = self.workers().count();
        match action {
            ChaosAction::Join | ChaosAction::Unreachable if workers >= self.pacing.max_workers => {
                ChaosAction::Fault(FaultKind::Kill)
            }
            ChaosAction::Fault(FaultKind::Slow) | ChaosAction::Join | ChaosAction::Unreachable => action,
            _ if workers < 2 => ChaosAction::Join,
            _ => action,
        }
    }

    fn next(&mut self) -> Vec<LaunchAction> {
        if !self.begun || self.action.is_some() || self.finished {
            return Vec::new();
        }
        if self.left == 0 {
            self.finished = true;
            return vec![LaunchAction::Finish];
        }
        self.left -= 1;
        let action = self.draw();
        let units = GAP.start + self.random.below(GAP.end - GAP.start);
        let unit = self.pacing.unit;
        // Faults of long units strike at any step of them.
        let within = if unit > 1 { self.random.below(unit) } else { 0 };
        let step = self.step + units * unit + within;
        let victims: Vec<usize> = self.workers().collect();
        let Some(&victim) = victims.get(self.random.below(victims.len().max(1) as u64) as usize) else {
            return Vec::new();
        };
        (self.action, self.victim) = (Some((action, None)), victim);
        let kind = match action {
            ChaosAction::Join => return vec![LaunchAction::StartWorker(None)],
            ChaosAction::Unreachable => return vec![LaunchAction::StartWorker(Some(FaultKind::Unreachable))],
            ChaosAction::Fault(kind) => kind,
        };
        vec![LaunchAction::Inject(InjectedFault { step, rank: victim, kind })]
    }

    /// Handles a membership change.
    fn regrouped(&mut self, record: &Record) {
        let Event::Regrouped { step, members, lost, joined, steps_redone, .. } = &record.event else {
            return;
        };
        self.members.clone_from(members);
        self.step = *step;
        let Some((action, struck)) = self.action else { return };
        let over = match action {
            ChaosAction::Join => !joined.is_empty(),
            ChaosAction::Fault(FaultKind::Slow) | ChaosAction::Unreachable => false,
            // On a busy machine a process may die before it has sent its `struck` event.
            _ => !lost.is_empty() && (struck.is_some() || !members.contains(&self.victim)),
        };
        if !over {
            return;
        }
        let noticed = lost.iter().filter_map(|culprit| culprit.noticed).min_by(f64::total_cmp);
        if let (Some(noticed), Some((when, _))) = (noticed, struck) {
            let detect = (noticed - when).max(0.0);
            match action {
                ChaosAction::Fault(FaultKind::Kill) => self.stats.detect_death.push(detect),
                ChaosAction::Fault(FaultKind::Stop) => self.stats.detect_hang.push(detect),
                ChaosAction::Fault(FaultKind::Livelock) => self.stats.detect_livelock.push(detect),
                _ => {}
            }
            self.stats.recover.push((record.time - noticed).max(0.0));
        }
        self.stats.steps_redone = self.stats.steps_redone.max(*steps_redone);
        self.survived(action);
    }

    fn survived(&mut self, action: ChaosAction) {
        *self.stats.kinds.entry(action.name()).or_default() += 1;
        self.action = None;
    }
}

impl LaunchControl for FaultSchedule {
    fn on_record(&mut self, record: &Record) -> Vec<LaunchAction> {
        self.stats.gaps.follow(record);
        match &record.event {
            Event::Started { first_step, .. } => (self.step, self.begun) = (*first_step, true),
            Event::Step { step, steps_per_epoch, .. } => {
                self.step = *step;
                // By the end of an epoch every link has been used: the ranks exchange their validation results.
                if let Some((action, Some((_, struck)))) = self.action
                    && action.may_go_unnoticed()
                    && *step > struck + SLOW_STEPS.max(*steps_per_epoch).max(2 * self.pacing.unit)
                {
                    self.survived(action);
                }
            }
            Event::FaultInjected { step, .. } => {
                if let Some((_, struck)) = &mut self.action {
                    *struck = Some((record.time, *step));
                }
            }
            Event::Regrouped { .. } => self.regrouped(record),
            // A joining worker was refused.
            Event::Failed { .. } if record.rank.is_some_and(|rank| !self.members.contains(&rank)) => {
                match self.action {
                    Some((ChaosAction::Unreachable, _)) => self.survived(ChaosAction::Unreachable),
                    // It asked to join while a rank was lost: start another one.
                    Some((ChaosAction::Join, _)) => return vec![LaunchAction::StartWorker(None)],
                    _ => return Vec::new(),
                }
            }
            _ => return Vec::new(),
        }
        self.next()
    }

    /// Some join while a rank is lost, and are started again.
    fn max_started(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX).saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use thalweg_core::Culprit;

    fn send(chaos: &mut FaultSchedule, time: f64, event: Event) -> Vec<LaunchAction> {
        chaos.on_record(&Record { time, rank: Some(0), event })
    }

    fn step(step: u64) -> Event {
        Event::Step {
            epoch: 0,
            step,
            steps_per_epoch: 10,
            loss: 0.0,
            samples_per_s: 1.0,
            slowest: 0,
            slowest_ms: 0.0,
            fastest_ms: 0.0,
            median_ms: 0.0,
        }
    }

    fn regrouped(members: Vec<usize>, lost: Option<usize>, joined: Vec<usize>) -> Event {
        let culprit = |rank| Culprit { rank, noticed: Some(7.5), ..Culprit::default() };
        Event::Regrouped {
            generation: 2,
            step: 50,
            members,
            lost: lost.into_iter().map(culprit).collect(),
            joined,
            left: Vec::new(),
            recover_s: 0.1,
            steps_redone: 1,
        }
    }

    /// Simulates a group that survives every fault; returns the number of ranks killed, stopped or livelocked.
    fn simulate(chaos: &mut FaultSchedule) -> u64 {
        let mut members: Vec<usize> = (0..4).collect();
        assert!(send(chaos, 0.0, step(1)).is_empty(), "no fault before training begins");
        chaos.begun = true;
        let mut acts = send(chaos, 1.0, step(2));
        let mut lost = 0;
        while let Some(act) = acts.pop() {
            acts = match act {
                LaunchAction::StartWorker(Some(_)) => {
                    assert!(members.len() < 4);
                    let error = thalweg_core::Error::internal("not let in");
                    let event = Event::Failed { error, heartbeat: Default::default() };
                    chaos.on_record(&Record { time: 8.0, rank: Some(9), event })
                }
                LaunchAction::StartWorker(None) => {
                    let free = (0..).find(|number| !members.contains(number)).unwrap();
                    members.push(free);
                    assert!(members.len() <= 4);
                    send(chaos, 8.0, regrouped(members.clone(), None, vec![free]))
                }
                LaunchAction::Inject(fault) => {
                    assert!(members.contains(&fault.rank));
                    let kind = fault.kind.name().to_string();
                    assert!(
                        send(chaos, 7.0, Event::FaultInjected { step: 60, kind }).is_empty(),
                        "one at a time"
                    );
                    match fault.kind {
                        FaultKind::Slow | FaultKind::Lie => send(chaos, 8.0, step(90)),
                        FaultKind::Cut | FaultKind::CutOneWay => {
                            send(chaos, 8.0, regrouped(members.clone(), Some(fault.rank), vec![]))
                        }
                        _ => {
                            lost += 1;
                            members.retain(|member| *member != fault.rank);
                            assert!(!members.is_empty());
                            send(chaos, 8.0, regrouped(members.clone(), Some(fault.rank), vec![]))
                        }
                    }
                }
                LaunchAction::Finish => break,
            };
        }
        lost
    }

    #[test]
    fn each_fault_follows_the_recovery_from_the_last_and_then_the_job_ends() {
        let mut chaos =
            FaultSchedule::new(3, 200, Pacing { unit: 1, ranks: 4, max_workers: 4, servers: 0..0 });
        let lost = simulate(&mut chaos);
        assert!(chaos.finished);
        assert_eq!(chaos.stats.faults(), 200);
        assert!((60..140).contains(&lost), "{lost}");
        assert_eq!(chaos.stats.kinds.len(), KINDS.len(), "{:?}", chaos.stats.kinds);
        assert_eq!(KINDS.iter().map(|(_, share)| share).sum::<u64>(), 100);
        let half = |seconds: &Vec<f64>| seconds.iter().all(|second| (*second - 0.5).abs() < 1e-9);
        assert!(half(&chaos.stats.detect_death) && half(&chaos.stats.detect_livelock));
        assert!(half(&chaos.stats.recover));
    }

    #[test]
    fn gaps_count_in_commit_units_and_servers_are_no_victims() {
        let pacing = Pacing { unit: 10, ranks: 4, max_workers: 4, servers: 2..3 };
        let faults: Vec<InjectedFault> = (0..300)
            .filter_map(|seed| {
                let mut chaos = FaultSchedule::new(seed, 1, pacing.clone());
                chaos.begun = true;
                match send(&mut chaos, 1.0, step(100)).pop() {
                    Some(LaunchAction::Inject(fault)) => Some(fault),
                    _ => None,
                }
            })
            .collect();
        let gaps = || faults.iter().map(|fault| fault.step - 100);
        assert!(gaps().all(|steps| GAP.contains(&(steps / 10))), "{faults:?}");
        assert!(gaps().any(|steps| steps / 10 == GAP.start) && gaps().any(|steps| steps / 10 == GAP.end - 1));
        assert!(gaps().any(|steps| steps % 10 != 0), "also in the middle of a unit");
        let struck: BTreeSet<usize> = faults.iter().map(|fault| fault.rank).collect();
        assert_eq!(struck, BTreeSet::from([0, 1, 3]));
    }
}
