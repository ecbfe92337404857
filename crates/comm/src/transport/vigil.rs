//! The waiting of one operation: for whom, for how long already, until when.

use std::time::Duration;

/// What a single look may count for; anything longer was not spent waiting but asleep.
const LONGEST_LAP: Duration = Duration::from_secs(1);

/// How many times its deadline a wait may last while the rest of the group makes progress: the coordinator judges whether
/// a rank makes none, this only bounds what no coordinator has noticed.
const MOST_EXTENSIONS: u32 = 1000;

/// What an operation still wants from one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Something to read.
    pub read: bool,
    /// Room to write.
    pub write: bool,
}

/// The waiting of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Vigil {
    deadline: Duration,
    waited: Duration,
    lap: Duration,
    /// The group's progress when it last grew, and how long the wait had lasted then.
    group: u64,
    extended: Duration,
    /// How often nothing moved, since something did.
    pub(super) idle: u32,
}

impl Vigil {
    /// Begins now and may last this long.
    pub fn new(now: Duration, deadline: Duration) -> Vigil {
        let zero = Duration::ZERO;
        Vigil { deadline, waited: zero, lap: now, group: 0, extended: zero, idle: 0 }
    }

    /// Time is added up lap by lap: a lap that a stopped process slept through counts as a short one.
    pub fn tick(&mut self, now: Duration) {
        self.waited += now.saturating_sub(self.lap).min(LONGEST_LAP);
        self.lap = now;
    }

    /// How long it has lasted.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How long it may still last.
    pub fn left(&self) -> Duration {
        let end =
            self.extended.saturating_add(self.deadline).min(self.deadline.saturating_mul(MOST_EXTENSIONS));
        end.saturating_sub(self.waited)
    }

    /// The group has come so far: whoever is waited for may be slow, and the deadline begins anew.
    pub(super) fn see_group(&mut self, progress: u64) {
        if progress > self.group {
            (self.group, self.extended) = (progress, self.waited);
        }
    }
}

/// The peers that still owe something: first those it is received from, then those it is only sent to.
pub(crate) fn owed(wanted: &[Interest]) -> Vec<usize> {
    let peers = |owes: fn(&Interest) -> bool| {
        wanted.iter().enumerate().filter(move |(_, interest)| owes(interest)).map(|(peer, _)| peer)
    };
    peers(|interest| interest.read).chain(peers(|interest| interest.write && !interest.read)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sleep_counts_as_a_short_lap() {
        let mut vigil = Vigil::new(Duration::ZERO, Duration::from_secs(10));
        vigil.tick(Duration::from_millis(300));
        vigil.tick(Duration::from_secs(100));
        assert_eq!(vigil.waited(), Duration::from_millis(1300));
        assert_eq!(vigil.left(), Duration::from_millis(8700));
    }

    #[test]
    fn progress_of_the_group_extends_a_wait_within_bounds() {
        let mut vigil = Vigil::new(Duration::ZERO, Duration::from_secs(2));
        let mut now = Duration::ZERO;
        for progress in [0, 1, 1, 2] {
            now += Duration::from_secs(1);
            vigil.tick(now);
            vigil.see_group(progress);
        }
        assert_eq!(vigil.left(), Duration::from_secs(2));
        vigil.see_group(2);
        vigil.tick(now + Duration::from_secs(1));
        assert_eq!(vigil.left(), Duration::from_secs(1), "the same count is no progress");
        for progress in 3..3000 {
            now += Duration::from_secs(1);
            vigil.tick(now);
            vigil.see_group(progress);
        }
        assert!(vigil.left().is_zero(), "a wait ends");
    }

    #[test]
    fn those_received_from_are_named_first() {
        let (read, write) = (true, true);
        let wanted = [
            Interest { write, ..Interest::default() },
            Interest::default(),
            Interest { read, write },
            Interest { read, ..Interest::default() },
        ];
        assert_eq!(owed(&wanted), [2, 3, 0]);
    }
}
