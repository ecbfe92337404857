//! A known bug that a test switches on, to show that the simulated faults find it. It exists only with the feature
//! `known-bugs`, which the tests of this crate enable; no job can reach it.

#[cfg(feature = "known-bugs")]
thread_local! {
    static SKIPS_AGREEMENT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Makes the rank of this thread resume from its own step after a regroup instead of the furthest one.
#[cfg(feature = "known-bugs")]
pub fn skip_agreement() {
    SKIPS_AGREEMENT.set(true);
}

#[cfg(feature = "known-bugs")]
pub(crate) fn skips_agreement() -> bool {
    SKIPS_AGREEMENT.get()
}

#[cfg(not(feature = "known-bugs"))]
pub(crate) const fn skips_agreement() -> bool {
    false
}
