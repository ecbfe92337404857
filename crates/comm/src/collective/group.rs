//! A subset of the ranks that runs collectives of its own: MPI's communicator, PyTorch's process group.
//!
//! Every frame carries the id of its group, so operations of several groups share the connections without being mixed
//! up. Schedules of a group use group ranks; the wire and every fault use ranks of the world.

use super::kind::Collective;
use super::schedule::Schedule;
use crate::wire::{MESSAGES, WORLD, checksum};
use std::collections::BTreeSet;

/// Some ranks in ascending order, as seen by one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    id: u32,
    ranks: Vec<usize>,
    group_rank: usize,
    /// By group rank; equal numbers mean the same host.
    hosts: Vec<usize>,
}

impl Group {
    /// The group of all ranks.
    pub fn world(rank: usize, world: usize) -> Group {
        let ranks: Vec<usize> = (0..world).collect();
        Group { id: WORLD, ranks: ranks.clone(), group_rank: rank, hosts: ranks }
    }

    /// A named group; `None` if `rank` is not in `ranks`. Equal names and ranks, in any order, give equal groups. Equal
    /// names with different ranks give equal ids, so that the members exchange frames and can detect the disagreement.
    pub fn new(name: &str, ranks: &[usize], rank: usize) -> Option<Group> {
        let ranks: Vec<usize> = BTreeSet::from_iter(ranks.iter().copied()).into_iter().collect();
        let group_rank = ranks.iter().position(|&member| member == rank)?;
        let hosts = (0..ranks.len()).collect();
        let id = checksum(0, name.as_bytes()).clamp(WORLD + 1, MESSAGES - 1);
        Some(Group { id, ranks, group_rank, hosts })
    }

    /// Sets the hosts of the members; `hosts[r]` is the host of rank r of the world. The default is one host per member.
    pub fn with_hosts(mut self, hosts: &[usize]) -> Group {
        self.hosts = self.ranks.iter().map(|rank| hosts[*rank]).collect();
        self
    }

    /// The host of each member, by group rank.
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// The id in the frames of this group. Ids can collide, by name or by chance: a rank must not be in two groups of the
    /// same id at once.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The world rank of each member, by group rank.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// This rank's index in [`Group::ranks`].
    pub fn group_rank(&self) -> usize {
        self.group_rank
    }

    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// This member's schedule under the default algorithm for a buffer of `bytes`.
    pub fn schedule(&self, collective: Collective, bytes: usize) -> Schedule {
        self.translate_ranks(collective.schedule(self.group_rank, &self.hosts, bytes))
    }

    /// Replaces the group ranks in a schedule by world ranks.
    pub fn translate_ranks(&self, schedule: Schedule) -> Schedule {
        match self.id {
            WORLD => schedule,
            _ => schedule.map_ranks(&self.ranks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring;
    use super::*;

    #[test]
    fn the_order_of_the_ranks_does_not_matter() {
        let (one, other) = (Group::new("a", &[5, 2, 2], 2).unwrap(), Group::new("a", &[2, 5], 5).unwrap());
        assert_eq!((one.id(), one.ranks(), one.group_rank()), (other.id(), other.ranks(), 0));
        assert_eq!((other.group_rank(), other.size()), (1, 2));
        assert_eq!(Group::new("a", &[2, 5], 3), None);
    }

    #[test]
    fn different_names_have_different_ids() {
        let id = |name: &str| Group::new(name, &[0], 0).unwrap().id();
        assert_eq!(BTreeSet::from([id("a"), id("b"), id(""), WORLD]).len(), 4);
    }

    #[test]
    fn schedules_contain_world_ranks() {
        let group = Group::new("odd", &[1, 3, 5], 3).unwrap();
        let schedule = group.translate_ranks(ring::all_reduce(group.group_rank(), group.size()));
        let peers: BTreeSet<usize> =
            schedule.steps.iter().flat_map(|step| step.sends.iter().map(|send| send.to)).collect();
        assert_eq!((peers, schedule.chunks), (BTreeSet::from([5]), 3));
    }
}
