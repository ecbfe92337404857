//! Checks that the reports of the ranks name a rank or link with an injected fault.

use super::scenario::is_long;
use std::collections::BTreeSet;
use thalweg_comm::transport::sim::SimulatedFaultKind;
use thalweg_comm::transport::{TransportError, culprit};

pub struct Outcome {
    /// In order of time.
    pub injected: Vec<SimulatedFaultKind>,
    /// By rank, the error that ended its work.
    pub ended: Vec<Option<TransportError>>,
}

impl Outcome {
    /// The ranks that cannot report.
    fn without_report(&self) -> BTreeSet<usize> {
        let ranks = self.injected.iter().filter_map(|kind| match kind {
            SimulatedFaultKind::Kill { rank } => Some(*rank),
            SimulatedFaultKind::Stop { rank, duration } if is_long(*duration) => Some(*rank),
            SimulatedFaultKind::Livelock { rank } => Some(*rank),
            _ => None,
        });
        // Unless they had done all their work before.
        ranks.filter(|rank| self.ended[*rank].is_some()).collect()
    }

    /// What the other ranks report.
    fn reports(&self) -> Vec<(usize, TransportError)> {
        let silent = self.without_report();
        let ended = self.ended.iter().enumerate().filter(|(rank, _)| !silent.contains(rank));
        ended.filter_map(|(rank, error)| Some((rank, error.clone()?))).collect()
    }

    /// Whether any rank reports an error.
    pub fn has_failed(&self) -> bool {
        !self.reports().is_empty()
    }

    /// What is wrong with the reports, if anything: the culprit must be a rank with an injected fault. If only a link
    /// failed, there may be no culprit; then one of its ranks must have named the other.
    pub fn wrong(&self) -> Option<String> {
        let reports = self.reports();
        if reports.is_empty() {
            return None;
        }
        let found = culprit(&reports);
        let is_faulty = |rank: usize| {
            self.injected.iter().any(|kind| match kind {
                SimulatedFaultKind::Kill { rank: one } | SimulatedFaultKind::Livelock { rank: one } => {
                    *one == rank
                }
                SimulatedFaultKind::Stop { rank: one, duration } => *one == rank && is_long(*duration),
                SimulatedFaultKind::Cut { one, other } => [*one, *other].contains(&rank),
                SimulatedFaultKind::CutOneWay { from, to } => [*from, *to].contains(&rank),
                SimulatedFaultKind::Garbage { from, .. } | SimulatedFaultKind::Forge { from, .. } => {
                    *from == rank
                }
                SimulatedFaultKind::Slow { .. }
                | SimulatedFaultKind::Join { .. }
                | SimulatedFaultKind::Leave { .. }
                | SimulatedFaultKind::FalseReport { .. } => false,
            })
        };
        let right = found.map_or_else(|| self.names_a_cut_link(&reports), is_faulty);
        let listed =
            || reports.iter().map(|(rank, error)| format!("\n  {rank}: {error}")).collect::<String>();
        (!right).then(|| format!("{:?} were injected, but {found:?} is named:{}", self.injected, listed()))
    }

    fn names_a_cut_link(&self, reports: &[(usize, TransportError)]) -> bool {
        let crosses = |one: usize, other: usize| {
            let names =
                |from, to: &usize| reports.iter().any(|(r, error)| *r == from && error.suspects.contains(to));
            names(one, &other) || names(other, &one)
        };
        self.injected.iter().any(|kind| match kind {
            SimulatedFaultKind::Cut { one, other }
            | SimulatedFaultKind::CutOneWay { from: one, to: other } => crosses(*one, *other),
            _ => false,
        })
    }
}
