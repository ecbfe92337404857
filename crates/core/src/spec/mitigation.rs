//! `[strategy.mitigation]`: what a server does against the staleness of updates.

use super::section::section;
use super::setting::choice;
use super::{JobSpec, Refuse};

choice! {
    /// The learning rate of an update.
    UpdateRate {
        /// That of the schedule.
        Constant = "constant",
        /// The same, divided by the staleness of the update if that is above 1 (Zhang et al. 2016).
        Staleness = "staleness",
    }
}

section! {
    /// Mitigation of stale updates, which a server applies as they arrive. An explicit negative momentum is one of the optimizer: train.optimizer.momentum.
    "strategy.mitigation" MitigationSpec {
        /// The learning rate of an update.
        learning_rate: UpdateRate = UpdateRate::Constant;
        /// Delay compensation (Zheng et al. 2017): g + lambda * g * g * (w - the parameters that g was computed at); 0: none. The server keeps what each worker has read.
        delay_compensation: f64 = 0.0;
        /// With async, ssp and essp: steps that one worker computes alone, before the others begin.
        warm_start: u64 = 0;
    }
}

pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    let lambda = spec.mitigation.delay_compensation;
    if !(lambda >= 0.0 && (lambda as f32).is_finite()) {
        let reason = format!("must be at least 0 and finite in single precision, is {lambda}");
        refuse("strategy.mitigation.delay_compensation", reason);
    }
}
