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
#[derive(Clone)]
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

/// A message on its way.
pub(super) struct Envelope {
    pub from: usize,
    /// The coordinator that the sender was connected to.
    pub term: u32,
    pub message: MemberMessage,
}

/// A group for one of its members.
#[derive(Clone)]
pub(super) struct SimulatedRoster {
    /// When it arrives.
    pub at: Duration,
    pub view: Arc<MembershipView>,
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
    /// By time of arrival and serial number.
    messages: BTreeMap<(Duration, u64), Envelope>,
    /// Of the last message.
    serial: u64,
    /// The newest group of each rank.
    rosters: BTreeMap<usize, SimulatedRoster>,
    /// How the coordinators so far ended, by term: the current one has the next term. `None` for one that handed its
    /// role over.
    ended_coordinators: Vec<Option<Culprit>>,
    /// Whether no rank has taken over the role of the last one.
    is_vacant: bool,
}

impl SimulatedControl {
    pub fn new(rank_statuses: Vec<Arc<RankStatus>>) -> Arc<SimulatedControl> {
        Arc::new(SimulatedControl { rank_statuses, queues: Mutex::default() })
    }

    /// The endpoint of the coordinator comes after those of all ranks.
    fn coordinator(&self) -> usize {
        self.rank_statuses.len()
    }

    /// Sends a message to the coordinator of that term.
    pub fn send(&self, endpoint: &SimulatedEndpoint, from: usize, term: u32, message: MemberMessage) {
        let at = endpoint.clock().now() + endpoint.network().latency;
        let mut queues = self.lock();
        queues.serial += 1;
        let serial = queues.serial;
        queues.messages.insert((at, serial), Envelope { from, term, message });
        drop(queues);
        endpoint.wake_at(self.coordinator(), at);
    }

    /// The next message that has arrived by `now`, for whichever coordinator.
    pub fn receive(&self, now: Duration) -> Option<Envelope> {
        let mut queues = self.lock();
        let first = queues.messages.first_entry().filter(|message| message.key().0 <= now)?;
        Some(first.remove())
    }

    /// The term of the current coordinator; `None` while there is none.
    pub fn term(&self) -> Option<u32> {
        let queues = self.lock();
        (!queues.is_vacant).then_some(queues.ended_coordinators.len() as u32)
    }

    /// The term of the current coordinator, or of the next.
    pub fn latest_term(&self) -> u32 {
        self.lock().ended_coordinators.len() as u32
    }

    /// How the coordinators from that term on were lost.
    pub fn lost_since(&self, term: u32) -> Vec<Culprit> {
        self.lock().ended_coordinators.iter().skip(term as usize).flatten().cloned().collect()
    }

    /// The coordinator has ended; `lost` unless it handed its role over.
    pub fn vacate(&self, lost: Option<Culprit>) {
        let mut queues = self.lock();
        queues.ended_coordinators.push(lost);
        queues.is_vacant = true;
    }

    /// Another rank has taken over the role; returns its term.
    pub fn appoint(&self) -> u32 {
        self.lock().is_vacant = false;
        self.latest_term()
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

    /// The newest group of each rank that ever was in one.
    pub fn views(&self) -> Vec<(usize, Arc<MembershipView>)> {
        self.lock().rosters.iter().map(|(rank, roster)| (*rank, Arc::clone(&roster.view))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
