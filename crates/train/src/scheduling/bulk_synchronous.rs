//! Bulk synchronous parallel: a clock begins when all workers have completed the last one (Valiant 1990; Langer et al.,
//! section 3.3.1).

use super::{Admission, Clocks, Decision, Policy};

pub struct BulkSynchronous;

impl Policy for BulkSynchronous {
    fn may_begin(&self, clocks: &Clocks, worker: usize) -> Decision {
        let missing: Vec<usize> = clocks.behind(clocks.of(worker)).collect();
        if missing.is_empty() { Decision::Go } else { Decision::Wait(missing) }
    }

    fn admit(&self, _: &Clocks, _: usize) -> Admission {
        Admission::Hold
    }
}
