//! A panic of the program becomes an error like any other: with its words and its place, told to all ranks.

use crate::exhaustion;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use thalweg_core::{Error, Result};

/// Where the last panic happened and what it said.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

thread_local! {
    /// Whether a panic of this thread becomes an error.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the words and place of a guarded panic for the error that is made of it. All others are printed as ever.
pub(crate) fn keep_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !GUARDED.get() {
            return usual(panic);
        }
        let place =
            panic.location().map_or(String::new(), |place| format!(" ({}:{})", place.file(), place.line()));
        let words = panic.payload_as_str().unwrap_or("no reason given");
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{words}{place}"));
    }));
}

/// Does something that may panic; then the panic is the error.
pub(crate) fn guarded<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(false);
    result.unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Error {
    let words = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    // The standard library's words: no bug, but a machine or a limit that has nothing left.
    if words.starts_with("failed to spawn thread") {
        return exhaustion::explain_thread("cannot go on");
    }
    Error::internal(format!("the program panicked: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_is_no_bug() {
        keep_panics();
        let error = guarded::<()>(|| panic!("failed to spawn thread: Os {{ code: 11 }}")).unwrap_err();
        assert!(error.message.contains("no thread can be started"), "{error}");
        assert!(!error.hint.unwrap().contains("bug"));
        assert!(guarded::<()>(|| panic!("else")).unwrap_err().hint.unwrap().contains("bug"));
    }
}
