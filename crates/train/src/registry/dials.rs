//! The dials by which a job chooses its strategy.

use thalweg_core::JobSpec;
use thalweg_core::spec::merge::MergeKind;
use thalweg_core::spec::strategy::{Exchange, Optimization, Scheduling};

/// The settings that choose a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dials {
    pub optimization: Optimization,
    pub scheduling: Scheduling,
    pub exchange: Exchange,
    pub merge: MergeKind,
}

impl Dials {
    pub fn of(job: &JobSpec) -> Dials {
        Dials {
            optimization: job.strategy.optimization,
            scheduling: job.scheduling.kind,
            exchange: job.exchange.kind,
            merge: job.merge.kind,
        }
    }

    /// Keys and values. Later keys say more about what a job is for.
    pub(super) fn named(self) -> [(&'static str, &'static str); 4] {
        [
            ("strategy.optimization", self.optimization.name()),
            ("strategy.scheduling.kind", self.scheduling.name()),
            ("strategy.exchange.kind", self.exchange.name()),
            ("strategy.merge.kind", self.merge.name()),
        ]
    }
}
