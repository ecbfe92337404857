//! A quorum with backup workers (Chen et al. 2016; Abadi et al. 2016; Langer et al., section 3.3.1): a clock is closed with
//! the updates of all workers but the slowest `b`; theirs come too late and are dropped, or abandoned before they are
//! complete.

use super::{Admission, Clocks, Decision, Policy};
use thalweg_core::spec::scheduling::Late;

pub struct Quorum {
    /// `b`: the workers that a clock does not wait for.
    pub backups: usize,
    pub late: Late,
}

impl Policy for Quorum {
    fn may_begin(&self, clocks: &Clocks, worker: usize) -> Decision {
        let clock = clocks.of(worker);
        match clocks.closed() >= clock {
            true => Decision::Go,
            false => Decision::Wait(clocks.behind(clock).collect()),
        }
    }

    fn admit(&self, clocks: &Clocks, worker: usize) -> Admission {
        if clocks.of(worker) < clocks.closed() { Admission::Drop } else { Admission::Hold }
    }

    fn tells_late_workers(&self) -> bool {
        self.late == Late::Abandon
    }

    fn suffices(&self, arrived: usize, of: usize) -> bool {
        arrived >= of.saturating_sub(self.backups).max(1).min(of)
    }
}
