//! [`ProcessGroup`]: what a rank keeps of a group that it is a member of.
//!
//! A group counts its operations by itself. It belongs to the generation in which it was formed: the loss of any rank
//! ends it with the generation. The world is the group with id 0, which every generation forms anew.

use crate::rank::{Rank, RankParts, first_operation};
use std::collections::HashMap;
use std::sync::Arc;
use thalweg_comm::collective::{
    self, AllReduceMethod, Collective, Executor, ReproducibleAllReduce, Schedule,
};
use thalweg_comm::transport::{Tag, Transport};
use thalweg_comm::wire::tensor;
use thalweg_core::{Error, Kind, Result};

/// A program that repeats its buffer sizes uses fewer schedules.
const MAX_SCHEDULES: usize = 64;

/// Some or all of the ranks, as one of them holds the group; [`Rank::group`] runs its collectives.
pub struct ProcessGroup {
    /// Empty for the world.
    name: String,
    pub(crate) generation: u32,
    /// Id of the last operation.
    pub(crate) operation: u64,
    pub(crate) members: collective::Group,
    pub(crate) executor: Executor,
    pub(crate) reproducible: ReproducibleAllReduce,
    /// Result of the agreement on shared memory, once there is one.
    pub(crate) shares_memory: Option<bool>,
    /// The method set for all-reduces of at least this many bytes.
    named: Option<(AllReduceMethod, usize)>,
    /// Cached by collective and size in bytes, at most [`MAX_SCHEDULES`]: with several ranks per host choosing one
    /// builds the schedules of all algorithms.
    schedules: HashMap<(Collective, usize), Arc<Schedule>>,
}

impl ProcessGroup {
    /// The group of all ranks. Its operation ids continue from generation to generation.
    pub(crate) fn world(parts: &RankParts) -> ProcessGroup {
        let members = collective::Group::world(parts.transport.rank(), parts.transport.world());
        let members = members.with_hosts(parts.hosts.numbers());
        let operation = first_operation(parts.generation);
        ProcessGroup { operation, ..ProcessGroup::new(String::new(), parts.generation, members) }
    }

    fn new(name: String, generation: u32, members: collective::Group) -> ProcessGroup {
        ProcessGroup {
            name,
            generation,
            operation: 0,
            executor: Executor::new(),
            reproducible: ReproducibleAllReduce::new(members.clone()),
            members,
            shares_memory: None,
            named: None,
            schedules: HashMap::new(),
        }
    }

    /// World ranks of the members, ascending.
    pub fn ranks(&self) -> &[usize] {
        self.members.ranks()
    }

    /// This rank's rank within the group.
    pub fn index(&self) -> usize {
        self.members.group_rank()
    }

    pub fn size(&self) -> usize {
        self.members.size()
    }

    /// The next operation: its tag, and its name in errors and heartbeats.
    pub(crate) fn next_operation(&mut self, kind: &str, name: &str) -> (Tag, String) {
        self.operation += 1;
        let mut title = format!("{kind} of {name}");
        let tensor = tensor(&title);
        let (generation, operation, group) = (self.generation, self.operation, self.members.id());
        self.add_name(&mut title);
        (Tag { generation, operation, group, tensor }, title)
    }

    /// Adds the group's name to that of an operation.
    pub(crate) fn add_name(&self, operation: &mut String) {
        if !self.name.is_empty() {
            operation.push_str(" among ");
            operation.push_str(&self.name);
        }
    }

    /// The group's name in errors.
    pub(crate) fn title(&self) -> String {
        if self.name.is_empty() { "the world".into() } else { format!("group {:?}", self.name) }
    }

    /// Fails if the generation of the group is not this one.
    pub(crate) fn check_generation(&self, current: u32) -> Result<()> {
        if self.generation == current {
            return Ok(());
        }
        let ended = self.generation;
        let message = format!("{} belongs to generation {ended}, which has ended", self.title());
        Err(Error::new(Kind::Internal, message).hint("form it again after the group has changed"))
    }

    pub(crate) fn set_method(&mut self, method: AllReduceMethod, min_bytes: usize) {
        self.named = Some((method, min_bytes));
        self.schedules.clear();
    }

    /// The method set for an all-reduce of this size, if any.
    pub(crate) fn method(&self, bytes: usize) -> Option<AllReduceMethod> {
        self.named.filter(|(_, min_bytes)| bytes >= *min_bytes).map(|(method, _)| method)
    }

    /// The schedule of a collective of this size.
    pub(crate) fn schedule(&mut self, collective: Collective, bytes: usize) -> Arc<Schedule> {
        if let Some(schedule) = self.schedules.get(&(collective, bytes)) {
            return Arc::clone(schedule);
        }
        let members = &self.members;
        let schedule = Arc::new(match self.method(bytes) {
            Some(AllReduceMethod::Schedule(algorithm)) if collective == Collective::AllReduce => {
                members.translate_ranks(algorithm.all_reduce(members.group_rank(), members.hosts()))
            }
            _ => members.schedule(collective, bytes),
        });
        if self.schedules.len() >= MAX_SCHEDULES {
            self.schedules.clear();
        }
        self.schedules.insert((collective, bytes), Arc::clone(&schedule));
        schedule
    }
}

impl Rank {
    /// Forms a group of these world ranks: all-gathers the member list among them. All members must call it with the
    /// same name and ranks; a name can be used once per generation.
    pub fn new_group(&mut self, name: &str, ranks: &[usize]) -> Result<ProcessGroup> {
        let refused =
            |what: String| Error::new(Kind::Internal, format!("cannot form group {name:?}: {what}"));
        if name.is_empty() {
            return Err(refused("it has no name".into()));
        }
        if let Some(unknown) = ranks.iter().find(|rank| **rank >= self.size()) {
            return Err(refused(format!("there is no rank {unknown} in a world of {}", self.size())));
        }
        let members = collective::Group::new(name, ranks, self.index())
            .ok_or_else(|| refused(format!("rank {} is not one of {ranks:?}", self.member_id())))?;
        if let Some((_, other)) = self.groups.iter().find(|(id, _)| *id == members.id()) {
            return Err(refused(format!("{other:?} has the same id")).hint("give it another name"));
        }
        self.groups.push((members.id(), name.to_owned()));
        self.parts.transport.admit_groups();
        let members = members.with_hosts(self.world.members.hosts());
        let mut group = ProcessGroup::new(name.to_owned(), self.generation(), members);
        let ranks: Vec<u8> = group.ranks().iter().flat_map(|rank| (*rank as u64).to_le_bytes()).collect();
        let mine = [&ranks[..], name.as_bytes()].concat();
        let all = self.group(&mut group).all_gather("the members", &mine)?;
        match all.iter().position(|theirs| *theirs != mine) {
            None => Ok(group),
            Some(index) => {
                let member = self.member_id_at(group.ranks()[index]);
                Err(refused(format!("rank {member} has another list of members")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::threads;
    use thalweg_comm::collective::Algorithm;

    #[test]
    fn different_member_lists_fail() {
        let ended = threads::run(3, 0, |rank| {
            let members: &[usize] = if rank.index() == 0 { &[0, 1] } else { &[0, 1, 2] };
            rank.new_group("mine", members).map(|_| ())
        });
        let error = ended[0].result.as_ref().unwrap_err();
        assert!(error.to_string().contains("rank 1 has another list of members"), "{error}");
    }

    #[test]
    fn unknown_ranks_foreign_groups_and_repeated_names_are_refused() {
        let ended = threads::run(2, 0, |rank| {
            let refusal = |error: Result<ProcessGroup>| error.map(|_| ()).unwrap_err().to_string();
            assert!(refusal(rank.new_group("far", &[0, 1, 7])).contains("no rank 7 in a world of 2"));
            assert!(refusal(rank.new_group("other", &[1 - rank.index()])).contains("is not one of"));
            assert!(refusal(rank.new_group("", &[0, 1])).contains("has no name"));
            rank.new_group("both", &[0, 1])?;
            assert!(refusal(rank.new_group("both", &[0, 1])).contains("has the same id"));
            Ok(())
        });
        assert!(ended.iter().all(|ended| ended.result == Ok(())));
    }

    #[test]
    fn small_all_reduces_ignore_the_method_set_for_large_ones() {
        let mut group = ProcessGroup::new(String::new(), 1, collective::Group::world(0, 8));
        group.set_method(AllReduceMethod::Schedule(Algorithm::Ring), 1 << 20);
        let (short, long) =
            (group.schedule(Collective::AllReduce, 64), group.schedule(Collective::AllReduce, 100 << 20));
        assert_eq!(*short, Algorithm::BinomialTree.all_reduce(0, group.members.hosts()));
        assert_eq!(*long, Algorithm::Ring.all_reduce(0, group.members.hosts()));
        assert!(Arc::ptr_eq(&short, &group.schedule(Collective::AllReduce, 64)));
        (0..1000).for_each(|bytes| drop(group.schedule(Collective::AllGather, bytes)));
        assert!(group.schedules.len() <= MAX_SCHEDULES);
    }
}
