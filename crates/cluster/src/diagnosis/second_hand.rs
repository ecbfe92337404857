//! Where reports of lost ranks come from: ranks forward the reports of others, and a member may report falsely.

use super::{Diagnosis, Evidence};
use crate::conflict;
use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_comm::transport::error::REPORTED_LOST;
use thalweg_core::Error;

/// Whether a rank only forwards another's report: `Cause::Reported` of the transports.
pub(super) fn is_second_hand(error: &Error) -> bool {
    error.culprit.as_ref().is_some_and(|culprit| culprit.cause.starts_with(REPORTED_LOST))
}

impl Diagnosis {
    /// The witness got its report about the accused rank from `source`.
    pub fn add_source(&mut self, witness: usize, source: usize, accused: usize) {
        self.sources.insert((witness, accused), source);
    }

    /// The first rank of the chain of sources of a report.
    fn origin(&self, witness: usize, accused: usize) -> usize {
        let next = |rank: &usize| self.sources.get(&(*rank, accused)).copied();
        // The limit ends cycles, where two ranks name each other as the source.
        std::iter::successors(Some(witness), next).take(self.sources.len() + 1).last().unwrap_or(witness)
    }

    /// The ranks from which reports that this rank was lost originate. No rank is a witness against itself.
    pub fn witnesses(&self, accused: usize) -> BTreeSet<usize> {
        let against = |(_, evidence): &(Duration, Evidence)| match evidence {
            Evidence::Lost { rank, error, .. } => (error.culprit.as_ref()?.rank == accused).then_some(*rank),
            _ => None,
        };
        let origins = self.evidence.iter().filter_map(against).map(|witness| self.origin(witness, accused));
        origins.filter(|witness| *witness != accused).collect()
    }

    /// The only member without a report, if all others report a late rank although none had been in its operation for half
    /// of the deadline: then only a timeout announced by that member can have ended their operations.
    pub fn premature_timeout_source(
        &self,
        members: impl Iterator<Item = usize>,
        deadline: Duration,
    ) -> Option<usize> {
        let early = |(_, evidence): &(Duration, Evidence)| match evidence {
            Evidence::Lost { error, heartbeat, .. } => {
                conflict::is_late(error) && heartbeat.since < deadline.as_secs_f64() / 2.0
            }
            _ => false,
        };
        let mut unreported = members.filter(|member| !self.has_reported(*member));
        let only = unreported.next().filter(|_| unreported.next().is_none());
        only.filter(|_| self.evidence.len() > 1 && self.evidence.iter().all(early))
    }

    /// Pairs of witness and accused that cannot both be right: see [`conflict`].
    pub fn conflicts(&self) -> Vec<(usize, usize)> {
        let pair = |(_, evidence): &(Duration, Evidence)| match evidence {
            Evidence::Lost { rank, error, .. } if conflict::is_conflict(error) => {
                Some((*rank, error.culprit.as_ref()?.rank))
            }
            _ => None,
        };
        self.evidence.iter().filter_map(pair).collect()
    }
}
