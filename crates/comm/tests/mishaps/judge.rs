//! Whether what the ranks report names who is behind it.

use super::scene::is_long;
use std::collections::BTreeSet;
use thalweg_comm::transport::sim::{Forgery, Kind};
use thalweg_comm::transport::{Fault, culprit};

/// How a run ended.
pub struct Outcome {
    /// What went wrong, in order.
    pub struck: Vec<Kind>,
    /// By rank, the fault that ended its work.
    pub ended: Vec<Option<Fault>>,
}

impl Outcome {
    /// The ranks that cannot tell what they saw.
    fn mute(&self) -> BTreeSet<usize> {
        let mute = self.struck.iter().filter_map(|kind| match kind {
            Kind::Kill { rank } => Some(*rank),
            Kind::Stop { rank, duration } if is_long(*duration) => Some(*rank),
            Kind::Livelock { rank } => Some(*rank),
            _ => None,
        });
        // Who had done all its work before has nothing to tell.
        mute.filter(|rank| self.ended[*rank].is_some()).collect()
    }

    /// What the others report.
    fn reports(&self) -> Vec<(usize, Fault)> {
        let mute = self.mute();
        let ended = self.ended.iter().enumerate().filter(|(rank, _)| !mute.contains(rank));
        ended.filter_map(|(rank, fault)| Some((rank, fault.clone()?))).collect()
    }

    /// Whether anybody was disturbed.
    pub fn is_disturbed(&self) -> bool {
        !self.reports().is_empty()
    }

    /// What is wrong with what they say, if anything: the culprit must be one that was struck. Two that lost nothing but
    /// their link may both be innocent; then one of them must have named the other.
    pub fn wrong(&self) -> Option<String> {
        let reports = self.reports();
        if reports.is_empty() {
            return None;
        }
        let found = culprit(&reports);
        let guilty = |rank: usize| {
            self.struck.iter().any(|kind| match kind {
                Kind::Kill { rank: one } | Kind::Livelock { rank: one } => *one == rank,
                Kind::Stop { rank: one, duration } => *one == rank && is_long(*duration),
                Kind::Cut { one, other } => [*one, *other].contains(&rank),
                Kind::CutOneWay { from, to } => [*from, *to].contains(&rank),
                Kind::Garbage { from, .. } | Kind::Forge { from, .. } => *from == rank,
                Kind::Slow { .. } | Kind::Join { .. } | Kind::Leave { .. } | Kind::Lie { .. } => false,
            })
        };
        let right = found.map_or_else(|| self.names_a_cut_link(&reports), guilty);
        let told = || reports.iter().map(|(rank, fault)| format!("\n  {rank}: {fault}")).collect::<String>();
        (!right).then(|| format!("{:?} went wrong, but {found:?} is named:{}", self.struck, told()))
    }

    fn names_a_cut_link(&self, reports: &[(usize, Fault)]) -> bool {
        let crosses = |one: usize, other: usize| {
            let names =
                |from, to: &usize| reports.iter().any(|(r, fault)| *r == from && fault.suspects.contains(to));
            names(one, &other) || names(other, &one)
        };
        self.struck.iter().any(|kind| match kind {
            Kind::Cut { one, other } | Kind::CutOneWay { from: one, to: other } => crosses(*one, *other),
            // All that follows is taken for the payload of that frame: the link carries nothing any more.
            Kind::Forge { from, to, forgery: Forgery::Length } => crosses(*from, *to),
            _ => false,
        })
    }
}
