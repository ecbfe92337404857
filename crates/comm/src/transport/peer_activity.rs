//! What one peer did in an operation: whether it entered it, and when it last made progress.
//!
//! At a deadline this distinguishes a peer that never entered the operation from one that is slow.

use super::{Cause, Tag, TransportError};
use crate::wire::MESSAGES;
use std::time::Duration;

/// Socket buffers within a host to a peer that reads nothing are full after this time: the kernel retries a partial
/// write about 0.2 s after the buffers seemed full.
const BUFFER_FILL: Duration = Duration::from_millis(500);

/// Activity of one peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerActivity {
    received: Vec<GroupActivity>,
    /// When the peer last accepted bytes.
    accepted: Option<Duration>,
    /// The peer accepted bytes since the last [`PeerActivity::stamp`].
    accepted_since: bool,
}

/// What arrived from a peer in one group. Operations of a group start in the same order on all ranks, so a frame of a
/// later operation proves that the peer entered the earlier ones. Messages belong to no operation and have no entry.
#[derive(Clone, Debug)]
struct GroupActivity {
    /// The latest operation of which a byte arrived.
    latest: Tag,
    when: Duration,
    /// Bytes arrived since the last [`PeerActivity::stamp`].
    fresh: bool,
    /// The current wait includes an operation that the peer is known to have entered.
    awaited: bool,
}

impl PeerActivity {
    /// Records an attempt to receive a frame of this operation, and whether bytes of it `arrived`.
    pub fn on_receive(&mut self, tag: Tag, arrived: bool) {
        if tag.group == MESSAGES {
            return;
        }
        match self.received.iter_mut().find(|entry| entry.latest.group == tag.group) {
            Some(entry) => {
                if arrived {
                    let older =
                        entry.latest.generation != tag.generation || entry.latest.operation < tag.operation;
                    entry.latest = if older { tag } else { entry.latest };
                    entry.fresh = true;
                }
                entry.awaited |=
                    entry.latest.generation == tag.generation && entry.latest.operation >= tag.operation;
            }
            None if arrived => {
                let when = Duration::ZERO;
                self.received.push(GroupActivity { latest: tag, when, fresh: true, awaited: true });
            }
            None => {}
        }
    }

    /// Records that the peer, or a buffer on the way to it, accepted bytes.
    pub fn on_send(&mut self) {
        self.accepted_since = true;
    }

    /// Sets the time of everything recorded since the last call; one clock reading serves a whole attempt.
    pub fn stamp(&mut self, now: Duration) {
        for entry in &mut self.received {
            if std::mem::take(&mut entry.fresh) {
                entry.when = now;
            }
        }
        if std::mem::take(&mut self.accepted_since) {
            self.accepted = Some(now);
        }
    }

    /// Starts another attempt: the operations that it receives from are recorded anew.
    pub fn clear_awaited(&mut self) {
        self.received.iter_mut().for_each(|entry| entry.awaited = false);
    }

    /// Time since the peer's last progress; `None` if it never entered. Accepted bytes count only some time into the
    /// wait: at its beginning they may just fill buffers, for [`BUFFER_FILL`] within a host and longer on slow links.
    fn quiet(&self, now: Duration, waited: Duration) -> Option<Duration> {
        let since = |when: Duration| now.saturating_sub(when).min(waited);
        let accepted = self.accepted.map(since).filter(|quiet| waited - *quiet > BUFFER_FILL.max(waited / 4));
        let received = self.received.iter().filter(|entry| entry.awaited).map(|entry| since(entry.when));
        accepted.into_iter().chain(received).min()
    }
}

/// The error after waiting `waited` for the `pending` peers. Peers that never entered come before slow ones, and of
/// these the one without progress for the longest time comes first.
pub(crate) fn timeout_error(
    peers: &[PeerActivity],
    mut pending: Vec<usize>,
    now: Duration,
    waited: Duration,
) -> TransportError {
    let quiet = |peer: usize| peers.get(peer).and_then(|activity| activity.quiet(now, waited));
    // None sorts first.
    pending.sort_by_key(|&peer| quiet(peer).map(|quiet| waited.saturating_sub(quiet)));
    let cause = match pending.first().and_then(|&peer| quiet(peer)) {
        Some(quiet) => Cause::Slow { waited, quiet },
        None => Cause::Silent { waited },
    };
    TransportError { peer: pending.first().copied(), cause, suspects: pending }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    const TAG: Tag = Tag { generation: 1, operation: 5, group: 0, tensor: 0 };

    /// Activity of a peer of which frames arrived at these times, and of which [`TAG`] is awaited.
    fn awaited(tags: &[(Tag, u64)]) -> PeerActivity {
        let mut activity = PeerActivity::default();
        for (tag, when) in tags {
            activity.on_receive(*tag, true);
            activity.stamp(at(*when));
            activity.clear_awaited();
        }
        activity.on_receive(TAG, false);
        activity
    }

    fn blamed(peers: &[PeerActivity]) -> TransportError {
        timeout_error(peers, (0..peers.len()).collect(), at(1000), at(900))
    }

    #[test]
    fn a_peer_that_never_entered_is_distinguished_from_a_slow_one() {
        let before = Tag { operation: 4, ..TAG };
        let never = awaited(&[(before, 100)]);
        let slow = awaited(&[(before, 100), (TAG, 950)]);
        let halted = awaited(&[(TAG, 400)]);
        let silent = Cause::Silent { waited: at(900) };
        assert_eq!(
            blamed(&[slow.clone(), never]),
            TransportError { peer: Some(1), cause: silent.clone(), suspects: vec![1, 0] }
        );
        let cause = Cause::Slow { waited: at(900), quiet: at(600) };
        assert_eq!(
            blamed(&[slow.clone(), halted]),
            TransportError { peer: Some(1), cause, suspects: vec![1, 0] }
        );
        assert_eq!(blamed(&[slow]).cause, Cause::Slow { waited: at(900), quiet: at(50) });
        assert_eq!(
            blamed(&[awaited(&[(Tag { group: 3, ..TAG }, 950)])]).cause,
            silent,
            "it is in another group"
        );
        assert_eq!(blamed(&[]), TransportError { peer: None, cause: silent, suspects: vec![] });
    }

    #[test]
    fn a_frame_of_a_later_operation_counts_as_entered() {
        let later = Tag { operation: 6, ..TAG };
        assert!(matches!(blamed(&[awaited(&[(TAG, 300), (later, 950)])]).cause, Cause::Slow { .. }));
    }

    #[test]
    fn a_late_frame_of_an_earlier_operation_hides_no_later_one() {
        let later = Tag { operation: 6, ..TAG };
        let mut activity = awaited(&[(later, 300), (TAG, 900)]);
        activity.clear_awaited();
        activity.on_receive(later, false);
        assert!(matches!(blamed(&[activity]).cause, Cause::Slow { .. }), "it entered both");
    }

    #[test]
    fn a_message_is_no_progress_of_an_operation() {
        let message = Tag { group: MESSAGES, ..TAG };
        assert_eq!(blamed(&[awaited(&[(message, 950)])]).cause, Cause::Silent { waited: at(900) });
    }

    #[test]
    fn filling_buffers_is_no_progress_of_the_peer() {
        let mut activity = PeerActivity::default();
        for (when, slow) in [(110, false), (700, true)] {
            activity.on_send();
            activity.stamp(at(when));
            let cause = blamed(&[activity.clone()]).cause;
            assert_eq!(matches!(cause, Cause::Slow { .. }), slow, "{when}: {cause}");
        }
    }
}
