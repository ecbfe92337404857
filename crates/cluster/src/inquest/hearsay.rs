//! Whose word it is that a rank was lost: ranks pass on what they hear from others, and a member may lie.

use super::{Evidence, Inquest};
use crate::dispute;
use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_core::Error;

/// Whether a rank only passes on what another said: `Cause::Reported` in the transports' words.
pub(super) fn is_one(error: &Error) -> bool {
    error.culprit.as_ref().is_some_and(|culprit| culprit.cause.starts_with("was lost, says rank "))
}

impl Inquest {
    /// This rank has it from that one that another was lost.
    pub fn trace(&mut self, witness: usize, source: usize, accused: usize) {
        self.sources.insert((witness, accused), source);
    }

    /// Who said first that a rank was lost, of those from whom a rank has it.
    fn origin(&self, witness: usize, accused: usize) -> usize {
        let next = |rank: &usize| self.sources.get(&(*rank, accused)).copied();
        // Two that have it from each other make no circle of it.
        std::iter::successors(Some(witness), next).take(self.sources.len() + 1).last().unwrap_or(witness)
    }

    /// Who says that it lost this rank, and not only that another did. No rank is a witness against itself.
    pub fn witnesses(&self, accused: usize) -> BTreeSet<usize> {
        let against = |(_, evidence): &(Duration, Evidence)| match evidence {
            Evidence::Lost { rank, error, .. } => (error.culprit.as_ref()?.rank == accused).then_some(*rank),
            _ => None,
        };
        let seen = self.evidence.iter().filter_map(against).map(|witness| self.origin(witness, accused));
        seen.filter(|witness| *witness != accused).collect()
    }

    /// The only one of these members that has said nothing while all others say that one of them is late, though none of them
    /// was in its operation for half as long as it may be: only another's word that it gave up can have ended them.
    pub fn hasty(&self, members: impl Iterator<Item = usize>, deadline: Duration) -> Option<usize> {
        let early = |(_, evidence): &(Duration, Evidence)| match evidence {
            Evidence::Lost { error, pulse, .. } => {
                dispute::is_late(error) && pulse.since < deadline.as_secs_f64() / 2.0
            }
            _ => false,
        };
        let mut silent = members.filter(|member| !self.has_spoken(*member));
        let only = silent.next().filter(|_| silent.next().is_none());
        only.filter(|_| self.evidence.len() > 1 && self.evidence.iter().all(early))
    }

    /// Who is at odds with whom, the witness first: see [`dispute`].
    pub fn disputes(&self) -> Vec<(usize, usize)> {
        let pair = |(_, evidence): &(Duration, Evidence)| match evidence {
            Evidence::Lost { rank, error, .. } if dispute::is_one(error) => {
                Some((*rank, error.culprit.as_ref()?.rank))
            }
            _ => None,
        };
        self.evidence.iter().filter_map(pair).collect()
    }
}
