//! What a rank does while it waits for another, before it sleeps.
//!
//! Being woken costs some 50 microseconds, looking again less than one. So a rank looks again and again for about a
//! millisecond, as long as it takes no core away from the rank it waits for: after a few looks it offers its core between
//! any two of them, for others may need it of whom it knows nothing; with more ranks than cores it does so at once and
//! soon sleeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

/// Threads that each rank computes with.
static THREADS: AtomicUsize = AtomicUsize::new(1);

/// Says how many threads each rank of this host computes with: those of a rank that is waited for need their cores, too.
/// To be said before the ranks of this process are connected.
pub fn declare_threads(threads: usize) {
    THREADS.store(threads.max(1), Ordering::Relaxed);
}

/// How long to look before sleeping.
///
/// Which ranks share a host is told by who counts them; see [`Patience::among`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Looks without a pause.
    looks: u32,
    /// Then looks with the core offered to others in between.
    offers: u32,
}

impl Patience {
    /// Sleep at once.
    pub const NONE: Patience = Patience { looks: 0, offers: 0 };

    /// For a rank that shares this host with so many, itself included.
    pub fn among(ranks: usize) -> Patience {
        if is_crowded(ranks) {
            Patience { looks: 0, offers: 8 }
        } else {
            Patience { looks: 20, offers: 1000 }
        }
    }

    /// The same for one that waits for others' writes to memory: a look costs no system call, and what is awaited is
    /// often only a switch of threads away, so that it is worth looking for longer. Soon the core is offered in any case:
    /// strangers may be busy on the others, and then the rank that is waited for stands behind this very one.
    pub fn in_memory(ranks: usize) -> Patience {
        if is_crowded(ranks) {
            Patience { looks: 0, offers: 250 }
        } else {
            Patience { looks: 5, offers: 2000 }
        }
    }

    /// Passes the time after the `idle`th look in vain; false when it is time to sleep.
    pub fn pass(self, idle: u32) -> bool {
        if idle <= self.looks {
            std::hint::spin_loop();
        } else if idle - self.looks <= self.offers {
            std::thread::yield_now();
        } else {
            return false;
        }
        true
    }
}

/// Whether so many ranks, with all their threads, are more than this process has cores; its affinity and the quota of its
/// group count.
pub(crate) fn is_crowded(ranks: usize) -> bool {
    let cores = available_parallelism().map_or(1, usize::from);
    exceed(ranks, THREADS.load(Ordering::Relaxed), cores)
}

fn exceed(ranks: usize, threads: usize, cores: usize) -> bool {
    ranks.saturating_mul(threads) > cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends() {
        let patience = Patience::among(1);
        assert!(patience.pass(1) && !patience.pass(patience.looks + patience.offers + 1));
        assert!(!Patience::NONE.pass(1));
        assert_eq!(Patience::among(usize::MAX).looks, 0);
    }

    #[test]
    fn the_threads_of_all_ranks_must_fit_the_cores() {
        assert!(!exceed(2, 2, 4) && exceed(2, 3, 4) && exceed(5, 1, 4) && exceed(usize::MAX, 2, 4));
    }
}
