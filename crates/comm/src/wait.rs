//! What a rank does while it waits for another, before it sleeps: spin, yield, or neither.
//!
//! A wake-up costs about 50 microseconds, a poll less than one. So a rank polls for about a millisecond, as long as
//! that takes no core from the rank it waits for: after a few polls it yields its core between any two, because other
//! processes may need it; with more ranks than cores it yields from the first poll on and soon sleeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

static THREADS_PER_RANK: AtomicUsize = AtomicUsize::new(1);

/// Sets the number of threads that each rank of this host computes with: they need cores, too. To be called before
/// the ranks of this process are connected.
pub fn set_threads_per_rank(threads: usize) {
    THREADS_PER_RANK.store(threads.max(1), Ordering::Relaxed);
}

/// How often to poll before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinPolicy {
    /// Polls without a pause.
    spins: u32,
    /// Then polls with a yield in between.
    yields: u32,
}

impl SpinPolicy {
    /// Sleep at once.
    pub const NONE: SpinPolicy = SpinPolicy { spins: 0, yields: 0 };

    /// For a rank on a host with this many ranks, itself included, where a poll is a system call.
    pub fn for_ranks(ranks: usize) -> SpinPolicy {
        if is_oversubscribed(ranks) {
            SpinPolicy { spins: 0, yields: 8 }
        } else {
            SpinPolicy { spins: 20, yields: 1000 }
        }
    }

    /// For a rank that waits for writes to shared memory. A poll is no system call, and the awaited write is often
    /// only a context switch away, so that longer polling pays. It yields early in any case: other processes may be
    /// busy on the remaining cores, and then the awaited rank waits for the core of this one.
    pub fn for_shared_memory(ranks: usize) -> SpinPolicy {
        if is_oversubscribed(ranks) {
            SpinPolicy { spins: 0, yields: 250 }
        } else {
            SpinPolicy { spins: 5, yields: 2000 }
        }
    }

    /// Spins or yields after the `idle`th poll without progress; false when it is time to sleep.
    pub fn pause(self, idle: u32) -> bool {
        if idle <= self.spins {
            std::hint::spin_loop();
        } else if idle - self.spins <= self.yields {
            std::thread::yield_now();
        } else {
            return false;
        }
        true
    }
}

/// Whether this many ranks, with all their threads, are more than the cores of this process; CPU affinity and the
/// quota of its control group count.
pub(crate) fn is_oversubscribed(ranks: usize) -> bool {
    let cores = available_parallelism().map_or(1, usize::from);
    exceed(ranks, THREADS_PER_RANK.load(Ordering::Relaxed), cores)
}

fn exceed(ranks: usize, threads: usize, cores: usize) -> bool {
    ranks.saturating_mul(threads) > cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_ends() {
        let policy = SpinPolicy::for_ranks(1);
        assert!(policy.pause(1) && !policy.pause(policy.spins + policy.yields + 1));
        assert!(!SpinPolicy::NONE.pause(1));
        assert_eq!(SpinPolicy::for_ranks(usize::MAX).spins, 0);
    }

    #[test]
    fn the_threads_of_all_ranks_must_fit_the_cores() {
        assert!(!exceed(2, 2, 4) && exceed(2, 3, 4) && exceed(5, 1, 4) && exceed(usize::MAX, 2, 4));
    }
}
