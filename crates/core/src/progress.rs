//! Progress of the rank that this thread runs: units of work done, for its heartbeat to prove.
//!
//! Whoever works counts what it has finished: a row block that was read, an operator that was computed. The unit does not
//! matter, only that the count grows while work is done and stands still otherwise. All work is finite, so the count of an
//! operation is bounded by its size.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static COUNTER: RefCell<Option<Arc<AtomicU64>>> = const { RefCell::new(None) };
}

/// From now on work of this thread is counted here.
pub fn count_into(counter: Arc<AtomicU64>) {
    COUNTER.with(|current| *current.borrow_mut() = Some(counter));
}

/// A unit of work is done. Nothing where nobody counts.
pub fn advance() {
    COUNTER.with(|current| {
        if let Some(counter) = &*current.borrow() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_counts_its_own_work() {
        advance();
        let counter = Arc::new(AtomicU64::new(0));
        count_into(Arc::clone(&counter));
        advance();
        std::thread::spawn(advance).join().unwrap();
        assert_eq!(counter.load(Ordering::Relaxed), 1);
    }
}
