//! Decides what goes wrong next: drawn from a seed, each fault after the last was recovered from.

use super::gaps::Gaps;
use std::collections::BTreeMap;
use thalweg_cluster::engine::local::{Act, Director};
use thalweg_core::Rng;
use thalweg_core::event::{Event, Record};
use thalweg_core::spec::inject::{Fault, Mischief};

/// Steps between the recovery from a fault and the next one.
const GAP: std::ops::Range<u64> = 3..30;

/// Steps after which a slow spell counts as survived.
const SLOW: u64 = 20;

/// What can happen, and how likely each is, in percent. As many come as go: where only one is left, nobody can be killed.
const KINDS: [(Trial, u64); 9] = [
    (Trial::Fault(Mischief::Kill), 30),
    (Trial::Join, 40),
    (Trial::Unreachable, 4),
    (Trial::Fault(Mischief::Stop), 4),
    (Trial::Fault(Mischief::Livelock), 6),
    (Trial::Fault(Mischief::Cut), 5),
    (Trial::Fault(Mischief::CutOneWay), 4),
    (Trial::Fault(Mischief::Lie), 4),
    (Trial::Fault(Mischief::Slow), 3),
];

/// One thing that happens to the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    Fault(Mischief),
    /// Somebody comes.
    Join,
    /// Somebody comes that the others cannot connect to.
    Unreachable,
}

impl Trial {
    /// Whether a group may go on as if nothing had happened. A fault of a link is noticed by the exchange that uses it; ranks
    /// that share an arena may not use any.
    fn may_go_unnoticed(self) -> bool {
        use Mischief::{Cut, CutOneWay, Lie, Slow};
        matches!(self, Trial::Fault(Slow | Cut | CutOneWay | Lie))
    }

    fn name(self) -> &'static str {
        match self {
            Trial::Fault(kind) => kind.name(),
            Trial::Join => "join",
            Trial::Unreachable => Mischief::Unreachable.name(),
        }
    }
}

/// What was seen of the faults so far.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Faults that were delivered and recovered from, by kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Seconds until a process's death was noticed.
    pub detect_death: Vec<f64>,
    /// Seconds until a stopped process was given up.
    pub detect_hang: Vec<f64>,
    /// Seconds until a process that lives and makes no progress was given up.
    pub detect_livelock: Vec<f64>,
    /// Seconds from then on until training went on.
    pub recover: Vec<f64>,
    /// The most steps that were done again for one fault.
    pub steps_redone: u64,
    /// How long nothing was said, and no step done.
    pub gaps: Gaps,
}

impl Tally {
    /// Faults survived.
    pub fn faults(&self) -> u64 {
        self.kinds.values().sum()
    }
}

/// Follows a job and lets things happen to it.
pub struct Chaos {
    random: Rng,
    left: u64,
    most: usize,
    members: Vec<usize>,
    step: u64,
    /// To whom the fault under way happens.
    victim: usize,
    /// What is under way: the trial, and when and at which step it struck.
    trial: Option<(Trial, Option<(f64, u64)>)>,
    begun: bool,
    finished: bool,
    /// What was seen.
    pub tally: Tally,
}

impl Chaos {
    /// So many faults; the group may have up to `most` members.
    pub fn new(seed: u64, faults: u64, most: usize) -> Chaos {
        Chaos {
            random: Rng::keyed(seed, "chaos", &[]),
            left: faults,
            most,
            members: Vec::new(),
            step: 0,
            victim: 0,
            trial: None,
            begun: false,
            finished: false,
            tally: Tally::default(),
        }
    }

    fn draw(&mut self) -> Trial {
        let mut lot = self.random.below(100);
        let drawn = KINDS.iter().find(|(_, share)| {
            let hit = lot < *share;
            lot = lot.saturating_sub(*share);
            hit
        });
        let trial = drawn.map_or(Trial::Join, |(trial, _)| *trial);
        // One worker must be left, and no more than there may be.
        match trial {
            Trial::Join | Trial::Unreachable if self.members.len() >= self.most => {
                Trial::Fault(Mischief::Kill)
            }
            Trial::Fault(Mischief::Slow) | Trial::Join | Trial::Unreachable => trial,
            _ if self.members.len() < 2 => Trial::Join,
            _ => trial,
        }
    }

    fn next(&mut self) -> Vec<Act> {
        if !self.begun || self.trial.is_some() || self.finished {
            return Vec::new();
        }
        if self.left == 0 {
            self.finished = true;
            return vec![Act::Finish];
        }
        self.left -= 1;
        let trial = self.draw();
        let step = self.step + GAP.start + self.random.below(GAP.end - GAP.start);
        let victim = self.members[self.random.below(self.members.len() as u64) as usize];
        (self.trial, self.victim) = (Some((trial, None)), victim);
        let kind = match trial {
            Trial::Join => return vec![Act::Hire(None)],
            Trial::Unreachable => return vec![Act::Hire(Some(Mischief::Unreachable))],
            Trial::Fault(kind) => kind,
        };
        vec![Act::Inject(Fault { step, rank: victim, kind })]
    }

    /// The group has changed.
    fn regrouped(&mut self, record: &Record) {
        let Event::Regrouped { step, members, lost, joined, steps_redone, .. } = &record.event else {
            return;
        };
        self.members.clone_from(members);
        self.step = *step;
        let Some((trial, struck)) = self.trial else { return };
        let over = match trial {
            Trial::Join => !joined.is_empty(),
            Trial::Fault(Mischief::Slow) | Trial::Unreachable => false,
            // A process that is killed on a busy machine may not get to say that it was struck.
            _ => !lost.is_empty() && (struck.is_some() || !members.contains(&self.victim)),
        };
        if !over {
            return;
        }
        let noticed = lost.iter().filter_map(|culprit| culprit.noticed).min_by(f64::total_cmp);
        if let (Some(noticed), Some((when, _))) = (noticed, struck) {
            let detect = (noticed - when).max(0.0);
            match trial {
                Trial::Fault(Mischief::Kill) => self.tally.detect_death.push(detect),
                Trial::Fault(Mischief::Stop) => self.tally.detect_hang.push(detect),
                Trial::Fault(Mischief::Livelock) => self.tally.detect_livelock.push(detect),
                _ => {}
            }
            self.tally.recover.push((record.time - noticed).max(0.0));
        }
        self.tally.steps_redone = self.tally.steps_redone.max(*steps_redone);
        self.survived(trial);
    }

    fn survived(&mut self, trial: Trial) {
        *self.tally.kinds.entry(trial.name()).or_default() += 1;
        self.trial = None;
    }
}

impl Director for Chaos {
    fn follow(&mut self, record: &Record) -> Vec<Act> {
        self.tally.gaps.follow(record);
        match &record.event {
            Event::Joined { hosts, .. } => self.members = (0..hosts.len()).collect(),
            Event::Started { first_step, .. } => (self.step, self.begun) = (*first_step, true),
            Event::Step { step, steps_per_epoch, .. } => {
                self.step = *step;
                // By the end of an epoch every link was used: the ranks tell each other how they validated.
                if let Some((trial, Some((_, struck)))) = self.trial
                    && trial.may_go_unnoticed()
                    && *step > struck + SLOW.max(*steps_per_epoch)
                {
                    self.survived(trial);
                }
            }
            Event::Struck { step, .. } => {
                if let Some((_, struck)) = &mut self.trial {
                    *struck = Some((record.time, *step));
                }
            }
            Event::Regrouped { .. } => self.regrouped(record),
            // A newcomer says that it was not let in.
            Event::Failed { .. } if record.rank.is_some_and(|rank| !self.members.contains(&rank)) => {
                match self.trial {
                    Some((Trial::Unreachable, _)) => self.survived(Trial::Unreachable),
                    // It came while somebody was lost: another one is to come.
                    Some((Trial::Join, _)) => return vec![Act::Hire(None)],
                    _ => return Vec::new(),
                }
            }
            _ => return Vec::new(),
        }
        self.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::Culprit;

    fn say(chaos: &mut Chaos, time: f64, event: Event) -> Vec<Act> {
        chaos.follow(&Record { time, rank: Some(0), event })
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

    /// Plays a group that survives everything; how many were killed, stopped or livelocked.
    fn play(chaos: &mut Chaos) -> u64 {
        let mut members: Vec<usize> = (0..4).collect();
        say(chaos, 0.0, Event::Joined { hosts: vec!["box".into(); 4], generation: 1 });
        assert!(say(chaos, 0.0, step(1)).is_empty(), "nothing happens before training begins");
        chaos.begun = true;
        let mut acts = say(chaos, 1.0, step(2));
        let mut gone = 0;
        while let Some(act) = acts.pop() {
            acts = match act {
                Act::Hire(Some(_)) => {
                    assert!(members.len() < 4);
                    let error = thalweg_core::Error::internal("not let in");
                    let event = Event::Failed { error, pulse: Default::default() };
                    chaos.follow(&Record { time: 8.0, rank: Some(9), event })
                }
                Act::Hire(None) => {
                    let free = (0..).find(|number| !members.contains(number)).unwrap();
                    members.push(free);
                    assert!(members.len() <= 4);
                    say(chaos, 8.0, regrouped(members.clone(), None, vec![free]))
                }
                Act::Inject(fault) => {
                    assert!(members.contains(&fault.rank));
                    let kind = fault.kind.name().to_string();
                    assert!(say(chaos, 7.0, Event::Struck { step: 60, kind }).is_empty(), "one at a time");
                    match fault.kind {
                        Mischief::Slow | Mischief::Lie => say(chaos, 8.0, step(90)),
                        Mischief::Cut | Mischief::CutOneWay => {
                            say(chaos, 8.0, regrouped(members.clone(), Some(fault.rank), vec![]))
                        }
                        _ => {
                            gone += 1;
                            members.retain(|member| *member != fault.rank);
                            assert!(!members.is_empty());
                            say(chaos, 8.0, regrouped(members.clone(), Some(fault.rank), vec![]))
                        }
                    }
                }
                Act::Finish => break,
            };
        }
        gone
    }

    #[test]
    fn every_fault_follows_the_recovery_from_the_last_and_then_the_job_may_end() {
        let mut chaos = Chaos::new(3, 200, 4);
        let gone = play(&mut chaos);
        assert!(chaos.finished);
        assert_eq!(chaos.tally.faults(), 200);
        assert!((60..140).contains(&gone), "{gone}");
        assert_eq!(chaos.tally.kinds.len(), KINDS.len(), "{:?}", chaos.tally.kinds);
        assert_eq!(KINDS.iter().map(|(_, share)| share).sum::<u64>(), 100);
        let half = |seconds: &Vec<f64>| seconds.iter().all(|second| (*second - 0.5).abs() < 1e-9);
        assert!(half(&chaos.tally.detect_death) && half(&chaos.tally.detect_livelock));
        assert!(half(&chaos.tally.recover));
    }
}
