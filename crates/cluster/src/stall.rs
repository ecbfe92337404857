//! Which ranks the others wait for: a pure decision from heartbeats, long before a deadline makes it a failure.
//!
//! Waits are followed to ranks that do not wait (`wait_graph`). Ranks that wait for each other are not reported here: as
//! long as bytes are on the way, that is how a collective looks.

use crate::rank_set::RankSet;
use crate::wait_graph::{Activity, Verdict, judge, waiting_for};
use std::time::Duration;
use thalweg_core::event::{Event, Heartbeat, Phase, WaitsFor};

/// Shorter waits are not reported.
pub const REPORT_AFTER: Duration = Duration::from_secs(2);

/// Time without a heartbeat after which a rank is silent: several heartbeats are missing.
pub const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Interval between reports of the same wait.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A wait of some ranks for others.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// The ranks that are waited for.
    pub ranks: Vec<usize>,
    /// The operation the others wait in; if no rank waits, the last one of the silent ranks.
    pub operation: String,
    pub step: u64,
    pub waited: Duration,
}

/// The last heartbeat of a rank, and how long ago it arrived.
#[derive(Clone, Copy, Debug)]
pub struct LastHeartbeat<'a> {
    pub rank: usize,
    pub age: Duration,
    /// Time since the rank last polled its transport.
    pub since_poll: Duration,
    pub heartbeat: &'a Heartbeat,
}

impl LastHeartbeat<'_> {
    fn is_silent(&self) -> bool {
        self.age >= SILENT_AFTER && !matches!(self.heartbeat.phase, Phase::Starting | Phase::Leaving)
    }

    /// In an exchange without polling its transport: its main thread does something else, or nothing.
    fn is_not_polling(&self) -> bool {
        self.heartbeat.phase == Phase::Exchanging && self.since_poll >= SILENT_AFTER
    }

    fn waits(&self) -> bool {
        !self.is_silent() && !self.is_not_polling() && self.heartbeat.phase == Phase::Exchanging
    }

    /// How long it has been in its activity.
    fn duration(&self) -> Duration {
        // The value comes from a peer: no number may panic here.
        let since = Duration::try_from_secs_f64(self.heartbeat.since.max(0.0)).unwrap_or(Duration::MAX);
        since.saturating_add(self.age)
    }

    /// Whether it may have done what `waiting` waited for when that sent its heartbeat: its activity is younger. A rank
    /// that cannot tell whom it waits for waits for those that have not entered its operation since it began.
    fn may_have_served(&self, waiting: &LastHeartbeat<'_>) -> bool {
        let seen = if waiting.heartbeat.waits_for.is_some() { waiting.age } else { waiting.duration() };
        !self.is_silent() && self.duration() < seen
    }

    /// What it does, as far as the others wait for it.
    fn activity(&self, ranks: &[LastHeartbeat<'_>]) -> Activity {
        if self.waits() {
            return if self.duration() < SILENT_AFTER { Activity::Progressing } else { self.wait(ranks) };
        }
        let is_late = matches!(self.heartbeat.phase, Phase::Computing | Phase::Exchanging);
        if self.is_silent() || is_late { Activity::Standing } else { Activity::Progressing }
    }

    fn wait(&self, ranks: &[LastHeartbeat<'_>]) -> Activity {
        let others = || ranks.iter().filter(|other| other.rank != self.rank);
        // Impossible ids stay out of the set, however large they are.
        let is_possible = |id: &usize| ranks.last().is_some_and(|last| *id <= last.rank);
        let waits_for = self.heartbeat.waits_for.as_ref();
        let set = waits_for.map(|waits_for| waits_for.ranks().iter().copied().filter(is_possible).collect());
        let is_named =
            |other: &&LastHeartbeat<'_>| set.as_ref().is_none_or(|set: &RankSet| set.contains(other.rank));
        let named = || others().filter(is_named);
        let late = named().filter(|other| !other.may_have_served(self)).map(|other| other.rank);
        let late: RankSet = late.collect();
        let is_any = matches!(self.heartbeat.waits_for, Some(WaitsFor::Any(_)));
        match late.is_empty() || (is_any && named().any(|other| other.may_have_served(self))) {
            true => Activity::Progressing,
            false if is_any => Activity::WaitsForAny(late),
            false => Activity::WaitsForAll(late),
        }
    }
}

/// The ranks the others wait for, if they have waited long enough. Ranks that read data or files have longer, and are
/// reported by the coordinator.
pub fn find(ranks: &[LastHeartbeat<'_>]) -> Option<Stall> {
    let world = ranks.iter().map(|rank| rank.rank + 1).max()?;
    let mut activities = vec![Activity::Progressing; world];
    for rank in ranks {
        activities[rank.rank] = rank.activity(ranks);
    }
    let late = match judge(&activities) {
        Verdict::Ranks(late) => late,
        Verdict::Deadlock(_) | Verdict::NoneBlocked => Vec::new(),
    };
    let waiting = waiting_for(&activities, &late);
    let longest = ranks.iter().filter(|rank| waiting.contains(&rank.rank)).max_by_key(|rank| rank.duration());
    let silence = ranks.iter().filter(|rank| rank.is_silent()).max_by_key(|rank| rank.age);
    let (waited, heartbeat) = match (longest, silence) {
        (Some(longest), _) => (longest.duration(), longest.heartbeat),
        (None, Some(silent)) => (silent.age, silent.heartbeat),
        (None, None) => return None,
    };
    let is_awaited = |rank: &&LastHeartbeat<'_>| rank.is_silent() || late.contains(&rank.rank);
    let ranks: Vec<usize> = ranks.iter().filter(is_awaited).map(|rank| rank.rank).collect();
    let is_reported = waited >= REPORT_AFTER && !ranks.is_empty();
    is_reported.then(|| Stall { ranks, operation: heartbeat.name.clone(), step: heartbeat.step, waited })
}

/// Reports waits: the begin, once a second the duration, and the end.
#[derive(Debug, Default)]
pub struct StallReporter {
    /// The last reported wait, and when it was reported.
    reported: Option<(Stall, Duration)>,
}

impl StallReporter {
    /// The event to emit now, if any.
    pub fn update(&mut self, now: Duration, stall: Option<Stall>) -> Option<Event> {
        match (stall, &self.reported) {
            (None, None) => None,
            (None, Some((over, _))) => {
                let (ranks, waited_s) = (over.ranks.clone(), over.waited.as_secs_f64());
                self.reported = None;
                Some(Event::WaitEnded { ranks, waited_s })
            }
            (Some(stall), Some((last, when)))
                if stall.ranks == last.ranks && now.saturating_sub(*when) < REPORT_INTERVAL =>
            {
                None
            }
            (Some(stall), _) => {
                let Stall { ranks, operation, step, waited } = stall.clone();
                self.reported = Some((stall, now));
                Some(Event::Waiting { ranks, operation, step, waited_s: waited.as_secs_f64() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat(phase: Phase, operation: u64, since: f64) -> Heartbeat {
        Heartbeat {
            step: 120,
            phase,
            operation,
            name: format!("{phase:?}"),
            since,
            polls: 1,
            ..Heartbeat::default()
        }
    }

    /// The awaited ranks, their operation and the seconds waited, given the age and content of all last heartbeats.
    fn found(ranks: &[(f64, Heartbeat)]) -> Option<(Vec<usize>, String, f64)> {
        let seen: Vec<LastHeartbeat<'_>> = ranks
            .iter()
            .enumerate()
            .map(|(rank, (age, heartbeat))| {
                // A rank that has never polled is stuck.
                let since_poll = if heartbeat.polls == 0 { SILENT_AFTER } else { Duration::ZERO };
                LastHeartbeat { rank, age: Duration::from_secs_f64(*age), since_poll, heartbeat }
            })
            .collect();
        find(&seen).map(|stall| (stall.ranks, stall.operation, stall.waited.as_secs_f64()))
    }

    #[test]
    fn the_silent_rank_is_waited_for_by_those_in_the_operation() {
        let waits = |since| (0.1, heartbeat(Phase::Exchanging, 8, since));
        for stopped in [heartbeat(Phase::Computing, 7, 0.0), heartbeat(Phase::Exchanging, 8, 0.0)] {
            assert_eq!(found(&[waits(1.0), (1.2, stopped.clone()), waits(1.2)]), None, "too early");
            assert_eq!(found(&[waits(1.8), (2.1, stopped.clone()), waits(1.7)]), None, "too early");
            let reported = found(&[waits(3.9), (4.1, stopped), waits(3.8)]);
            assert_eq!(reported, Some((vec![1], "Exchanging".into(), 4.0)));
        }
    }

    #[test]
    fn a_rank_that_computes_is_waited_for_although_it_sends_heartbeats() {
        let waits = (0.0, heartbeat(Phase::Exchanging, 8, 3.0));
        let busy = (0.0, heartbeat(Phase::Computing, 7, 5.0));
        assert_eq!(found(&[busy.clone(), waits.clone()]).unwrap().0, [0]);
        assert_eq!(found(&[busy.clone(), busy.clone()]), None, "steps may take long");
        let ahead = (0.0, heartbeat(Phase::Computing, 8, 0.1));
        assert_eq!(found(&[ahead, waits.clone()]), None, "it is past that operation");
        let reads = (0.0, heartbeat(Phase::Preparing, 0, 9.0));
        assert_eq!(found(&[reads, waits]), None, "reported by the coordinator");
    }

    #[test]
    fn a_rank_that_does_not_poll_in_the_operation_is_waited_for() {
        let waits = (0.1, heartbeat(Phase::Exchanging, 8, 3.0));
        let stuck = (0.1, Heartbeat { polls: 0, ..heartbeat(Phase::Exchanging, 8, 3.1) });
        assert_eq!(found(&[waits.clone(), stuck.clone(), waits]).unwrap().0, [1]);
        assert_eq!(found(&[stuck.clone(), stuck]), None, "no rank waits");
    }

    #[test]
    fn waits_are_followed_across_different_operations() {
        let waits = |operation, since, waits_for| {
            (0.1, Heartbeat { waits_for: Some(waits_for), ..heartbeat(Phase::Exchanging, operation, since) })
        };
        let busy = || (0.1, heartbeat(Phase::Computing, 90, 0.4));
        let (one, two) = (WaitsFor::All(vec![1]), WaitsFor::All(vec![2]));
        let chain = [waits(7, 3.9, one.clone()), waits(40, 2.9, two), busy(), busy()];
        assert_eq!(found(&chain), Some((vec![2], "Exchanging".into(), 4.0)), "no rank waits for rank 3");
        let short = [waits(7, 3.9, one.clone()), waits(40, 0.2, WaitsFor::All(vec![2])), busy(), busy()];
        assert_eq!(found(&short), None, "rank 1 goes on");
        let candidates = WaitsFor::Any(vec![1, 2]);
        let any = |other| found(&[waits(7, 3.9, candidates.clone()), busy(), other]).map(|found| found.0);
        assert_eq!(any((0.1, heartbeat(Phase::Preparing, 0, 9.0))), None, "rank 2 may do");
        assert_eq!(any(busy()), Some(vec![1, 2]));
        assert_eq!(any((0.0, heartbeat(Phase::Computing, 90, 0.05))), None, "rank 2 may have done just now");
        let mutual = [waits(7, 3.9, one), waits(7, 3.9, WaitsFor::All(vec![0, usize::MAX]))];
        assert_eq!(found(&mutual), None, "bytes may be on the way");
    }

    #[test]
    fn no_value_of_a_heartbeat_causes_a_panic() {
        for since in [f64::INFINITY, f64::NAN, f64::MAX, -1.0] {
            let waits = (0.1, heartbeat(Phase::Exchanging, 8, since));
            found(&[waits.clone(), (4.1, heartbeat(Phase::Computing, 7, since)), waits]);
        }
    }

    #[test]
    fn silence_is_reported_if_no_rank_waits() {
        let busy = (0.0, heartbeat(Phase::Computing, 3, 0.1));
        let silent = |age| (age, heartbeat(Phase::Computing, 3, 0.1));
        assert_eq!(found(&[busy.clone(), silent(1.9)]), None);
        assert_eq!(found(&[busy.clone(), silent(2.5)]), Some((vec![1], "Computing".into(), 2.5)));
        let left = (9.0, heartbeat(Phase::Leaving, 3, 0.1));
        assert_eq!(found(&[busy, left]), None, "it has left");
    }

    #[test]
    fn a_wait_is_reported_every_second_and_its_end_once() {
        let mut reporter = StallReporter::default();
        let stall = |rank, seconds| {
            let (operation, waited) = ("all-reduce".to_string(), Duration::from_secs(seconds));
            Some(Stall { ranks: vec![rank], operation, step: 120, waited })
        };
        let at = Duration::from_millis;
        assert_eq!(reporter.update(at(0), None), None);
        assert!(matches!(reporter.update(at(2000), stall(2, 2)), Some(Event::Waiting { step: 120, .. })));
        assert_eq!(reporter.update(at(2900), stall(2, 2)), None);
        let later = reporter.update(at(3000), stall(2, 3));
        assert!(matches!(later, Some(Event::Waiting { waited_s: 3.0, .. })), "{later:?}");
        let other = reporter.update(at(3100), stall(1, 3));
        assert!(matches!(&other, Some(Event::Waiting { ranks, .. }) if ranks == &[1]), "{other:?}");
        let over = Event::WaitEnded { ranks: vec![1], waited_s: 3.0 };
        assert_eq!(reporter.update(at(3200), None), Some(over));
        assert_eq!(reporter.update(at(3300), None), None);
    }
}
