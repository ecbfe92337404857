//! What a rank's transport and the other threads of its process tell each other about progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often the transport has moved something, and whether the rest of the group moves.
#[derive(Clone, Debug, Default)]
pub struct Activity(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    moved: AtomicU64,
    looks: AtomicU64,
    group: AtomicU64,
}

impl Activity {
    /// Grows whenever bytes moved or a phase in shared memory ended, and stands still while this rank waits. What an operation
    /// adds to it is bounded by the operation's size.
    pub fn moved(&self) -> u64 {
        self.0.moved.load(Ordering::Relaxed)
    }

    /// Something moved.
    pub(crate) fn advance(&self) {
        self.0.moved.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the rank has looked, in a wait for others, whether it can go on: one that waits does, one that is held does
    /// not.
    pub fn looks(&self) -> u64 {
        self.0.looks.load(Ordering::Relaxed)
    }

    /// One look. Only the rank's own thread does, so that it need not be one step.
    pub(crate) fn look(&self) {
        self.0.looks.store(self.looks() + 1, Ordering::Relaxed);
    }

    /// The group's progress as this rank was last told: while it grows, a wait of this rank begins anew.
    pub fn tell_group(&self, progress: u64) {
        self.0.group.fetch_max(progress, Ordering::Relaxed);
    }

    /// What was last told of the group.
    pub(crate) fn group(&self) -> u64 {
        self.0.group.load(Ordering::Relaxed)
    }
}
