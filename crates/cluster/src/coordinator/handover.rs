//! Handover of the role after the rank in this process has left, if the launcher can choose another coordinator.
//!
//! It happens instead of forming the next group: all members have reported and wait, no step is in progress, and the
//! members report everything the next coordinator needs.

use super::Coordinator;
use crate::hosts;
use crate::linux;
use crate::membership::MembershipView;
use crate::rendezvous::message::{Control, Member, send};
use std::net::Shutdown;
use thalweg_comm::host::host_identity;
use thalweg_core::Culprit;

impl Coordinator {
    /// Whether to hand over instead of forming this group. After a loss this coordinator stays, because it knows more about
    /// it than the next one would.
    pub(super) fn should_hand_over(&self, view: &MembershipView, lost: &[Culprit]) -> bool {
        let (own, host) = (self.config.launcher, (host_identity(), linux::host_name()));
        let can_succeed = |member: &Member| {
            let theirs = (&member.identity, &member.host);
            member.launcher == own && hosts::same_host((&host.0, &host.1), theirs)
        };
        let is_connected =
            |id| self.connected.get(id).is_some_and(|peer| peer.has_roster && can_succeed(&peer.member));
        let complete = view.lost.is_empty() && lost.is_empty();
        self.has_left && own.is_some() && complete && view.members.keys().any(is_connected)
    }

    /// Closes the port, tells the members to wait for the next coordinator, and the launcher to choose one.
    pub(super) fn hand_over(&mut self, view: MembershipView) {
        self.stop_listening();
        for (_, mut peer) in std::mem::take(&mut self.connected) {
            if peer.has_roster {
                let _ = send(&mut peer.stream, &Control::Moved);
            }
            // Ranks that are not admitted yet see the end of the connection, and join the next coordinator.
            let _ = peer.stream.shutdown(Shutdown::Write);
        }
        (self.callbacks.resign)(view.left);
    }
}
