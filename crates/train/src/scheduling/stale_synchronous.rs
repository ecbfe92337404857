//! Stale synchronous parallel (Ho et al. 2013; Langer et al., section 3.3.4): a worker that has completed `c` clocks may
//! begin the next if every worker has completed at least `c - s`. With `s = 0` it is bulk synchronous, with an infinite `s`
//! asynchronous.

use super::{Admission, Clocks, Decision, Policy};

pub struct StaleSynchronous {
    /// `s`: the clocks by which the fastest worker may be ahead of the slowest.
    pub staleness: u64,
    pub admission: Admission,
}

impl Policy for StaleSynchronous {
    fn may_begin(&self, clocks: &Clocks, worker: usize) -> Decision {
        let missing: Vec<usize> = clocks.behind(self.reads(clocks.of(worker))).collect();
        if missing.is_empty() { Decision::Go } else { Decision::Wait(missing) }
    }

    fn admit(&self, _: &Clocks, _: usize) -> Admission {
        self.admission
    }

    fn reads(&self, clock: u64) -> u64 {
        clock.saturating_sub(self.staleness)
    }
}
