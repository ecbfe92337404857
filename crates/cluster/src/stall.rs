//! For whom the others wait: a pure decision over the ranks' pulses, long before a deadline makes it a failure.

use std::time::Duration;
use thalweg_core::event::{Event, Phase, Pulse};

/// A wait of this length is told.
pub const TOLD: Duration = Duration::from_secs(2);

/// A rank of which nothing was heard for this long is silent: several of its pulses are missing.
pub const SILENT: Duration = Duration::from_secs(1);

/// Time between two reports of one wait.
const AGAIN: Duration = Duration::from_secs(1);

/// A wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// The ranks that are waited for.
    pub ranks: Vec<usize>,
    /// The operation the others wait in; if none waits, what the silent ones were doing.
    pub operation: String,
    /// The step of that operation.
    pub step: u64,
    /// For how long.
    pub waited: Duration,
}

/// What was last heard of a rank, and how long ago.
#[derive(Clone, Copy, Debug)]
pub struct LastPulse<'a> {
    /// The rank.
    pub rank: usize,
    /// Time since then.
    pub age: Duration,
    /// Time since it last looked whether it can go on.
    pub unlooked: Duration,
    /// What it said.
    pub pulse: &'a Pulse,
}

impl LastPulse<'_> {
    fn is_silent(&self) -> bool {
        self.age >= SILENT && !matches!(self.pulse.phase, Phase::Starting | Phase::Leaving)
    }

    /// In an exchange it does not even look whether it can go on: its main thread does something else, or nothing.
    fn is_held(&self) -> bool {
        self.pulse.phase == Phase::Exchanging && self.unlooked >= SILENT
    }

    fn waits(&self) -> bool {
        !self.is_silent() && !self.is_held() && self.pulse.phase == Phase::Exchanging
    }

    /// For how long it has been doing what it said.
    fn lasts(&self) -> Duration {
        // A member says it of itself: no number may end this process.
        let since = Duration::try_from_secs_f64(self.pulse.since.max(0.0)).unwrap_or(Duration::MAX);
        since.saturating_add(self.age)
    }
}

/// For whom the others wait, if they have for long enough. Ranks that read data or files are told of elsewhere, and have
/// longer.
pub fn find(ranks: &[LastPulse<'_>]) -> Option<Stall> {
    // Pulses are up to a pulse old: the rank in the newest operation knows what is waited for.
    let front = ranks.iter().filter(|rank| rank.waits()).map(|rank| rank.pulse.operation).max();
    let first = ranks
        .iter()
        .filter(|rank| rank.waits() && Some(rank.pulse.operation) == front)
        .max_by_key(|rank| rank.lasts());
    let is_behind = |rank: &LastPulse<'_>| {
        let at_work = matches!(rank.pulse.phase, Phase::Computing | Phase::Exchanging);
        at_work && front.is_some_and(|front| rank.pulse.operation < front)
    };
    let awaited = |rank: &&LastPulse<'_>| rank.is_silent() || rank.is_held() || is_behind(rank);
    let silence = ranks.iter().filter(|rank| rank.is_silent()).max_by_key(|rank| rank.age);
    let (waited, pulse) = match (first, silence) {
        (Some(first), _) if first.lasts() >= SILENT => (first.lasts(), first.pulse),
        (_, Some(silent)) => (silent.age, silent.pulse),
        _ => return None,
    };
    let ranks: Vec<usize> = ranks.iter().filter(awaited).map(|rank| rank.rank).collect();
    let worth_telling = waited >= TOLD && !ranks.is_empty();
    worth_telling.then(|| Stall { ranks, operation: pulse.name.clone(), step: pulse.step, waited })
}

/// What is told of waits: that one has begun, once a second how long it lasts, and its end.
#[derive(Debug, Default)]
pub struct StallReporter {
    /// The wait that was told last, and when.
    told: Option<(Stall, Duration)>,
}

impl StallReporter {
    /// What is to be told now, if anything.
    pub fn follow(&mut self, now: Duration, stall: Option<Stall>) -> Option<Event> {
        match (stall, &self.told) {
            (None, None) => None,
            (None, Some((over, _))) => {
                let (ranks, waited_s) = (over.ranks.clone(), over.waited.as_secs_f64());
                self.told = None;
                Some(Event::GoingOn { ranks, waited_s })
            }
            (Some(stall), Some((last, when)))
                if stall.ranks == last.ranks && now.saturating_sub(*when) < AGAIN =>
            {
                None
            }
            (Some(stall), _) => {
                let Stall { ranks, operation, step, waited } = stall.clone();
                self.told = Some((stall, now));
                Some(Event::Waiting { ranks, operation, step, waited_s: waited.as_secs_f64() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse(phase: Phase, operation: u64, since: f64) -> Pulse {
        Pulse { step: 120, phase, operation, name: format!("{phase:?}"), since, looks: 1, ..Pulse::default() }
    }

    /// Who is waited for, of ranks with the age of their last pulse in seconds, and for how many seconds.
    fn found(ranks: &[(f64, Pulse)]) -> Option<(Vec<usize>, String, f64)> {
        let seen: Vec<LastPulse<'_>> = ranks
            .iter()
            .enumerate()
            .map(|(rank, (age, pulse))| {
                // One that has never looked is held.
                let unlooked = if pulse.looks == 0 { SILENT } else { Duration::ZERO };
                LastPulse { rank, age: Duration::from_secs_f64(*age), unlooked, pulse }
            })
            .collect();
        find(&seen).map(|stall| (stall.ranks, stall.operation, stall.waited.as_secs_f64()))
    }

    #[test]
    fn the_silent_rank_is_waited_for_by_those_in_the_operation() {
        let waits = |since| (0.1, pulse(Phase::Exchanging, 8, since));
        for stopped in [pulse(Phase::Computing, 7, 0.0), pulse(Phase::Exchanging, 8, 0.0)] {
            assert_eq!(found(&[waits(1.0), (1.2, stopped.clone()), waits(1.2)]), None, "too early");
            assert_eq!(found(&[waits(1.8), (2.1, stopped.clone()), waits(1.7)]), None, "too early");
            let told = found(&[waits(3.9), (4.1, stopped), waits(3.8)]);
            assert_eq!(told, Some((vec![1], "Exchanging".into(), 4.0)));
        }
    }

    #[test]
    fn a_rank_that_computes_on_is_waited_for_though_it_is_heard() {
        let waits = (0.0, pulse(Phase::Exchanging, 8, 3.0));
        let busy = (0.0, pulse(Phase::Computing, 7, 5.0));
        assert_eq!(found(&[busy.clone(), waits.clone()]).unwrap().0, [0]);
        assert_eq!(found(&[busy.clone(), busy.clone()]), None, "steps may take long");
        let ahead = (0.0, pulse(Phase::Computing, 8, 0.1));
        assert_eq!(found(&[ahead, waits.clone()]), None, "it is past that operation");
        let reads = (0.0, pulse(Phase::Preparing, 0, 9.0));
        assert_eq!(found(&[reads, waits]), None, "told elsewhere");
    }

    #[test]
    fn a_rank_that_is_held_in_the_operation_is_waited_for() {
        let waits = (0.1, pulse(Phase::Exchanging, 8, 3.0));
        let held = (0.1, Pulse { looks: 0, ..pulse(Phase::Exchanging, 8, 3.1) });
        assert_eq!(found(&[waits.clone(), held.clone(), waits]).unwrap().0, [1]);
        assert_eq!(found(&[held.clone(), held]), None, "nobody waits");
    }

    #[test]
    fn no_number_that_a_member_says_ends_this_process() {
        for since in [f64::INFINITY, f64::NAN, f64::MAX, -1.0] {
            let waits = (0.1, pulse(Phase::Exchanging, 8, since));
            found(&[waits.clone(), (4.1, pulse(Phase::Computing, 7, since)), waits]);
        }
    }

    #[test]
    fn silence_is_told_where_no_rank_waits() {
        let busy = (0.0, pulse(Phase::Computing, 3, 0.1));
        let silent = |age| (age, pulse(Phase::Computing, 3, 0.1));
        assert_eq!(found(&[busy.clone(), silent(1.9)]), None);
        assert_eq!(found(&[busy.clone(), silent(2.5)]), Some((vec![1], "Computing".into(), 2.5)));
        let left = (9.0, pulse(Phase::Leaving, 3, 0.1));
        assert_eq!(found(&[busy, left]), None, "it has said goodbye");
    }

    #[test]
    fn a_wait_is_told_every_second_and_its_end_once() {
        let mut reporter = StallReporter::default();
        let stall = |rank, seconds| {
            let (operation, waited) = ("all-reduce".to_string(), Duration::from_secs(seconds));
            Some(Stall { ranks: vec![rank], operation, step: 120, waited })
        };
        let at = Duration::from_millis;
        assert_eq!(reporter.follow(at(0), None), None);
        assert!(matches!(reporter.follow(at(2000), stall(2, 2)), Some(Event::Waiting { step: 120, .. })));
        assert_eq!(reporter.follow(at(2900), stall(2, 2)), None);
        let later = reporter.follow(at(3000), stall(2, 3));
        assert!(matches!(later, Some(Event::Waiting { waited_s: 3.0, .. })), "{later:?}");
        let other = reporter.follow(at(3100), stall(1, 3));
        assert!(matches!(&other, Some(Event::Waiting { ranks, .. }) if ranks == &[1]), "{other:?}");
        let over = Event::GoingOn { ranks: vec![1], waited_s: 3.0 };
        assert_eq!(reporter.follow(at(3200), None), Some(over));
        assert_eq!(reporter.follow(at(3300), None), None);
    }
}
