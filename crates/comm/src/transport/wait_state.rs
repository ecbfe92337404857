//! The wait of one operation: pending peers, time waited, deadline.

use std::time::Duration;

/// The most time between two ticks that counts as waiting; a longer gap means that the process was stopped.
const MAX_TICK: Duration = Duration::from_secs(1);

/// How many times its deadline a wait may last while the rest of the group makes progress. The coordinator detects
/// ranks without progress; this bounds the waits that it missed.
const MAX_EXTENSIONS: u32 = 1000;

/// How long a wait without progress lasts before the frames that have arrived are inspected, and again after that; at
/// most a quarter of the deadline.
const INSPECTION: Duration = Duration::from_secs(1);

/// How long an operation waits before it publishes which peers it waits for, and again after that: operations of
/// microseconds publish nothing.
const PUBLICATION: Duration = Duration::from_millis(100);

/// What an operation still wants from one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

/// Deadline and elapsed time of one operation's wait.
#[derive(Clone, Copy, Debug)]
pub struct WaitState {
    deadline: Duration,
    waited: Duration,
    last_tick: Duration,
    /// The group's progress when it last grew.
    group: u64,
    /// The awaited clock when it last moved.
    clock: u64,
    /// The time waited when the deadline was last restarted.
    extended: Duration,
    /// Polls without progress since the last progress.
    pub(super) idle: u32,
    /// The time waited at the next inspection.
    inspection: Duration,
    /// The time waited at the next publication.
    publication: Duration,
    mode: WaitMode,
}

/// Which of the wanted peers an operation needs to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    #[default]
    All,
    /// A frame of any peer that is received from.
    Any,
}

impl WaitState {
    pub fn new(now: Duration, deadline: Duration) -> WaitState {
        let zero = Duration::ZERO;
        let mut wait = WaitState {
            deadline,
            waited: zero,
            last_tick: now,
            group: 0,
            clock: 0,
            extended: zero,
            idle: 0,
            inspection: zero,
            publication: PUBLICATION,
            mode: WaitMode::All,
        };
        wait.on_progress();
        wait
    }

    /// The same wait for a frame of any of the peers that are received from.
    pub fn for_any(self) -> WaitState {
        WaitState { mode: WaitMode::Any, ..self }
    }

    pub(super) fn mode(&self) -> WaitMode {
        self.mode
    }

    /// Whether the peers that are waited for are to be published now.
    pub(super) fn is_publication_due(&mut self) -> bool {
        let due = self.waited >= self.publication;
        if due {
            self.publication = self.waited + PUBLICATION;
        }
        due
    }

    /// Something moved.
    pub(super) fn on_progress(&mut self) {
        self.idle = 0;
        self.inspection = self.waited + INSPECTION.min(self.deadline / 4);
    }

    /// Whether nothing has moved for so long that the frames that have arrived are to be inspected now.
    pub(super) fn is_inspection_due(&mut self) -> bool {
        let due = self.waited >= self.inspection;
        if due {
            self.inspection = self.waited + INSPECTION.min(self.deadline / 4);
        }
        due
    }

    /// Adds the time since the last tick, `MAX_TICK` at most: time during which the process was stopped does not
    /// count.
    pub fn tick(&mut self, now: Duration) {
        self.waited += now.saturating_sub(self.last_tick).min(MAX_TICK);
        self.last_tick = now;
    }

    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Time until the deadline.
    pub fn remaining(&self) -> Duration {
        let end =
            self.extended.saturating_add(self.deadline).min(self.deadline.saturating_mul(MAX_EXTENSIONS));
        end.saturating_sub(self.waited)
    }

    /// Restarts the deadline if the group made progress: the awaited peer may only be slow.
    pub(super) fn observe_group(&mut self, progress: u64) {
        if progress > self.group {
            (self.group, self.extended) = (progress, self.waited);
        }
    }

    /// Restarts the deadline if the clock of another rank that this wait is for moved, though not far enough yet. In a
    /// wait for the slowest of several ranks this is the least of their clocks.
    pub fn observe_clock(&mut self, clock: u64) {
        if clock > self.clock {
            (self.clock, self.extended) = (clock, self.waited);
        }
    }
}

/// Adds what is wanted elsewhere.
pub(crate) fn merge(merged: &mut [Interest], wanted: &[Interest]) {
    for (merged, interest) in merged.iter_mut().zip(wanted) {
        merged.read |= interest.read;
        merged.write |= interest.write;
    }
}

/// The peers with incomplete frames: first those received from, then those only sent to.
pub(crate) fn pending_peers(wanted: &[Interest]) -> Vec<usize> {
    let peers = |is_pending: fn(&Interest) -> bool| {
        wanted.iter().enumerate().filter(move |(_, interest)| is_pending(interest)).map(|(peer, _)| peer)
    };
    peers(|interest| interest.read).chain(peers(|interest| interest.write && !interest.read)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_does_not_time_out() {
        let mut wait = WaitState::new(Duration::ZERO, Duration::from_secs(10));
        wait.tick(Duration::from_millis(300));
        wait.tick(Duration::from_secs(100));
        assert_eq!(wait.waited(), Duration::from_millis(1300));
        assert_eq!(wait.remaining(), Duration::from_millis(8700));
    }

    #[test]
    fn inspections_are_due_at_intervals_without_progress() {
        let mut wait = WaitState::new(Duration::ZERO, Duration::from_secs(2));
        let mut due = |milliseconds, moved| {
            wait.tick(Duration::from_millis(milliseconds));
            if moved {
                wait.on_progress();
            }
            wait.is_inspection_due()
        };
        assert_eq!([due(499, false), due(500, false), due(501, false)], [false, true, false]);
        assert_eq!([due(999, true), due(1498, false), due(1499, false)], [false, false, true]);
    }

    #[test]
    fn progress_of_the_group_extends_a_wait_within_bounds() {
        let mut wait = WaitState::new(Duration::ZERO, Duration::from_secs(2));
        let mut now = Duration::ZERO;
        for progress in [0, 1, 1, 2] {
            now += Duration::from_secs(1);
            wait.tick(now);
            wait.observe_group(progress);
        }
        assert_eq!(wait.remaining(), Duration::from_secs(2));
        wait.observe_group(2);
        wait.tick(now + Duration::from_secs(1));
        assert_eq!(wait.remaining(), Duration::from_secs(1), "the same count is no progress");
        for progress in 3..3000 {
            now += Duration::from_secs(1);
            wait.tick(now);
            wait.observe_group(progress);
        }
        assert!(wait.remaining().is_zero(), "a wait ends");
    }

    #[test]
    fn a_wait_for_a_clock_ends_a_deadline_after_its_last_move() {
        let mut wait = WaitState::new(Duration::ZERO, Duration::from_secs(2));
        for (second, clock) in [(1, 5), (2, 6), (3, 7), (4, 7)] {
            wait.tick(Duration::from_secs(second));
            wait.observe_clock(clock);
            assert!(!wait.remaining().is_zero(), "{second}");
        }
        wait.observe_clock(6);
        wait.tick(Duration::from_secs(5));
        assert!(wait.remaining().is_zero(), "the clock stood, or an old message arrived");
    }

    #[test]
    fn short_operations_publish_nothing() {
        let mut wait = WaitState::new(Duration::ZERO, Duration::from_secs(2)).for_any();
        let mut due = |milliseconds| {
            wait.tick(Duration::from_millis(milliseconds));
            wait.is_publication_due()
        };
        assert_eq!([due(99), due(100), due(101), due(199), due(200)], [false, true, false, false, true]);
        assert_eq!(wait.mode(), WaitMode::Any);
    }

    #[test]
    fn peers_received_from_come_first() {
        let (read, write) = (true, true);
        let wanted = [
            Interest { write, ..Interest::default() },
            Interest::default(),
            Interest { read, write },
            Interest { read, ..Interest::default() },
        ];
        assert_eq!(pending_peers(&wanted), [2, 3, 0]);
    }
}
