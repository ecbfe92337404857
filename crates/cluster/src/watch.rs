//! Who holds up the job: a pure decision over the ranks' pulses.
//!
//! A rank that gives no sign of life for the deadline is silent, whatever the others do. A rank that lives but makes no
//! progress with its computation for the deadline while others wait for it holds them up; reading data or files it has
//! longer, and meanwhile the others can be told whom they wait for. A slow rank makes progress and is not blamed.
//!
//! Where no rank moves and all say that they wait for each other, nobody can be blamed yet: the group is stalled, and
//! whoever does not leave its operation when told to is the one.

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
    /// Some rank is done with all its work and waits for the rest to end.
    is_ending: bool,
    /// How often any rank was seen to have made progress.
    moves: u64,
}

/// A rank for which others wait.
#[derive(Clone, Copy, Debug)]
pub struct Laggard<'a> {
    /// The rank.
    pub rank: usize,
    /// What it does.
    pub pulse: &'a Pulse,
    /// How long it has made no progress.
    pub idle: Duration,
    /// Whether no other rank is where it is: it is the one that is waited for.
    pub alone: bool,
}

#[derive(Clone, Default)]
struct Heard {
    /// When, and what; nothing before it is expected and after an orderly goodbye.
    last: Option<(Duration, Pulse)>,
    /// When its progress last grew.
    moved: Duration,
    /// When it last looked whether it can go on.
    looked: Duration,
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
            is_ending: false,
            moves: 0,
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
        let heard = &mut self.ranks[rank];
        let before = heard.last.as_ref().map(|(_, last)| (last.progress, last.phase, last.operation));
        if before != Some((pulse.progress, pulse.phase, pulse.operation)) {
            heard.moved = now;
            self.moves += 1;
        }
        if heard.last.as_ref().is_none_or(|(_, last)| last.looks != pulse.looks) {
            heard.looked = now;
        }
        heard.last = Some((now, pulse));
    }

    /// How often any rank was seen to have made progress.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// From now on no rank may stand still for longer than this, except with data or files.
    pub fn hurry(&mut self, limit: Duration) {
        self.deadline = self.deadline.min(limit);
    }

    /// How long a rank may hold up the others.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// A rank has done all its work: those that are left must end, too. How long they have waited for others until now is not
    /// held against them.
    pub fn begin_ending(&mut self, now: Duration) {
        if !std::mem::replace(&mut self.is_ending, true) {
            self.ranks.iter_mut().for_each(|heard| heard.moved = now);
        }
    }

    /// How long a rank that should be heard of has made no progress.
    pub fn idle(&self, rank: usize, now: Duration) -> Option<Duration> {
        let heard = self.ranks.get(rank)?;
        heard.last.as_ref().map(|_| now.saturating_sub(heard.moved))
    }

    /// How long it may make none.
    pub fn limit(&self, rank: usize) -> Duration {
        let preparing = |pulse: &Pulse| pulse.phase == Phase::Preparing;
        if self.last(rank).is_some_and(preparing) { self.prepare_deadline } else { self.deadline }
    }

    fn is_idle(&self, rank: usize, now: Duration) -> bool {
        self.idle(rank, now).is_some_and(|idle| idle >= self.limit(rank))
    }

    /// What the ranks wait in, if they wait for each other and none has made progress for as long as it may: who holds
    /// them up is not known.
    pub fn stalled(&self, now: Duration) -> Option<&Pulse> {
        let mut heard = self.heard_of().peekable();
        if heard.peek().is_none() || !heard.all(|(rank, _)| self.is_idle(rank, now)) {
            return None;
        }
        let waiting = self.heard_of().map(|(_, (_, pulse))| pulse);
        waiting.filter(|pulse| pulse.phase == Phase::Exchanging).max_by_key(|pulse| pulse.operation)
    }

    /// The rank that is behind all others. Where several are, it is the one that does not even wait: the others look again
    /// and again whether they can go on.
    pub fn laggard(&self, now: Duration) -> Option<Laggard<'_>> {
        let place = |pulse: &Pulse| (pulse.phase == Phase::Exchanging, pulse.operation);
        let first = self.heard_of().map(|(_, (_, pulse))| place(pulse)).min()?;
        let behind = || self.heard_of().filter(|(_, (_, pulse))| place(pulse) == first);
        let looks = |rank: usize| now.saturating_sub(self.ranks[rank].looked) < SILENT;
        let held = || behind().filter(|(rank, _)| !looks(*rank));
        let alone = |count: usize| count == 1;
        let (found, alone) = match held().next() {
            Some(found) if alone(held().count()) => (found, true),
            _ => (behind().next()?, alone(behind().count())),
        };
        let (rank, (_, pulse)) = found;
        Some(Laggard { rank, pulse, idle: self.idle(rank, now)?, alone })
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
            (heard.moved, heard.looked) = (now, now);
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
            .map(|(rank, (when, pulse))| LastPulse {
                rank,
                age: now.saturating_sub(*when),
                unlooked: now.saturating_sub(self.ranks[rank].looked),
                pulse,
            })
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
        self.stuck(now)
    }

    /// Whoever has made no progress of its own for too long while others waited for as long.
    fn stuck(&self, now: Duration) -> Option<Evidence> {
        let busy = |pulse: &Pulse| match pulse.phase {
            Phase::Computing | Phase::Preparing => true,
            Phase::Leaving => self.is_ending,
            // There is nobody left to wait for.
            Phase::Exchanging => self.is_ending && self.heard_of().count() == 1,
            Phase::Starting => false,
        };
        let (rank, (_, pulse)) = self
            .heard_of()
            .filter(|(rank, (_, pulse))| busy(pulse) && self.is_idle(*rank, now))
            .min_by_key(|(rank, (_, pulse))| (pulse.operation, *rank))?;
        let limit = self.limit(rank);
        let waits = |(other, (_, pulse)): (usize, &(Duration, Pulse))| {
            pulse.phase == Phase::Exchanging && self.idle(other, now).is_some_and(|idle| idle >= limit)
        };
        (self.is_ending || self.heard_of().any(waits)).then(|| Evidence::Stuck { rank, pulse: pulse.clone() })
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
        for now in [5.0, 6.0, 7.0, 8.0] {
            watch.heard(1, at(now), pulse(Phase::Computing, 4, now - 4.0));
            for rank in [0, 2, 3] {
                watch.heard(rank, at(now), pulse(Phase::Exchanging, 5, now - 5.0));
            }
        }
        assert!(matches!(watch.verdict(at(8.1)), Some(Evidence::Stuck { rank: 1, .. })));
    }

    #[test]
    fn a_rank_that_computes_slowly_is_not_stuck() {
        let mut watch = watch();
        for second in 0..100 {
            let now = f64::from(second);
            let progress = u64::from(second as u32 / 2);
            watch.heard(1, at(now), Pulse { progress, ..pulse(Phase::Computing, 4, now) });
            for rank in [0, 2, 3] {
                watch.heard(rank, at(now), pulse(Phase::Exchanging, 5, now));
            }
            assert_eq!((watch.verdict(at(now + 0.1)), watch.stalled(at(now + 0.1))), (None, None), "{now}");
        }
    }

    #[test]
    fn a_group_in_which_nobody_moves_is_stalled_without_a_culprit() {
        let mut watch = watch();
        let all = |watch: &mut Watch, now: f64, moves: bool| {
            for rank in 0..4 {
                let progress = if moves && rank == 2 { now as u64 } else { 0 };
                watch.heard(rank, at(now), Pulse { progress, ..pulse(Phase::Exchanging, 5, now) });
            }
            assert_eq!(watch.verdict(at(now + 0.1)), None);
            watch.stalled(at(now + 0.1)).is_some()
        };
        assert!((0..10).all(|second| !all(&mut watch, f64::from(second), true)), "bytes move");
        assert!(
            !all(&mut watch, 10.0, false) && !all(&mut watch, 11.0, false) && all(&mut watch, 12.5, false)
        );
        watch.forgive(at(12.6));
        assert!(watch.stalled(at(12.7)).is_none(), "the watcher slept");
    }

    #[test]
    fn a_rank_that_prepares_has_longer_and_rows_that_it_reads_count() {
        let mut watch = watch();
        let stalled = |watch: &mut Watch, now: f64, progress| {
            watch.heard(0, at(now), pulse(Phase::Exchanging, 5, now));
            watch.heard(1, at(now), Pulse { progress, ..pulse(Phase::Preparing, 4, now) });
            (watch.stalled(at(now + 0.1)).is_some(), watch.verdict(at(now + 0.1)).is_some())
        };
        for minute in 0..20 {
            assert_eq!(stalled(&mut watch, f64::from(minute) * 60.0, minute as u64), (false, false));
        }
        assert_eq!(stalled(&mut watch, 1739.0, 19), (false, false), "prepare_deadline since the last row");
        assert_eq!(stalled(&mut watch, 1741.0, 19), (true, true));
    }

    #[test]
    fn of_ranks_in_one_operation_the_one_that_does_not_wait_is_the_laggard() {
        let mut watch = watch();
        for second in 1..6 {
            for rank in 0..4 {
                let looks = if rank == 2 { 0 } else { second };
                let now = at(f64::from(second as u32));
                watch.heard(rank, now, Pulse { looks, ..pulse(Phase::Exchanging, 5, 0.0) });
            }
        }
        let found = |watch: &Watch, now| watch.laggard(at(now)).map(|found| (found.rank, found.alone));
        assert_eq!(found(&watch, 5.1), Some((2, true)));
        watch.heard(3, at(5.2), pulse(Phase::Computing, 4, 0.1));
        assert_eq!(found(&watch, 5.3), Some((3, true)), "it has not come to the operation");
        watch.dismiss(3);
        assert_eq!(found(&watch, 9.0), Some((0, false)), "nothing is heard of any");
    }

    #[test]
    fn at_the_end_those_that_wait_for_another_are_not_blamed() {
        let mut watch = watch();
        watch.begin_ending(at(1.0));
        for now in [1.0, 2.0, 3.0, 4.0] {
            (1..4).for_each(|rank| watch.heard(rank, at(now), pulse(Phase::Exchanging, 9, now)));
        }
        assert_eq!((watch.verdict(at(4.1)), watch.stalled(at(4.1)).is_some()), (None, true));
        [1, 3].into_iter().for_each(|rank| watch.dismiss(rank));
        assert!(matches!(watch.verdict(at(4.1)), Some(Evidence::Stuck { rank: 2, .. })));
    }

    #[test]
    fn once_a_rank_is_done_the_others_must_end() {
        let mut watch = watch();
        for now in [1.0, 2.0, 3.0, 4.0] {
            watch.heard(3, at(now), pulse(Phase::Leaving, 9, now));
        }
        assert_eq!(watch.verdict(at(4.1)), None);
        watch.begin_ending(at(4.1));
        for now in [5.0, 6.0] {
            assert_eq!(watch.verdict(at(now - 0.9)), None, "it has the deadline from then on");
            watch.heard(3, at(now), pulse(Phase::Leaving, 9, now));
        }
        assert!(matches!(watch.verdict(at(6.2)), Some(Evidence::Stuck { rank: 3, .. })));
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
        let later = |watch: &mut Watch, now: f64| {
            watch.heard(2, at(now), pulse(Phase::Exchanging, 1, 1.0));
            watch.heard(1, at(now), pulse(Phase::Preparing, 0, now));
            watch.heard(0, at(now), pulse(Phase::Exchanging, 1, now - 1.0));
            watch.verdict(at(now + 0.1))
        };
        assert_eq!(later(&mut watch, 608.0), None);
        assert!(matches!(later(&mut watch, 609.0), Some(Evidence::Stuck { rank: 1, .. })));
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
