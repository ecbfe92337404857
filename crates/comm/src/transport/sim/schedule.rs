//! Which rank runs next: the state of each, and a queue of the moments at which their waits end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RunState {
    /// Not started; only in unordered groups. Time waits for it, up to [`START_TIMEOUT`](super::simulator).
    Absent,
    /// Not started in time, but it may still start.
    Idle,
    Running,
    /// Until then, or until a wake-up.
    Waiting(Duration),
    /// Until then, regardless of wake-ups.
    Sleeping(Duration),
    /// Until it is killed.
    Livelocked,
    /// Until it is told to join. Nothing waits for it.
    Reserved,
    Ended,
}

pub(super) struct Schedule {
    ranks: Vec<Entry>,
    /// Times and ranks. A wait that ends at another time than its entry says has a second entry, or gets one when the
    /// first is reached.
    queue: BinaryHeap<Reverse<(Duration, usize)>>,
    running: usize,
    absent: usize,
}

struct Entry {
    state: RunState,
    /// A stopped rank does not run before.
    stopped_until: Duration,
}

impl Entry {
    /// When the rank runs, unless it is woken before.
    fn due(&self) -> Option<Duration> {
        match self.state {
            RunState::Waiting(until) | RunState::Sleeping(until) => Some(until.max(self.stopped_until)),
            _ => None,
        }
    }
}

impl Schedule {
    pub fn new(states: impl Iterator<Item = RunState>) -> Schedule {
        let mut schedule = Schedule { ranks: Vec::new(), queue: BinaryHeap::new(), running: 0, absent: 0 };
        for (rank, state) in states.enumerate() {
            schedule.ranks.push(Entry { state: RunState::Ended, stopped_until: Duration::ZERO });
            schedule.set(rank, state);
        }
        schedule
    }

    pub fn state(&self, rank: usize) -> RunState {
        self.ranks[rank].state
    }

    pub fn set(&mut self, rank: usize, state: RunState) {
        let before = std::mem::replace(&mut self.ranks[rank].state, state);
        let changed = |of| usize::from(state == of).wrapping_sub(usize::from(before == of));
        self.running = self.running.wrapping_add(changed(RunState::Running));
        self.absent = self.absent.wrapping_add(changed(RunState::Absent));
        self.enqueue(rank);
    }

    /// Ends the wait of a rank at that moment, if it would last longer.
    pub fn wake_at(&mut self, rank: usize, at: Duration) {
        if let RunState::Waiting(until) = self.ranks[rank].state
            && at < until
        {
            self.set(rank, RunState::Waiting(at));
        }
    }

    pub fn stop(&mut self, rank: usize, until: Duration) {
        self.ranks[rank].stopped_until = until;
        self.enqueue(rank);
    }

    pub fn is_stopped(&self, rank: usize, now: Duration) -> bool {
        self.ranks[rank].stopped_until > now
    }

    pub fn has_absent(&self) -> bool {
        self.absent > 0
    }

    pub fn has_running(&self) -> bool {
        self.running > 0
    }

    /// Gives up the ranks that have not started.
    pub fn idle_absent(&mut self) {
        for rank in 0..self.ranks.len() {
            if self.state(rank) == RunState::Absent {
                self.set(rank, RunState::Idle);
            }
        }
    }

    pub fn first(&self, state: RunState) -> Option<usize> {
        self.ranks.iter().position(|rank| rank.state == state)
    }

    /// The rank whose wait ends first, the lower one of two, and when.
    pub fn next(&mut self) -> Option<(Duration, usize)> {
        loop {
            let Reverse((time, rank)) = *self.queue.peek()?;
            if self.ranks[rank].due() == Some(time) {
                return Some((time, rank));
            }
            self.queue.pop();
        }
    }

    fn enqueue(&mut self, rank: usize) {
        if let Some(due) = self.ranks[rank].due() {
            self.queue.push(Reverse((due, rank)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RunState::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn waits_end_in_the_order_of_time_and_rank() {
        let states = [Waiting(ms(3)), Waiting(ms(2)), Sleeping(ms(2)), Ended];
        let mut schedule = Schedule::new(states.into_iter());
        assert_eq!(schedule.next(), Some((ms(2), 1)));
        schedule.set(1, Running);
        assert!(schedule.has_running());
        assert_eq!(schedule.next(), Some((ms(2), 2)));
        schedule.set(1, Waiting(ms(2)));
        assert!(!schedule.has_running());
        assert_eq!(schedule.next(), Some((ms(2), 1)));
    }

    #[test]
    fn wake_ups_end_waits_and_not_sleeps_and_a_stop_delays_both() {
        let mut schedule = Schedule::new([Waiting(ms(9)), Sleeping(ms(8))].into_iter());
        schedule.wake_at(0, ms(5));
        schedule.wake_at(0, ms(7));
        schedule.wake_at(1, ms(1));
        assert_eq!(schedule.next(), Some((ms(5), 0)));
        schedule.stop(0, ms(20));
        assert_eq!(schedule.next(), Some((ms(8), 1)));
        schedule.set(1, Livelocked);
        assert_eq!((schedule.next(), schedule.first(Livelocked)), (Some((ms(20), 0)), Some(1)));
        schedule.stop(0, ms(10));
        assert_eq!(schedule.next(), Some((ms(10), 0)));
        schedule.set(0, Ended);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn absent_ranks_are_counted_until_they_start_or_are_given_up() {
        let mut schedule = Schedule::new([Absent, Absent].into_iter());
        schedule.set(0, Running);
        assert!(schedule.has_absent());
        schedule.idle_absent();
        assert_eq!((schedule.has_absent(), schedule.state(1)), (false, Idle));
    }
}
