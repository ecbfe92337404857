//! Who holds up the job: a pure decision over the ranks' pulses.
//!
//! A rank that gives no sign of life for the deadline is silent, whatever the others do. A rank that lives but
//! computes for longer than the deadline while others wait for it holds them up; reading data or files it has longer,
//! and meanwhile the others can be told whom they wait for. Those who wait are never blamed.

use crate::inquest::Evidence;
use crate::stall::{self, LastPulse, SILENT, Stall};
use std::time::Duration;
use thalweg_core::event::{Phase, Pulse};

/// The pulses of a group, and when they were heard.
pub struct Watch {
    deadline: Duration,
    /// How long a rank may be silent while the ranks still look for each other.
    start_deadline: Duration,
    /// How long the others wait for a rank that reads data or files.
    prepare_deadline: Duration,
    ranks: Vec<Heard>,
    /// When this watcher last woke from a sleep of its own.
    awake_since: Duration,
    /// Some rank is past the rendezvous, so all have arrived there.
    met: bool,
}

#[derive(Clone, Default)]
struct Heard {
    /// When, and what; nothing before it is expected and after an orderly goodbye.
    last: Option<(Duration, Pulse)>,
}

impl Watch {
    /// Watches so many ranks.
    pub fn new(
        world: usize,
        deadline: Duration,
        start_deadline: Duration,
        prepare_deadline: Duration,
    ) -> Watch {
        // A little before the deadline, so that the job has ended by then.
        let deadline = deadline - deadline.min(Duration::from_secs(2)) / 10;
        Watch {
            deadline,
            start_deadline,
            prepare_deadline,
            ranks: vec![Heard::default(); world],
            awake_since: Duration::ZERO,
            met: false,
        }
    }

    /// A rank should be heard of from this moment on: silence counts even if it never said anything.
    pub fn expect(&mut self, rank: usize, from: Duration, phase: Phase) {
        self.heard(rank, from, Pulse { phase, name: "starting".into(), ..Pulse::default() });
    }

    /// A rank gave a sign of life.
    pub fn heard(&mut self, rank: usize, now: Duration, pulse: Pulse) {
        if pulse.phase != Phase::Starting && !self.met {
            self.meet(now);
        }
        if rank >= self.ranks.len() {
            // Somebody who joined later.
            self.ranks.resize(rank + 1, Heard::default());
        }
        self.ranks[rank].last = Some((now, pulse));
    }

    /// The ranks have found each other: whoever has said nothing since is no longer on its way, it is silent.
    fn meet(&mut self, now: Duration) {
        self.met = true;
        for (when, pulse) in self.ranks.iter_mut().filter_map(|heard| heard.last.as_mut()) {
            if pulse.phase == Phase::Starting {
                (*when, pulse.phase) = (now, Phase::Preparing);
            }
        }
    }

    /// A rank is no longer expected to give any.
    pub fn dismiss(&mut self, rank: usize) {
        if let Some(heard) = self.ranks.get_mut(rank) {
            heard.last = None;
        }
    }

    /// The watcher itself was asleep (stopped, or the machine suspended): nobody is to blame for that time.
    pub fn forgive(&mut self, now: Duration) {
        self.awake_since = now;
        for heard in &mut self.ranks {
            if let Some((when, _)) = &mut heard.last {
                *when = now;
            }
        }
    }

    /// What a rank was doing when last heard of.
    pub fn last(&self, rank: usize) -> Option<&Pulse> {
        self.ranks.get(rank)?.last.as_ref().map(|(_, pulse)| pulse)
    }

    /// The rank that has read data or files for the longest while others wait, what it does, and for how many seconds
    /// they have waited.
    pub fn awaited(&self) -> Option<(usize, &Pulse, f64)> {
        let pulses = || self.heard_of().map(|(rank, (_, pulse))| (rank, pulse));
        let waiting = pulses().filter(|(_, pulse)| pulse.phase == Phase::Exchanging);
        let waited = waiting.map(|(_, pulse)| pulse.since).max_by(f64::total_cmp)?;
        let (rank, pulse) = pulses()
            .filter(|(_, pulse)| pulse.phase == Phase::Preparing)
            .max_by(|(_, one), (_, other)| one.since.total_cmp(&other.since))?;
        Some((rank, pulse, waited.min(pulse.since)))
    }

    /// For whom the others wait, if they have for a while.
    pub fn stall(&self, now: Duration) -> Option<Stall> {
        // What a rank said before this watcher slept says nothing of now.
        if !self.met || now.saturating_sub(self.awake_since) < SILENT {
            return None;
        }
        let seen: Vec<LastPulse<'_>> = self
            .heard_of()
            .map(|(rank, (when, pulse))| LastPulse { rank, age: now.saturating_sub(*when), pulse })
            .collect();
        stall::find(&seen)
    }

    /// Whether a rank that should be heard of has been silent for a while.
    pub fn is_silent(&self, rank: usize, now: Duration) -> bool {
        let last = self.ranks.get(rank).and_then(|heard| heard.last.as_ref());
        last.is_some_and(|(when, _)| now.saturating_sub(*when) >= SILENT)
    }

    fn heard_of(&self) -> impl Iterator<Item = (usize, &(Duration, Pulse))> {
        self.ranks.iter().enumerate().filter_map(|(rank, heard)| heard.last.as_ref().map(|last| (rank, last)))
    }

    /// Whoever holds up the job at this moment.
    pub fn verdict(&self, now: Duration) -> Option<Evidence> {
        let silence = |when: &Duration| now.saturating_sub(*when);
        let silent = self
            .heard_of()
            .filter(|(_, (when, pulse))| {
                let starting = pulse.phase == Phase::Starting;
                silence(when) >= if starting { self.start_deadline } else { self.deadline }
            })
            .max_by_key(|(rank, (when, _))| (silence(when), usize::MAX - rank));
        if let Some((rank, (when, pulse))) = silent {
            return Some(Evidence::Silent {
                rank,
                seconds: silence(when).as_secs_f64(),
                pulse: pulse.clone(),
            });
        }
        self.stuck(now, Phase::Computing, self.deadline)
            .or_else(|| self.stuck(now, Phase::Preparing, self.prepare_deadline))
    }

    /// Whoever has been in a phase for too long while others waited for as long.
    fn stuck(&self, now: Duration, phase: Phase, deadline: Duration) -> Option<Evidence> {
        // How long a rank has waited may contain a sleep of the whole machine: only what was seen awake counts.
        if now.saturating_sub(self.awake_since) < deadline {
            return None;
        }
        let long = |pulse: &Pulse, phase| pulse.phase == phase && pulse.since >= deadline.as_secs_f64();
        if !self.heard_of().any(|(_, (_, pulse))| long(pulse, Phase::Exchanging)) {
            return None;
        }
        self.heard_of()
            .filter(|(_, (_, pulse))| long(pulse, phase))
            .min_by_key(|(rank, (_, pulse))| (pulse.operation, *rank))
            .map(|(rank, (_, pulse))| Evidence::Stuck { rank, pulse: pulse.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn pulse(phase: Phase, operation: u64, since: f64) -> Pulse {
        Pulse { phase, operation, since, ..Pulse::default() }
    }

    fn watch() -> Watch {
        Watch::new(4, at(2.2), at(30.0), at(600.0))
    }

    #[test]
    fn nobody_is_blamed_while_all_are_heard() {
        let mut watch = watch();
        for rank in 0..4 {
            watch.heard(rank, at(1.0), pulse(Phase::Exchanging, 5, 0.1));
        }
        assert_eq!(watch.verdict(at(1.5)), None);
    }

    #[test]
    fn the_silent_one_is_blamed_not_those_who_wait_for_it() {
        let mut watch = watch();
        watch.heard(2, at(1.0), pulse(Phase::Computing, 4, 0.1));
        for rank in [0, 1, 3] {
            watch.heard(rank, at(3.0), pulse(Phase::Exchanging, 5, 2.0));
        }
        assert!(matches!(watch.verdict(at(3.0)), Some(Evidence::Silent { rank: 2, .. })));
    }

    #[test]
    fn a_rank_that_is_lost_before_its_first_word_is_silent_too() {
        let mut watch = watch();
        (0..4).for_each(|rank| watch.expect(rank, at(1.0), Phase::Preparing));
        for rank in [0, 1, 2] {
            watch.heard(rank, at(2.9), pulse(Phase::Exchanging, 1, 1.9));
        }
        assert_eq!(watch.verdict(at(2.9)), None);
        assert!(matches!(watch.verdict(at(3.0)), Some(Evidence::Silent { rank: 3, .. })));
    }

    #[test]
    fn a_rank_that_does_not_arrive_has_longer() {
        let mut watch = watch();
        watch.expect(1, at(0.0), Phase::Starting);
        assert_eq!(watch.verdict(at(29.0)), None);
        assert!(matches!(watch.verdict(at(30.0)), Some(Evidence::Silent { rank: 1, .. })));
    }

    #[test]
    fn once_the_ranks_have_met_nobody_is_on_its_way_any_more() {
        let mut watch = watch();
        (0..2).for_each(|rank| watch.expect(rank, at(0.0), Phase::Starting));
        watch.heard(0, at(5.0), pulse(Phase::Exchanging, 1, 0.1));
        watch.heard(0, at(7.0), pulse(Phase::Exchanging, 1, 2.0));
        assert_eq!(watch.verdict(at(6.9)), None);
        assert!(matches!(watch.verdict(at(7.0)), Some(Evidence::Silent { rank: 1, .. })));
    }

    #[test]
    fn a_rank_that_computes_forever_is_stuck() {
        let mut watch = watch();
        watch.heard(1, at(9.0), pulse(Phase::Computing, 4, 5.0));
        for rank in [0, 2, 3] {
            watch.heard(rank, at(9.0), pulse(Phase::Exchanging, 5, 4.0));
        }
        assert!(matches!(watch.verdict(at(9.1)), Some(Evidence::Stuck { rank: 1, .. })));
    }

    #[test]
    fn long_preparation_is_told_and_has_a_deadline_of_its_own() {
        let mut watch = watch();
        assert_eq!(watch.awaited(), None);
        watch.heard(1, at(9.0), pulse(Phase::Preparing, 0, 9.0));
        watch.heard(2, at(9.0), pulse(Phase::Preparing, 0, 8.5));
        assert_eq!(watch.awaited(), None, "nobody waits");
        watch.heard(0, at(9.0), pulse(Phase::Exchanging, 1, 8.0));
        assert_eq!(watch.verdict(at(9.1)), None);
        assert!(matches!(watch.awaited(), Some((1, _, 8.0))));
        let later = |watch: &mut Watch, waited: f64| {
            watch.heard(2, at(610.0), pulse(Phase::Exchanging, 1, 1.0));
            watch.heard(1, at(610.0), pulse(Phase::Preparing, 0, 610.0));
            watch.heard(0, at(610.0), pulse(Phase::Exchanging, 1, waited));
            watch.verdict(at(610.1))
        };
        assert_eq!(later(&mut watch, 599.0), None);
        assert!(matches!(later(&mut watch, 600.0), Some(Evidence::Stuck { rank: 1, .. })));
    }

    #[test]
    fn a_watcher_that_slept_forgives() {
        let mut watch = watch();
        watch.heard(0, at(1.0), pulse(Phase::Computing, 1, 0.0));
        assert!(watch.verdict(at(60.0)).is_some());
        watch.forgive(at(60.0));
        assert_eq!(watch.verdict(at(60.5)), None);
        // Those who slept with it say that they waited for the whole night.
        watch.heard(0, at(60.6), pulse(Phase::Computing, 1, 59.0));
        watch.heard(1, at(60.6), pulse(Phase::Exchanging, 2, 59.0));
        assert_eq!(watch.verdict(at(61.0)), None);
        watch.dismiss(0);
        watch.dismiss(1);
        assert_eq!(watch.verdict(at(99.0)), None);
    }
}
