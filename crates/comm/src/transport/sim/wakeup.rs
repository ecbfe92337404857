//! What ends the wait of a rank, and what a rank waits for.

use crate::transport::Interest;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A moment at which something will have happened that a rank may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wakeup {
    pub at: Duration,
    pub event: WakeupEvent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WakeupEvent {
    /// Ends every wait: a message of the coordinator, the death of a rank.
    Urgent,
    /// Bytes of this rank have arrived, or it has ended its stream in good order.
    Readable(usize),
    /// There is room in the stream to this rank.
    Writable(usize),
}

/// The wake-ups of one rank, and those that its current wait is for.
#[derive(Default)]
pub(super) struct Wakeups {
    pending: BinaryHeap<Reverse<Wakeup>>,
    /// By member id, ascending.
    interests: Vec<(usize, Interest)>,
}

impl Wakeups {
    /// Begins a wait for these streams; returns when it ends, if a wake-up is pending.
    pub fn begin_wait(&mut self, interests: impl Iterator<Item = (usize, Interest)>) -> Option<Duration> {
        self.interests.clear();
        self.interests.extend(interests);
        let awaited = self.pending.iter().filter(|wakeup| self.expects(wakeup.0.event));
        awaited.map(|wakeup| wakeup.0.at).min()
    }

    /// Adds a wake-up; returns whether the current wait is for it.
    pub fn push(&mut self, wakeup: Wakeup) -> bool {
        self.pending.push(Reverse(wakeup));
        self.expects(wakeup.event)
    }

    /// Drops the wake-ups up to `now`.
    pub fn drop_until(&mut self, now: Duration) {
        while self.pending.peek().is_some_and(|wakeup| wakeup.0.at <= now) {
            self.pending.pop();
        }
    }

    fn expects(&self, event: WakeupEvent) -> bool {
        let interest = |peer: usize| {
            let found = self.interests.binary_search_by_key(&peer, |(id, _)| *id);
            found.map_or(Interest::default(), |index| self.interests[index].1)
        };
        match event {
            WakeupEvent::Urgent => true,
            WakeupEvent::Readable(from) => interest(from).read,
            WakeupEvent::Writable(to) => interest(to).write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_wait_ends_with_what_it_is_for() {
        let mut wakeups = Wakeups::default();
        let mut push = |when, event| wakeups.push(Wakeup { at: at(when), event });
        assert!(!push(1, WakeupEvent::Readable(2)) && !push(2, WakeupEvent::Writable(3)));
        assert!(push(9, WakeupEvent::Urgent));
        let (read, write) = (Interest { read: true, write: false }, Interest { read: false, write: true });
        assert_eq!(wakeups.begin_wait([(2, write), (3, read)].into_iter()), Some(at(9)));
        assert_eq!(wakeups.begin_wait([(2, write), (3, write)].into_iter()), Some(at(2)));
        assert_eq!(wakeups.begin_wait([(2, read)].into_iter()), Some(at(1)), "it was not dropped");
        wakeups.drop_until(at(1));
        assert_eq!(wakeups.begin_wait([(2, read), (3, write)].into_iter()), Some(at(2)));
        assert!(!wakeups.push(Wakeup { at: at(0), event: WakeupEvent::Writable(2) }));
    }
}
