//! The progress counter of the rank that runs on this thread; heartbeats report it.
//!
//! Code counts each finished unit of work: a row block read, an operator computed. The unit is arbitrary: the counter has
//! to grow while the rank works and stay constant otherwise. All work is finite, so the count of an operation is bounded
//! by its size.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static COUNTER: RefCell<Option<Arc<AtomicU64>>> = const { RefCell::new(None) };
}

/// Sets the counter of this thread.
pub fn count_into(counter: Arc<AtomicU64>) {
    COUNTER.with(|current| *current.borrow_mut() = Some(counter));
}

/// Counts one finished unit of work; a no-op on threads without a counter.
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
    fn each_thread_has_its_own_counter() {
        advance();
        let counter = Arc::new(AtomicU64::new(0));
        count_into(Arc::clone(&counter));
        advance();
        std::thread::spawn(advance).join().unwrap();
        assert_eq!(counter.load(Ordering::Relaxed), 1);
    }
}
