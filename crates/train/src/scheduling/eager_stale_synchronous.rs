//! Eager stale synchronous parallel (Dai et al. 2015; Langer et al., section 3.3.4): the same bound, but the server sends the
//! parameters of a clock as soon as all workers have completed it, so that what workers read is fresher than the bound asks.

use super::{Admission, Clocks, Decision, Policy, StaleSynchronous};

pub struct EagerStaleSynchronous(pub StaleSynchronous);

impl Policy for EagerStaleSynchronous {
    fn may_begin(&self, clocks: &Clocks, worker: usize) -> Decision {
        self.0.may_begin(clocks, worker)
    }

    fn admit(&self, clocks: &Clocks, worker: usize) -> Admission {
        self.0.admit(clocks, worker)
    }

    fn reads(&self, clock: u64) -> u64 {
        self.0.reads(clock)
    }

    fn sends_ahead(&self) -> bool {
        true
    }
}
