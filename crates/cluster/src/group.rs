//! Process groups of some of the ranks, and nonblocking collectives.
//!
//! A group counts its operations by itself. Operations of several groups and of the world may be in flight at once
//! ([`Rank::start`], [`GroupHandle::start`]): ranks may start them in different orders, as long as those of one group
//! are started in the same order on all its members. A blocking operation also progresses all operations in flight.
//! Errors name ranks by member id, and the group by its name.
//!
//! A group belongs to the generation in which it was formed: the loss of any rank ends it with the generation.
//!
//! Only tests call this module yet: [`GroupHandle`], `start` and `finish` become the group type that strategies are
//! written against.

use crate::collectives::{CollectiveContext, elements};
use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::collective::operator::Number;
use thalweg_comm::collective::{self, Collective, Element, OperationId, Operator, Sum, chunk_range};
use thalweg_comm::transport::{Tag, Transport, TransportError};
use thalweg_comm::wire::tensor;
use thalweg_core::{Error, Kind, Result};

/// A subset of the ranks, as one of its members holds it.
pub struct ProcessGroup {
    name: String,
    generation: u32,
    /// Id of the last operation.
    operation: u64,
    collectives: CollectiveContext,
}

/// A nonblocking operation in flight.
#[must_use = "Rank::finish returns its result"]
pub struct PendingOperation<T> {
    id: OperationId<T>,
    generation: u32,
    kind: &'static str,
    name: String,
}

/// A group together with its rank: runs the group's collectives.
pub struct GroupHandle<'a> {
    rank: &'a mut Rank,
    group: &'a mut ProcessGroup,
}

impl ProcessGroup {
    /// World ranks of the members, ascending.
    pub fn ranks(&self) -> &[usize] {
        self.collectives.group.ranks()
    }

    /// This rank's rank within the group.
    pub fn group_rank(&self) -> usize {
        self.collectives.group.group_rank()
    }

    pub fn size(&self) -> usize {
        self.collectives.group.size()
    }

    fn operation_name(&self, name: &str) -> String {
        format!("{name} among {}", self.name)
    }

    fn next_tag(&mut self, kind: &str, name: &str) -> Tag {
        self.operation += 1;
        let (generation, operation) = (self.generation, self.operation);
        let tensor = tensor(&format!("{kind} of {name}"));
        Tag { generation, operation, group: self.collectives.group.id(), tensor }
    }
}

impl Rank {
    /// Forms a group of these world ranks: all-gathers the member list among them. All members must call it with the
    /// same name and ranks; a name can be used once per generation.
    pub fn new_group(&mut self, name: &str, ranks: &[usize]) -> Result<ProcessGroup> {
        let refused =
            |what: String| Error::new(Kind::Internal, format!("cannot form group {name:?}: {what}"));
        if let Some(unknown) = ranks.iter().find(|rank| **rank >= self.world()) {
            return Err(refused(format!("there is no rank {unknown} in a world of {}", self.world())));
        }
        let group = collective::Group::new(name, ranks, self.index())
            .ok_or_else(|| refused(format!("rank {} is not one of {ranks:?}", self.member_id())))?;
        if let Some((_, other)) = self.groups.iter().find(|(id, _)| *id == group.id()) {
            return Err(refused(format!("{other:?} has the same id")).hint("give it another name"));
        }
        self.groups.push((group.id(), name.to_owned()));
        self.parts.transport.admit_groups();
        let collectives = CollectiveContext::of_group(group.with_hosts(self.host_numbers()));
        let (name, generation) = (name.to_owned(), self.generation());
        let mut group = ProcessGroup { name: name.clone(), generation, operation: 0, collectives };
        let members: Vec<u8> = group.ranks().iter().flat_map(|rank| (*rank as u64).to_le_bytes()).collect();
        let mine = [&members[..], name.as_bytes()].concat();
        let all = self.in_group(&mut group).all_gather("the members", &mine)?;
        match all.iter().position(|theirs| *theirs != mine) {
            None => Ok(group),
            Some(index) => {
                let member = self.member_id_at(group.ranks()[index]);
                Err(refused(format!("rank {member} has another list of members")))
            }
        }
    }

    pub fn in_group<'a>(&'a mut self, group: &'a mut ProcessGroup) -> GroupHandle<'a> {
        GroupHandle { rank: self, group }
    }

    /// Starts a nonblocking collective of all ranks; [`Rank::finish`] waits for it.
    pub fn start<T: Element>(
        &mut self,
        collective: Collective,
        name: &str,
        buffer: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Result<PendingOperation<T>> {
        self.check()?;
        let schedule = self.collectives.schedule(collective, size_of_val(&buffer[..]));
        let tag = self.next_tag(collective.name(), name);
        // Its frames may arrive before those of operations that a peer starts earlier.
        self.parts.transport.admit_groups();
        let id = self.parts.transport.start(&schedule, tag, buffer, operator);
        self.pending(id, collective.name(), name.to_owned())
    }

    fn pending<T>(
        &self,
        id: std::result::Result<OperationId<T>, TransportError>,
        kind: &'static str,
        name: String,
    ) -> Result<PendingOperation<T>> {
        let id = id.map_err(|fault| self.explain(&fault, kind, &name))?;
        Ok(PendingOperation { id, generation: self.generation(), kind, name })
    }

    /// Waits for a started collective of the world or of a group, and returns its buffer.
    pub fn finish<T: Element>(&mut self, pending: PendingOperation<T>) -> Result<Vec<T>> {
        let PendingOperation { id, generation, kind, name } = pending;
        let mut buffer = None;
        if generation == self.generation() {
            self.await_operation(kind, &name, |rank, deadline| {
                buffer = rank.parts.transport.finish(id, deadline)?;
                Ok(())
            })?;
        }
        buffer.ok_or_else(|| {
            let message = format!("{kind} of {name} belongs to generation {generation}, which has ended");
            Error::new(Kind::Internal, message).hint("start it again after the group has changed")
        })
    }
}

impl GroupHandle<'_> {
    fn operate(
        &mut self,
        kind: &str,
        name: &str,
        run: impl FnOnce(&mut Rank, &mut CollectiveContext, Tag, Duration) -> Result<(), TransportError>,
    ) -> Result<Duration> {
        self.check()?;
        let (name, tag) = (self.group.operation_name(name), self.group.next_tag(kind, name));
        let context = &mut self.group.collectives;
        self.rank.await_operation(kind, &name, |rank, deadline| run(rank, context, tag, deadline))
    }

    /// Fails if the group's generation has ended.
    fn check(&self) -> Result<()> {
        let ProcessGroup { name, generation, .. } = &*self.group;
        match *generation == self.rank.generation() {
            true => Ok(()),
            false => {
                let message = format!("group {name:?} belongs to generation {generation}, which has ended");
                Err(Error::new(Kind::Internal, message).hint("form it again after the group has changed"))
            }
        }
    }

    /// [`Rank::collective`] among the members. A root is a rank within the group.
    pub fn collective<T: Element>(
        &mut self,
        collective: Collective,
        name: &str,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<Duration> {
        let schedule = self.group.collectives.schedule(collective, size_of_val(buffer));
        self.operate(collective.name(), name, |rank, context, tag, deadline| {
            context.executor.run(&schedule, rank.parts.transport.as_mut(), tag, buffer, operator, deadline)
        })
    }

    /// Starts a nonblocking collective of the members; [`Rank::finish`] waits for it.
    pub fn start<T: Element>(
        &mut self,
        collective: Collective,
        name: &str,
        buffer: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Result<PendingOperation<T>> {
        self.check()?;
        self.rank.check()?;
        let schedule = self.group.collectives.schedule(collective, size_of_val(&buffer[..]));
        let (name, tag) = (self.group.operation_name(name), self.group.next_tag(collective.name(), name));
        let id = self.rank.parts.transport.start(&schedule, tag, buffer, operator);
        self.rank.pending(id, collective.name(), name)
    }

    /// The range of a buffer that this member owns in a reduce-scatter and an all-gather.
    pub fn own_chunk(&self, length: usize) -> std::ops::Range<usize> {
        chunk_range(length, self.group.size(), self.group.group_rank())
    }

    /// [`Rank::all_reduce`] among the members.
    pub fn all_reduce<T: Number>(&mut self, name: &str, buffer: &mut [T]) -> Result<Duration> {
        self.collective(Collective::AllReduce, name, buffer, &Sum)
    }

    /// Returns when every member has called it.
    pub fn barrier(&mut self, name: &str) -> Result<Duration> {
        self.collective(Collective::Barrier, name, &mut [0u8], &Sum)
    }

    /// [`Rank::all_gather`] among the members, by group rank.
    pub fn all_gather(&mut self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        self.operate("all-gather", name, |rank, context, tag, deadline| {
            let transport = rank.parts.transport.as_mut();
            all = context.group.all_gather(transport, tag, mine, deadline)?;
            Ok(())
        })?;
        Ok(all)
    }

    /// [`Rank::all_to_all`] among the members, by group rank.
    pub fn all_to_all<T: Element>(&mut self, name: &str, pieces: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let mut arrived = Vec::new();
        self.operate(Collective::AllToAll.name(), name, |rank, context, tag, deadline| {
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| bytemuck::cast_slice(piece)).collect();
            let transport = rank.parts.transport.as_mut();
            let bytes = context.group.all_to_all(transport, tag, &pieces, deadline)?;
            arrived = elements(&bytes, context.group.ranks())?;
            Ok(())
        })?;
        Ok(arrived)
    }

    /// Returns the bytes of group rank `root` on all members; `mine` is ignored on the others.
    pub fn broadcast(&mut self, name: &str, root: usize, mine: Vec<u8>) -> Result<Vec<u8>> {
        let mut theirs = Vec::new();
        self.operate("broadcast", name, |rank, context, tag, deadline| {
            let transport = rank.parts.transport.as_mut();
            theirs = context.group.broadcast(transport, tag, root, mine, deadline)?;
            Ok(())
        })?;
        Ok(theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulated::fixed_group;
    use crate::engine::threads;
    use thalweg_comm::collective::Max;
    use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind};

    /// Two groups with two ranks in common, and the world: all collectives blocking, then all in flight at once.
    fn program(rank: &mut Rank) -> Result<()> {
        let (index, left, right) = (rank.index(), [0, 1, 2], [1, 2, 3]);
        let mut groups = Vec::new();
        for (name, members) in [("left", left), ("right", right)] {
            if members.contains(&index) {
                groups.push(rank.new_group(name, &members)?);
            }
        }
        let sum = |group: &ProcessGroup| group.ranks().iter().sum::<usize>() as f32;
        for group in &mut groups {
            let (expected, first) = (sum(group), group.ranks()[0]);
            let mut values = [index as f32; 9];
            rank.in_group(group).all_reduce("values", &mut values)?;
            assert_eq!(values, [expected; 9]);
            let mut shares = vec![0u32; 7];
            shares[rank.in_group(group).own_chunk(7)].fill(index as u32);
            rank.in_group(group).collective(Collective::AllGather, "shares", &mut shares, &Sum)?;
            assert!(shares.is_sorted() && shares[0] == first as u32);
            assert_eq!(rank.in_group(group).broadcast("word", 1, vec![index as u8])?, [first as u8 + 1]);
            let pieces = [vec![index as f64], vec![], vec![0.5; index]];
            let arrived = rank.in_group(group).all_to_all("pieces", &pieces)?;
            assert_eq!(arrived[group.group_rank()], pieces[group.group_rank()]);
            rank.in_group(group).barrier("the end")?;
        }
        if index % 2 == 0 {
            groups.reverse();
        }
        let mut pending = Vec::new();
        let early =
            (index < 2).then(|| rank.start(Collective::AllReduce, "largest", vec![index as f32], Max));
        for group in &mut groups {
            let started =
                rank.in_group(group).start(Collective::AllReduce, "sums", vec![index as f32; 3000], Sum)?;
            pending.push((sum(group), started));
        }
        let world = match early {
            Some(early) => early?,
            None => rank.start(Collective::AllReduce, "largest", vec![index as f32], Max)?,
        };
        // A blocking operation in between progresses the others.
        rank.barrier("the middle")?;
        for (expected, started) in pending {
            assert_eq!(rank.finish(started)?, vec![expected; 3000]);
        }
        assert_eq!(rank.finish(world)?, [rank.world() as f32 - 1.0]);
        Ok(())
    }

    #[test]
    fn collectives_of_groups_and_the_world_run_at_once() {
        for ended in threads::run(4, 0, program) {
            assert_eq!(ended.result, Ok(()));
        }
        let network = Network::ordinary(4, 1);
        for ended in fixed_group::simulate(network, &[], Duration::from_secs(30), program).0 {
            assert_eq!(ended.result, Ok(()));
        }
    }

    #[test]
    fn a_death_names_rank_group_and_operation() {
        let kill = SimulatedFault::at(Duration::from_millis(40), SimulatedFaultKind::Kill { rank: 3 });
        let network = Network::ordinary(4, 1);
        let (ended, _) = fixed_group::simulate(network, &[kill], Duration::from_secs(5), |rank| {
            rank.begin_step(7);
            if rank.index() % 2 == 0 {
                return rank.barrier("the end").map(|_| ());
            }
            let mut group = rank.new_group("odd", &[1, 3])?;
            loop {
                let mut group = rank.in_group(&mut group);
                let pending = group.start(Collective::AllReduce, "means", vec![1.0f32; 10], Sum)?;
                rank.finish(pending)?;
                rank.sleep(Duration::from_millis(1));
            }
        });
        let operations = ["barrier of the end", "all-reduce of means among odd", "barrier of the end"];
        for (survivor, operation) in operations.into_iter().enumerate() {
            let error = ended[survivor].result.as_ref().unwrap_err();
            let culprit = error.culprit.as_ref().unwrap();
            assert_eq!((culprit.rank, culprit.step), (3, Some(7)), "{error}");
            assert_eq!(culprit.operation.as_deref(), Some(operation), "{error}");
        }
    }

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
            rank.new_group("both", &[0, 1])?;
            assert!(refusal(rank.new_group("both", &[0, 1])).contains("has the same id"));
            Ok(())
        });
        assert!(ended.iter().all(|ended| ended.result == Ok(())));
    }
}
