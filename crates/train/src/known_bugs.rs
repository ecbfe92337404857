//! Known bugs that tests switch on, to show that the simulated faults find them. They exist only with the feature
//! `known-bugs`, which the tests of this crate enable; no job can reach them.

/// What a rank does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBug {
    /// It resumes from its own step after a regroup instead of the furthest one.
    SkipsAgreement,
    /// As a server, it does not hand out again the lease of one lost worker.
    LosesLeases,
    /// As a server, it forgets a gradient that it holds.
    DropsHeld,
    /// As a server, it applies an update again whose lease has been applied.
    AppliesRepeats,
    /// As a server, it calls a meeting although the lease of a lost worker is not computed again.
    MeetsEarly,
}

#[cfg(feature = "known-bugs")]
thread_local! {
    static BUG: std::cell::Cell<Option<KnownBug>> = const { std::cell::Cell::new(None) };
}

/// Gives the rank of this thread the bug.
#[cfg(feature = "known-bugs")]
pub fn set(bug: KnownBug) {
    BUG.set(Some(bug));
}

#[cfg(feature = "known-bugs")]
fn has(bug: KnownBug) -> bool {
    BUG.get() == Some(bug)
}

#[cfg(not(feature = "known-bugs"))]
const fn has(_: KnownBug) -> bool {
    false
}

pub(crate) fn skips_agreement() -> bool {
    has(KnownBug::SkipsAgreement)
}

pub(crate) fn loses_leases() -> bool {
    has(KnownBug::LosesLeases)
}

pub(crate) fn drops_held() -> bool {
    has(KnownBug::DropsHeld)
}

pub(crate) fn meets_early() -> bool {
    has(KnownBug::MeetsEarly)
}

pub(crate) fn applies_repeats() -> bool {
    has(KnownBug::AppliesRepeats)
}
