//! Generations of a group, what changed between them, and how a rank gets into the next one.

use crate::hosts::Hosts;
use crate::membership::{MemberPosition, Position};
use crate::rendezvous::message::Control;
use thalweg_comm::host::LocalPeers;
use thalweg_comm::transport::Transport;
use thalweg_core::event::Heartbeat;
use thalweg_core::{Culprit, Result};

/// A generation of the group, as one of its members sees it.
pub struct Generation {
    pub number: u32,
    pub transport: Box<dyn Transport>,
    /// Peers with shared memory, by rank.
    pub local_peers: LocalPeers,
    /// Transport named in the report.
    pub carrier: &'static str,
    /// Member ids by rank.
    pub member_ids: Vec<usize>,
    pub hosts: Hosts,
    /// Changes since the last generation.
    pub change: MembershipChange,
}

/// What happened between two generations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MembershipChange {
    /// The members' reports, by rank.
    pub positions: Vec<MemberPosition>,
    /// How members were lost.
    pub lost: Vec<Culprit>,
    /// Ids of new members.
    pub joined: Vec<usize>,
    /// Ids of members that left in good order.
    pub left: Vec<usize>,
    /// By rank, whether its events reach the launcher that writes the results; empty if all do.
    pub reaches_launcher: Vec<bool>,
}

impl MembershipChange {
    /// Where the group resumes: after the last step that any member has completed; `None` if no member has begun. A stage
    /// that only some members have completed at that step is repeated: the one to report it may not have reached it.
    pub fn resume_position(&self) -> Option<Position> {
        let positions = || self.positions.iter().filter_map(|member| member.position);
        let step = positions().map(|position| position.step).max()?;
        positions().filter(|position| position.step == step).min()
    }

    /// Adds the losses, joins and departures of an earlier change in front.
    pub fn include_earlier(&mut self, earlier: MembershipChange) {
        let MembershipChange { lost, joined, left, .. } = earlier;
        let add = |known: &mut Vec<usize>, more: Vec<usize>| {
            let new: Vec<usize> = more.into_iter().filter(|id| !known.contains(id)).collect();
            known.splice(0..0, new);
        };
        add(&mut self.joined, joined);
        add(&mut self.left, left);
        let new: Vec<Culprit> = lost
            .into_iter()
            .filter(|culprit| self.lost.iter().all(|known| known.rank != culprit.rank))
            .collect();
        self.lost.splice(0..0, new);
    }

    /// The first rank at the resume position.
    pub fn source(&self) -> Option<usize> {
        let resume = self.resume_position()?;
        self.positions.iter().position(|member| member.position == Some(resume))
    }
}

/// A rank's side of the membership protocol: over a control connection
/// (`membership_client`), or simulated in virtual time.
pub trait MembershipClient: Send {
    /// Reports the rank's position and waits for the generation after that one. `doing` is the operation that the rank had
    /// to leave. `local_peers` are those of the last generation: lost ones are killed before any memory they could write
    /// to is read.
    fn next(
        &mut self,
        after: u32,
        position: MemberPosition,
        doing: &Heartbeat,
        local_peers: &LocalPeers,
    ) -> Result<Generation>;

    /// This rank alone leaves the group.
    fn leave(&mut self);

    /// Sends an impossible report: an injected fault.
    fn send_false_report(&mut self);
}

/// A report of a generation that never existed.
pub(crate) fn false_report() -> Control {
    Control::Report(u32::MAX, MemberPosition::default(), Heartbeat::default())
}

/// Adds how coordinators were lost, as their members saw it, to the losses that the next coordinator knows.
pub(crate) fn include_lost(known: &mut Vec<Culprit>, seen: Vec<Culprit>) {
    for culprit in seen {
        match known.iter_mut().find(|known| known.rank == culprit.rank) {
            Some(known) => {
                (known.cause, known.detect_s, known.noticed) =
                    (culprit.cause, culprit.detect_s, culprit.noticed);
            }
            None => known.push(culprit),
        }
    }
}
