//! Where reports of lost ranks come from: ranks forward the reports of others, and a member may report falsely, or name a
//! source that reported nothing.

use super::{Diagnosis, Evidence};
use crate::conflict::{self, Trust};
use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_comm::transport::error::REPORTED_LOST;
use thalweg_core::Error;

/// Whether a rank only forwards another's report: `Cause::Reported` of the transports.
pub(super) fn is_second_hand(error: &Error) -> bool {
    error.culprit.as_ref().is_some_and(|culprit| culprit.cause.starts_with(REPORTED_LOST))
}

/// A report of a loss that its source denies: it has not reported the loss itself.
pub struct UnconfirmedReport {
    /// The only rank that names the source; `None` if several do.
    pub reporter: Option<usize>,
    pub source: usize,
}

impl UnconfirmedReport {
    /// The member that reports falsely: the source if several others name it, else the less trusted of both. A source is
    /// not responsible on the word of one other member.
    pub fn responsible(&self, trust: impl Fn(usize) -> Trust) -> usize {
        match self.reporter {
            Some(reporter) if trust(reporter) <= trust(self.source) => reporter,
            _ => self.source,
        }
    }
}

impl Diagnosis {
    /// The witness got its report about the accused rank from `source`.
    pub fn add_source(&mut self, witness: usize, source: usize, accused: usize) {
        self.sources.insert((witness, accused), source);
    }

    /// Whether a rank reports that this rank was lost.
    fn accuses(&self, witness: usize, accused: usize) -> bool {
        self.evidence.iter().any(|(_, evidence)| match evidence {
            Evidence::Lost { rank, error, .. } => {
                *rank == witness && error.culprit.as_ref().is_some_and(|culprit| culprit.rank == accused)
            }
            _ => false,
        })
    }

    /// Whether a source is responsible for the reports of others: it reported the same itself, as a rank that sends a
    /// report to others does, or several ranks name it. One rank alone may name a source that sent nothing.
    fn is_confirmed(&self, source: usize, accused: usize) -> bool {
        let names = |((_, about), from): &(&(usize, usize), &usize)| *about == accused && **from == source;
        self.accuses(source, accused) || self.sources.iter().filter(names).count() > 1
    }

    /// The first rank of the chain of confirmed sources of a report.
    fn origin(&self, witness: usize, accused: usize) -> usize {
        let source = |rank: &usize| self.sources.get(&(*rank, accused)).copied();
        let next = |rank: &usize| source(rank).filter(|source| self.is_confirmed(*source, accused));
        // The limit ends cycles, where two ranks name each other as the source.
        std::iter::successors(Some(witness), next).take(self.sources.len() + 1).last().unwrap_or(witness)
    }

    /// The report that this rank was lost, if no rank has found it lost itself.
    pub fn unconfirmed_report(&self, accused: usize) -> Option<UnconfirmedReport> {
        let mut origins = self.origins(accused).map(|origin| {
            match (self.sources.get(&(origin, accused)), self.accuses(origin, accused)) {
                (Some(&source), _) => Some(UnconfirmedReport { reporter: Some(origin), source }),
                (None, false) => Some(UnconfirmedReport { reporter: None, source: origin }),
                (None, true) => None,
            }
        });
        let first = origins.next()?;
        first.filter(|_| origins.all(|origin| origin.is_some()))
    }

    /// The ranks from which reports that this rank was lost originate.
    fn origins(&self, accused: usize) -> impl Iterator<Item = usize> {
        let against = move |(_, evidence): &(Duration, Evidence)| match evidence {
            Evidence::Lost { rank, error, .. } => (error.culprit.as_ref()?.rank == accused).then_some(*rank),
            _ => None,
        };
        self.evidence.iter().filter_map(against).map(move |witness| self.origin(witness, accused))
    }

    /// The same without the rank itself: no rank is a witness against itself.
    pub fn witnesses(&self, accused: usize) -> BTreeSet<usize> {
        self.origins(accused).filter(|witness| *witness != accused).collect()
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
