//! The role passes on when the rank that has it has left: where a launcher can say who takes it, nobody stays for it.
//!
//! It happens where the next group would be formed: all members have reported and wait, no step is under way, and what the
//! next coordinator has to know they tell it themselves.

use super::Chair;
use crate::hosts;
use crate::linux;
use crate::membership::Formed;
use crate::rendezvous::message::{Control, Member, send};
use std::net::Shutdown;
use thalweg_comm::host::host_identity;
use thalweg_core::Culprit;

impl Chair {
    /// Whether the role passes on instead of this group being formed. Where somebody was just lost, this coordinator
    /// knows more of it than the next one would.
    pub(super) fn passes_on(&self, formed: &Formed, lost: &[Culprit]) -> bool {
        let (own, host) = (self.charge.launcher, (host_identity(), linux::host_name()));
        let heir = |member: &Member| {
            let theirs = (&member.identity, &member.host);
            member.launcher == own && hosts::are_one((&host.0, &host.1), theirs)
        };
        let here = |number| self.guests.get(number).is_some_and(|guest| guest.settled && heir(&guest.member));
        let complete = formed.lost.is_empty() && lost.is_empty();
        self.has_left && own.is_some() && complete && formed.members.keys().any(here)
    }

    /// Gives up the port, tells the members to look for the next coordinator, and the launcher to name one.
    pub(super) fn pass_on(&mut self, formed: Formed) {
        self.stop_listening();
        for (_, mut guest) in std::mem::take(&mut self.guests) {
            if guest.settled {
                let _ = send(&mut guest.stream, &Control::Moved);
            }
            // Those who wait to be let in see the end, and come to the next one.
            let _ = guest.stream.shutdown(Shutdown::Write);
        }
        (self.voice.resign)(formed.left);
    }
}
