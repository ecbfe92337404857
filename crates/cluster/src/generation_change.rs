//! A rank's change from one generation of the group to the next.

use crate::membership::MemberPosition;
use crate::process_group::ProcessGroup;
use crate::rank::{Rank, RankParts};
use crate::regroup::{Generation, MembershipChange};
use crate::rendezvous::shm_setup::ConnectedTransport;
use thalweg_comm::transport::Transport;
use thalweg_core::event::Phase;
use thalweg_core::{Error, Result};

impl Rank {
    /// Whether the group survives the loss of a member.
    pub fn is_elastic(&self) -> bool {
        self.parts.membership_client.is_some()
    }

    /// Changes before this generation, and before earlier ones that were not reported.
    pub fn change(&self) -> &MembershipChange {
        &self.parts.change
    }

    /// Losses, joins and departures have been reported. Until then they are part of the next change, too: the rank that
    /// reports them may be lost itself.
    pub fn forget_change(&mut self) {
        let MembershipChange { lost, joined, left, .. } = &mut self.parts.change;
        (*lost, *joined, *left) = Default::default();
    }

    pub fn generation(&self) -> u32 {
        self.parts.generation
    }

    /// Whether this generation was interrupted, and [`Rank::regroup`] leads to the next. A program asks after any error:
    /// an operation that failed because of a lost rank has waited for the coordinator's decision before it returned.
    pub fn generation_is_over(&self) -> bool {
        let RankParts { rank_status, generation, .. } = &self.parts;
        self.in_group && self.is_elastic() && rank_status.generation_is_over(*generation)
    }

    /// The same, if this error is the reason: an operation that is interrupted fails with it, and with no other.
    pub fn generation_ended_with(&self, error: &Error) -> bool {
        let RankParts { rank_status, generation, .. } = &self.parts;
        self.generation_is_over() && rank_status.interrupt_reason(*generation).as_ref() == Some(error)
    }

    /// The error with which the program ends. If the job ended between an interruption and the program's answer to it,
    /// the job's reason replaces that of the interruption.
    pub(crate) fn final_error(&self, error: Error) -> Error {
        let RankParts { rank_status, generation, .. } = &self.parts;
        match rank_status.interrupt_reason(*generation) {
            Some(reason) if reason == error => rank_status.abort_reason().unwrap_or(error),
            _ => error,
        }
    }

    /// Whether this rank alone is asked to leave after this step.
    pub fn leave_requested(&self) -> bool {
        self.is_elastic() && self.parts.rank_status.leave_requested()
    }

    /// Whether the job can go on without these ranks: one stays whose events reach the launcher.
    pub fn can_spare(&self, leaving: &[usize]) -> bool {
        let reaches = |rank: usize| self.parts.change.reaches_launcher.get(rank).copied().unwrap_or(true);
        (0..self.size()).any(|rank| reaches(rank) && !leaving.contains(&rank))
    }

    /// Whether a new member waits to be admitted after this step.
    pub fn pause_requested(&self) -> bool {
        self.is_elastic() && self.parts.rank_status.pause_requested()
    }

    /// Whether the job is asked to end with the current epoch.
    pub fn finish_requested(&self) -> bool {
        self.parts.rank_status.finish_requested()
    }

    /// Whether a request waits for a step boundary, at this rank or, as its coordinator reported, at another: to stop, to
    /// leave, to pause for a new member, or for a checkpoint. A program whose steps are long ends them early then; the
    /// request itself is served as always, by what the ranks exchange at the boundary.
    pub fn boundary_requested(&self) -> bool {
        self.parts.rank_status.boundary_requested()
    }

    /// Enters the next generation, after this rank has left its operations. All state of the last generation is void but
    /// messages, which are sent on to the members that are still there.
    /// `orderly`: all ranks do this at a step boundary, where peers may still read what this rank has sent; otherwise an
    /// operation failed.
    pub fn regroup(&mut self, position: MemberPosition, orderly: bool) -> Result<()> {
        let doing = self.parts.rank_status.heartbeat();
        (self.training, self.in_group) = (false, false);
        if orderly {
            self.parts.transport.close();
        }
        self.world.operation += 1;
        self.enter(Phase::Exchanging, "forming of the group");
        self.keep_traffic();
        let (after, local_peers) = (self.parts.generation, std::mem::take(&mut self.parts.local_peers));
        let messages = self.parts.transport.take_messages();
        // Closes the connections: the others must not take them for alive.
        self.parts.transport = ConnectedTransport::alone().transport.into();
        let membership_client = self
            .parts
            .membership_client
            .as_mut()
            .ok_or_else(|| Error::internal("a group that cannot change"))?;
        let next = membership_client.next(after, position, &doing, &local_peers)?;
        let Generation { number, transport, local_peers, carrier, member_ids, hosts, mut change } = next;
        let parts = &mut self.parts;
        change.include_earlier(std::mem::take(&mut parts.change));
        (parts.generation, parts.transport, parts.local_peers, parts.carrier) =
            (number, transport.into(), local_peers, carrier);
        (parts.member_ids, parts.hosts, parts.change) = (member_ids, hosts, change);
        if let Some(messages) = messages {
            parts.transport.set_messages(messages.resume(number, &parts.member_ids));
        }
        parts.rank_status.attach(parts.transport.as_ref(), number, &parts.member_ids);
        self.account.transport = parts.carrier.into();
        (self.world, self.groups) = (ProcessGroup::world(&self.parts), Vec::new());
        self.in_group = true;
        Ok(())
    }

    /// Leaves the group for good; the others go on.
    pub fn depart(&mut self) {
        self.in_group = false;
        self.enter(Phase::Leaving, "leaving");
        if let Some(membership_client) = &mut self.parts.membership_client {
            membership_client.leave();
        }
        self.parts.transport.close();
    }

    fn keep_traffic(&mut self) {
        let traffic = self.parts.transport.traffic();
        self.shared.payload_sent += traffic.total_sent;
        self.shared.payload_received += traffic.total_received;
    }
}
