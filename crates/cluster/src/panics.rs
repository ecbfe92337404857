//! Turns a panic of the program into an error with message and location, so that all ranks get it.

use crate::resource_limits;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use thalweg_core::{Error, Result};

/// Message and location of the last guarded panic.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

thread_local! {
    /// Whether a panic of this thread becomes an error.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Installs a panic hook that keeps message and location of guarded panics. Other panics are printed as usual.
pub(crate) fn keep_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !GUARDED.get() {
            return usual(panic);
        }
        let location = panic
            .location()
            .map_or(String::new(), |location| format!(" ({}:{})", location.file(), location.line()));
        let message = panic.payload_as_str().unwrap_or("no reason given");
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{message}{location}"));
    }));
}

/// Runs a closure; a panic becomes its error.
pub(crate) fn guarded<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(false);
    result.unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Error {
    let message = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    // The standard library's message: not a bug, but an exhausted machine or limit.
    if message.starts_with("failed to spawn thread") {
        return resource_limits::explain_thread("cannot go on");
    }
    Error::internal(format!("the program panicked: {message}"))
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
