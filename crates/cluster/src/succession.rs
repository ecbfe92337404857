//! How a rank's program passes from one generation of the group to the next.

use crate::collectives::Means;
use crate::membership::Standing;
use crate::rank::{Rank, first_operation};
use crate::regroup::{Change, Generation};
use crate::rendezvous::neighbourhood::Connected;
use thalweg_comm::transport::Transport;
use thalweg_core::event::Phase;
use thalweg_core::{Error, Result};

impl Rank {
    /// Whether the group survives the loss of a member.
    pub fn is_elastic(&self) -> bool {
        self.parts.delegate.is_some()
    }

    /// What happened before this generation of the group, and before those that nobody told of.
    pub fn change(&self) -> &Change {
        &self.parts.change
    }

    /// Who was lost, came and left has been told. Until a rank says so here, it is part of the next change, too: whoever
    /// was to tell it may be lost itself.
    pub fn forget_change(&mut self) {
        let Change { lost, joined, left, .. } = &mut self.parts.change;
        (*lost, *joined, *left) = Default::default();
    }

    /// Generation of the group.
    pub fn generation(&self) -> u32 {
        self.parts.generation
    }

    /// Whether this rank, and no other, is asked to leave after this step.
    pub fn leave_requested(&self) -> bool {
        self.is_elastic() && self.parts.beacon.leave_requested()
    }

    /// Whether the job can go on without these places: somebody stays whose results are heard of.
    pub fn can_spare(&self, leaving: &[usize]) -> bool {
        let heard = |place: usize| self.parts.change.heard.get(place).copied().unwrap_or(true);
        (0..self.world()).any(|place| heard(place) && !leaving.contains(&place))
    }

    /// Whether somebody waits to be let in after this step.
    pub fn pause_requested(&self) -> bool {
        self.is_elastic() && self.parts.beacon.pause_requested()
    }

    /// Whether the job is to be done with the epoch it is in.
    pub fn finish_requested(&self) -> bool {
        self.parts.beacon.finish_requested()
    }

    /// This rank has left its operations, because one of them failed or at a boundary where all do: it says where it
    /// stands and goes on in the next generation of the group. Everything made for the last one is void. `orderly`: at a
    /// boundary, where the others may still be busy with what this rank has sent them.
    pub fn regroup(&mut self, standing: Standing, orderly: bool) -> Result<()> {
        let doing = self.parts.beacon.pulse();
        self.training = false;
        if orderly {
            self.parts.transport.close();
        }
        self.operation += 1;
        self.enter(Phase::Exchanging, "forming of the group");
        self.keep_traffic();
        let (after, neighbours) = (self.parts.generation, std::mem::take(&mut self.parts.neighbours));
        // The others must not take this rank's connections for alive.
        self.parts.transport = Connected::alone().transport.into();
        let delegate =
            self.parts.delegate.as_mut().ok_or_else(|| Error::internal("a group that cannot change"))?;
        let next = delegate.next(after, standing, &doing, &neighbours)?;
        let Generation { number, transport, neighbours, carrier, numbers, hosts, mut change } = next;
        let parts = &mut self.parts;
        change.follow(std::mem::take(&mut parts.change));
        (parts.generation, parts.transport, parts.neighbours, parts.carrier) =
            (number, transport.into(), neighbours, carrier);
        (parts.numbers, parts.hosts, parts.change) = (numbers, hosts, change);
        parts.beacon.attach(parts.transport.as_ref(), number);
        self.account.transport = parts.carrier.into();
        (self.operation, self.post) = (first_operation(number), None);
        (self.means, self.circles) = (Means::of(&self.parts), Vec::new());
        Ok(())
    }

    /// Leaves the group for good, alone: the others go on.
    pub fn depart(&mut self) {
        self.enter(Phase::Leaving, "leaving");
        if let Some(delegate) = &mut self.parts.delegate {
            delegate.leave();
        }
        self.parts.transport.close();
    }

    fn keep_traffic(&mut self) {
        let traffic = self.parts.transport.traffic();
        self.shared.payload_sent += traffic.total_sent;
        self.shared.payload_received += traffic.total_received;
    }
}
