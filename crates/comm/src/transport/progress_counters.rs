//! Progress counters that a rank's transport shares with the other threads of its process.

use super::wait_state::{Interest, WaitMode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How often the transport moved data and polled, the peers it waits for, and the progress of the rest of the group.
#[derive(Clone, Debug, Default)]
pub struct ProgressCounters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    moves: AtomicU64,
    polls: AtomicU64,
    group: AtomicU64,
    /// Locked only in waits that have lasted for a while.
    awaited: Mutex<Option<AwaitedPeers>>,
}

/// The peers that a long wait is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedPeers {
    pub mode: WaitMode,
    /// Their ranks in the transport's group.
    pub peers: Vec<usize>,
    /// When they were published.
    pub when: Instant,
}

impl ProgressCounters {
    /// Grows whenever bytes moved or a phase in shared memory ended; constant while this rank waits. What one
    /// operation adds is bounded by its size.
    pub fn moves(&self) -> u64 {
        self.0.moves.load(Ordering::Relaxed)
    }

    pub(crate) fn count_move(&self) {
        self.0.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the rank has polled while it waited for peers. It grows in a waiting rank and not in a stopped one.
    pub fn polls(&self) -> u64 {
        self.0.polls.load(Ordering::Relaxed)
    }

    /// Not atomic: only the rank's own thread counts polls.
    pub(crate) fn count_poll(&self) {
        self.0.polls.store(self.polls() + 1, Ordering::Relaxed);
    }

    /// Publishes whom a wait is for, from what it wants of each peer. A wait for any peer ends with what it receives, not
    /// with what it sends.
    pub(crate) fn publish_awaited(&self, mode: WaitMode, wanted: &[Interest]) {
        let is_awaited = |interest: &Interest| interest.read || (interest.write && mode == WaitMode::All);
        let peers =
            wanted.iter().enumerate().filter(|(_, interest)| is_awaited(interest)).map(|(peer, _)| peer);
        let mut awaited = self.0.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let mut published = awaited.take().map_or_else(Vec::new, |before| before.peers);
        published.clear();
        published.extend(peers);
        *awaited = Some(AwaitedPeers { mode, peers: published, when: Instant::now() });
    }

    /// The peers that were waited for when they were last published, after `since`: those of an earlier operation are
    /// outdated.
    pub fn awaited_peers(&self, since: Instant) -> Option<AwaitedPeers> {
        let awaited = self.0.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.clone().filter(|awaited| awaited.when >= since && !awaited.peers.is_empty())
    }

    /// Records the group's progress. While it grows, the deadline of a wait of this rank is extended.
    pub fn set_group_progress(&self, progress: u64) {
        self.0.group.fetch_max(progress, Ordering::Relaxed);
    }

    pub(crate) fn group_progress(&self) -> u64 {
        self.0.group.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::sim::{Network, Simulation};
    use crate::transport::{Incoming, Tag, Transport, WaitState};
    use std::time::Duration;

    /// What rank 0 has published when its wait for rank 2 of `limit` in virtual time is over; for a frame of any of two
    /// ranks if `any`.
    fn published(limit: Duration, any: bool) -> Option<(WaitMode, Vec<usize>)> {
        let (before, simulation) = (Instant::now(), Simulation::new(Network::ordinary(3, 1), &[]));
        let mut ranks = simulation.ranks();
        std::thread::scope(|scope| {
            for (index, mut transport) in ranks.drain(1..).enumerate() {
                let clock = simulation.clock(index + 1);
                scope.spawn(move || {
                    clock.sleep(2 * limit);
                    transport.close();
                });
            }
            let mut transport = ranks.remove(0);
            let waiting = scope.spawn(move || {
                if any {
                    let mut wait = WaitState::new(transport.now(), limit).for_any();
                    let wanted = [false, true, true].map(|read| Interest { read, write: false });
                    while transport.wait(&mut wait, &wanted, false).is_ok() {}
                } else {
                    let tag = Tag { generation: 1, operation: 1, group: 0, tensor: 0 };
                    let frame = Incoming { from: 2, chunk: 0, bytes: &mut [0; 8] };
                    transport.transfer(tag, &[], &mut [frame], limit).unwrap_err();
                }
                transport.progress_counters().awaited_peers(before)
            });
            waiting.join().unwrap().map(|awaited| (awaited.mode, awaited.peers))
        })
    }

    #[test]
    fn a_transport_publishes_the_peers_of_a_long_wait() {
        assert_eq!(published(Duration::from_millis(80), false), None);
        assert_eq!(published(Duration::from_millis(500), false), Some((WaitMode::All, vec![2])));
        assert_eq!(published(Duration::from_millis(500), true), Some((WaitMode::Any, vec![1, 2])));
    }

    #[test]
    fn the_peers_of_a_wait_are_those_it_needs() {
        let counters = ProgressCounters::default();
        let before = Instant::now();
        assert_eq!(counters.awaited_peers(before), None);
        let (read, write) = (true, true);
        let sends = Interest { write, ..Interest::default() };
        let wanted =
            [Interest::default(), sends, Interest { read, ..Interest::default() }, Interest { read, write }];
        let peers = |since| counters.awaited_peers(since).map(|awaited| (awaited.mode, awaited.peers));
        counters.publish_awaited(WaitMode::All, &wanted);
        assert_eq!(peers(before), Some((WaitMode::All, vec![1, 2, 3])));
        counters.publish_awaited(WaitMode::Any, &wanted);
        assert_eq!(peers(before), Some((WaitMode::Any, vec![2, 3])));
        assert_eq!(peers(Instant::now() + Duration::from_secs(1)), None, "of an earlier operation");
        counters.publish_awaited(WaitMode::All, &[Interest::default()]);
        assert_eq!(peers(before), None, "the transport's own operation names no peer");
    }
}
