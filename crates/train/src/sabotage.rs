//! A bug to order, for the test that shows that simulated faults would find it. Nothing a job says reaches it.

use std::cell::Cell;

thread_local! {
    static SKIPS_AGREEMENT: Cell<bool> = const { Cell::new(false) };
}

/// From now on the rank of this thread goes on from its own step when its group is formed anew, not from the furthest.
pub fn skip_agreement() {
    SKIPS_AGREEMENT.set(true);
}

pub(crate) fn skips_agreement() -> bool {
    SKIPS_AGREEMENT.get()
}
