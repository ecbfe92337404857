//! Progress counters that a rank's transport shares with the other threads of its process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often the transport moved data and polled, and the progress of the rest of the group.
#[derive(Clone, Debug, Default)]
pub struct ProgressCounters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    moves: AtomicU64,
    polls: AtomicU64,
    group: AtomicU64,
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

    /// Records the group's progress. While it grows, the deadline of a wait of this rank is extended.
    pub fn set_group_progress(&self, progress: u64) {
        self.0.group.fetch_max(progress, Ordering::Relaxed);
    }

    pub(crate) fn group_progress(&self) -> u64 {
        self.0.group.load(Ordering::Relaxed)
    }
}
