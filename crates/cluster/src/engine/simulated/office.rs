//! What simulated ranks and the one who leads their group have between them: letters that take a moment, and answers.

use crate::beacon::Beacon;
use crate::membership::Formed;
use crate::rendezvous::message::Control;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thalweg_comm::transport::sim::Seat;
use thalweg_core::Culprit;

/// What a rank has to say.
pub(super) enum Said {
    /// It is there, from the beginning.
    First,
    /// It is new, and ready to work.
    Come,
    /// Anything that real ranks say, too.
    Word(Control),
    /// Its thread has ended.
    Closed,
}

/// The answer: a group.
#[derive(Clone)]
pub(super) struct Roster {
    /// When it arrives.
    pub at: Duration,
    pub formed: Formed,
    pub lost: Vec<Culprit>,
}

/// Where both sides leave what the other is to find.
pub(super) struct Office {
    /// Of every rank.
    pub beacons: Vec<Arc<Beacon>>,
    desk: Mutex<Desk>,
}

#[derive(Default)]
struct Desk {
    /// By arrival, and in the order in which they were sent.
    letters: BTreeMap<(Duration, u64), (usize, Said)>,
    sent: u64,
    /// The newest one for each rank.
    rosters: BTreeMap<usize, Roster>,
}

impl Office {
    pub fn new(ranks: usize) -> Arc<Office> {
        Arc::new(Office { beacons: (0..ranks).map(|_| Beacon::new()).collect(), desk: Mutex::default() })
    }

    /// Whoever leads sits behind all ranks.
    fn leader(&self) -> usize {
        self.beacons.len()
    }

    /// A rank writes to whoever leads.
    pub fn write(&self, seat: &Seat, rank: usize, said: Said) {
        let at = seat.clock().now() + seat.network().latency;
        let mut desk = self.lock();
        desk.sent += 1;
        let serial = desk.sent;
        desk.letters.insert((at, serial), (rank, said));
        drop(desk);
        seat.ring(self.leader(), at);
    }

    /// The next letter that has arrived.
    pub fn open(&self, now: Duration) -> Option<(usize, Said)> {
        let mut desk = self.lock();
        let first = desk.letters.first_entry().filter(|letter| letter.key().0 <= now)?;
        Some(first.remove())
    }

    /// Leaves a group for one of its members to find.
    pub fn answer(&self, rank: usize, roster: Roster) {
        self.lock().rosters.insert(rank, roster);
    }

    /// The group after that generation, if the rank is in one and has heard of it by now.
    pub fn roster(&self, rank: usize, after: u32, now: Duration) -> Option<Roster> {
        let newer = |roster: &&Roster| roster.formed.generation > after && roster.at <= now;
        self.lock().rosters.get(&rank).filter(newer).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
