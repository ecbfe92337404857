//! A known bug that a test switches on, to show that simulated losses find it. It exists only with the feature
//! `known-bugs`, which tests enable; no job can reach it.

#[cfg(feature = "known-bugs")]
thread_local! {
    static REPEATS_MESSAGES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Makes the rank of this thread forget, in the next generation, which messages of the last one it has received: their
/// sender sends those again that it has not seen acknowledged.
#[cfg(feature = "known-bugs")]
pub fn repeat_messages() {
    REPEATS_MESSAGES.set(true);
}

#[cfg(feature = "known-bugs")]
pub(super) fn repeats_messages() -> bool {
    REPEATS_MESSAGES.get()
}

#[cfg(not(feature = "known-bugs"))]
pub(super) const fn repeats_messages() -> bool {
    false
}
