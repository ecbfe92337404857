//! Control messages between simulated ranks and their coordinator: delivered after the network's latency.

use crate::membership::MembershipView;
use crate::rank_status::RankStatus;
use crate::rendezvous::message::Control;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thalweg_comm::transport::sim::SimulatedEndpoint;
use thalweg_core::Culprit;

/// A message of a rank to the coordinator.
pub(super) enum MemberMessage {
    /// A rank of the first group is ready.
    Start,
    /// A new rank is ready.
    Join,
    /// A message that real ranks send, too.
    Control(Control),
    /// The thread of the rank has ended.
    Closed,
}

/// A group for one of its members.
#[derive(Clone)]
pub(super) struct SimulatedRoster {
    /// When it arrives.
    pub at: Duration,
    pub view: MembershipView,
    pub lost: Vec<Culprit>,
}

/// The control connections of all ranks.
pub(super) struct SimulatedControl {
    /// By rank.
    pub rank_statuses: Vec<Arc<RankStatus>>,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    /// Sender and message, by time of arrival and serial number.
    messages: BTreeMap<(Duration, u64), (usize, MemberMessage)>,
    /// Of the last message.
    serial: u64,
    /// The newest group of each rank.
    rosters: BTreeMap<usize, SimulatedRoster>,
}

impl SimulatedControl {
    pub fn new(rank_statuses: Vec<Arc<RankStatus>>) -> Arc<SimulatedControl> {
        Arc::new(SimulatedControl { rank_statuses, queues: Mutex::default() })
    }

    /// The endpoint of the coordinator comes after those of all ranks.
    fn coordinator(&self) -> usize {
        self.rank_statuses.len()
    }

    /// Sends a message to the coordinator.
    pub fn send(&self, endpoint: &SimulatedEndpoint, rank: usize, message: MemberMessage) {
        let at = endpoint.clock().now() + endpoint.network().latency;
        let mut queues = self.lock();
        queues.serial += 1;
        let serial = queues.serial;
        queues.messages.insert((at, serial), (rank, message));
        drop(queues);
        endpoint.wake_at(self.coordinator(), at);
    }

    /// The coordinator's next message that has arrived by `now`.
    pub fn receive(&self, now: Duration) -> Option<(usize, MemberMessage)> {
        let mut queues = self.lock();
        let first = queues.messages.first_entry().filter(|message| message.key().0 <= now)?;
        Some(first.remove())
    }

    /// Sends a group to one of its members.
    pub fn send_roster(&self, rank: usize, roster: SimulatedRoster) {
        self.lock().rosters.insert(rank, roster);
    }

    /// The group after that generation, if it includes the rank and has arrived by `now`.
    pub fn roster(&self, rank: usize, after: u32, now: Duration) -> Option<SimulatedRoster> {
        let newer = |roster: &&SimulatedRoster| roster.view.generation > after && roster.at <= now;
        self.lock().rosters.get(&rank).filter(newer).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
