//! [`Group`]: ranks that communicate, all of them or some, and their blocking collectives.
//!
//! Every collective works on any group: [`Rank::world`] is the group of all ranks, [`Rank::new_group`] forms smaller
//! ones. Roots, peers and results are numbered by rank within the group. All members must run the same operations of a
//! group in the same order; each group counts its own. Errors name ranks by member id, and smaller groups by name.
//!
//! A fixed table chooses the schedule by buffer size; [`Group::set_allreduce_algorithm`] overrides it for large
//! all-reduces. Other operations of a group are in `nonblocking.rs`, `point_to_point.rs`, `shared_arena.rs`,
//! `window.rs` and `buckets_in_flight.rs`.

#[cfg(test)]
mod tests;

use crate::process_group::ProcessGroup;
use crate::rank::{Rank, RankParts};
use std::ops::Range;
use std::time::Duration;
use thalweg_comm::collective::operator::Number;
use thalweg_comm::collective::{
    AllReduceMethod, Collective, Element, Min, Operator, PartialSums, ReductionTree, Sum, chunk_range, native,
};
use thalweg_comm::transport::{Cause, Tag, Transport, TransportError};
use thalweg_core::event::Phase;
use thalweg_core::{Culprit, Error, Kind, Result};

/// A group together with its rank: runs the group's operations.
pub struct Group<'a> {
    pub(crate) rank: &'a mut Rank,
    /// `None` for the world, whose state the rank owns.
    subset: Option<&'a mut ProcessGroup>,
}

/// One operation of a group while it runs.
pub(crate) struct Operation<'a> {
    pub(crate) parts: &'a mut RankParts,
    pub(crate) group: &'a mut ProcessGroup,
    pub(crate) tag: Tag,
    pub(crate) deadline: Duration,
}

impl Rank {
    /// The group of all ranks.
    pub fn world(&mut self) -> Group<'_> {
        Group { rank: self, subset: None }
    }

    /// A group that [`Rank::new_group`] formed.
    pub fn group<'a>(&'a mut self, group: &'a mut ProcessGroup) -> Group<'a> {
        Group { rank: self, subset: Some(group) }
    }
}

impl Group<'_> {
    /// Number of members.
    pub fn size(&self) -> usize {
        self.state().size()
    }

    /// This rank's rank within the group: 0 to [`Group::size`] - 1.
    pub fn index(&self) -> usize {
        self.state().index()
    }

    /// World ranks of the members, by rank within the group.
    pub fn ranks(&self) -> &[usize] {
        self.state().ranks()
    }

    /// The host of each member, as the first world rank on that host: input to the choice of algorithm.
    pub fn host_numbers(&self) -> &[usize] {
        self.state().members.hosts()
    }

    /// The range of a buffer that this member owns in a reduce-scatter and an all-gather.
    pub fn own_chunk(&self, length: usize) -> Range<usize> {
        chunk_range(length, self.size(), self.index())
    }

    /// Sets the method of all-reduces of at least `min_bytes`; smaller ones use the table. All members must set the same.
    /// [`AllReduceMethod::Native`] is of the world alone: all-reduces of smaller groups fail with it.
    pub fn set_allreduce_algorithm(&mut self, method: AllReduceMethod, min_bytes: usize) {
        self.state_mut().set_method(method, min_bytes);
    }

    /// The all-reduce method used for this size by default: the transport's own, or the table's. Called by
    /// `bench allreduce` alone.
    pub fn default_all_reduce_method(&self, bytes: usize) -> AllReduceMethod {
        let native = self.is_world() && self.rank.parts.transport.has_native_all_reduce();
        AllReduceMethod::choose(native, bytes, self.host_numbers())
    }

    /// Runs a collective over the members' `buffer`s, in place. All must pass the same collective, name and length.
    pub fn collective<T: Element>(
        &mut self,
        collective: Collective,
        name: &str,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<Duration> {
        self.check_root(collective)?;
        if self.is_alone()? {
            return Ok(Duration::ZERO);
        }
        let ((), took) = self.operate(collective.name(), name, |operation| {
            let Operation { parts, group, tag, deadline } = operation;
            let schedule = group.schedule(collective, size_of_val(buffer));
            group.executor.run(&schedule, parts.transport.as_mut(), tag, buffer, operator, deadline)
        })?;
        Ok(took)
    }

    /// Sums a buffer over all members, in place; the result is bitwise equal on all.
    pub fn all_reduce<T: Number>(&mut self, name: &str, buffer: &mut [T]) -> Result<Duration> {
        let native = self.state().method(size_of_val(buffer)) == Some(AllReduceMethod::Native);
        match T::as_f32_mut(buffer).filter(|_| native && self.size() > 1) {
            Some(buffer) => {
                self.require_world("the transport's own all-reduce")?;
                let ((), took) = self.operate(Collective::AllReduce.name(), name, |operation| {
                    let Operation { parts, tag, deadline, .. } = operation;
                    native::all_reduce(parts.transport.as_mut(), tag, buffer, deadline)
                })?;
                Ok(took)
            }
            None => self.collective(Collective::AllReduce, name, buffer, &Sum),
        }
    }

    /// Sums the terms in all members' partial sums in the order of the tree, whose terms name ranks within the group; the
    /// result is in each member's first slot. It does not depend on the number of members.
    pub fn all_reduce_tree(
        &mut self,
        name: &str,
        tree: &ReductionTree,
        slots: PartialSums,
        memory: &mut [f32],
    ) -> Result<Duration> {
        if self.is_alone()? {
            return Ok(Duration::ZERO);
        }
        let ((), took) = self.operate("all-reduce", name, |operation| {
            let Operation { parts, group, tag, deadline } = operation;
            let transport = parts.transport.as_mut();
            group.reproducible.all_reduce(transport, tag, tree, slots, memory, deadline)
        })?;
        Ok(took)
    }

    /// An all-reduce in the middle of the computation `work`, which continues afterwards.
    pub fn all_reduce_during(&mut self, work: &str, name: &str, buffer: &mut [f32]) -> Result<Duration> {
        let took = self.all_reduce(name, buffer)?;
        if self.rank.training {
            self.rank.enter(Phase::Computing, work);
        }
        Ok(took)
    }

    /// Returns when every member has called it.
    pub fn barrier(&mut self, name: &str) -> Result<Duration> {
        self.collective(Collective::Barrier, name, &mut [0u8], &Sum)
    }

    /// Overwrites `values` on all members with those of `root`.
    pub fn broadcast_into<T: Number>(&mut self, name: &str, root: usize, values: &mut [T]) -> Result<()> {
        self.collective(Collective::Broadcast { root }, name, values, &Sum).map(|_| ())
    }

    /// Returns the bytes of `root` on all members; `mine` is ignored on the others.
    pub fn broadcast(&mut self, name: &str, root: usize, mine: Vec<u8>) -> Result<Vec<u8>> {
        self.check_root(Collective::Broadcast { root })?;
        if self.is_alone()? {
            return Ok(mine);
        }
        let (theirs, _) = self.operate("broadcast", name, |operation| {
            let Operation { parts, group, tag, deadline } = operation;
            group.members.broadcast(parts.transport.as_mut(), tag, root, mine, deadline)
        })?;
        Ok(theirs)
    }

    /// Gathers a few bytes of every member on every member, by rank; lengths may differ.
    pub fn all_gather(&mut self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.is_alone()? {
            return Ok(vec![mine.to_vec()]);
        }
        let (all, _) = self.operate("all-gather", name, |operation| {
            let Operation { parts, group, tag, deadline } = operation;
            group.members.all_gather(parts.transport.as_mut(), tag, mine, deadline)
        })?;
        Ok(all)
    }

    /// Gathers a few bytes of every member on `root`, by rank; the others get nothing. Lengths may differ.
    pub fn gather(&mut self, name: &str, root: usize, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.check_root(Collective::Broadcast { root })?;
        if self.is_alone()? {
            return Ok(vec![mine.to_vec()]);
        }
        let (all, _) = self.operate("gather", name, |operation| {
            let Operation { parts, group, tag, deadline } = operation;
            group.members.gather(parts.transport.as_mut(), tag, root, mine, deadline)
        })?;
        Ok(all)
    }

    /// Fails if the `digest` of a member differs from that of the first, naming the first such member.
    pub fn compare(&mut self, what: &str, digest: &[u8]) -> Result<()> {
        let equals = self.broadcast(what, 0, digest.to_vec())? == digest;
        let mut differs = [if equals { u64::MAX } else { self.index() as u64 }];
        self.collective(Collective::AllReduce, what, &mut differs, &Min)?;
        if differs[0] == u64::MAX {
            return Ok(());
        }
        let member = |index: usize| self.rank.member_id_at(self.ranks()[index]);
        let (rank, first) = (member(differs[0].min(self.size() as u64 - 1) as usize), member(0));
        let cause = format!("has another {what} than rank {first}");
        Err(Error::new(Kind::Rendezvous, format!("rank {rank} {cause}"))
            .hint("every host must have the same job, the same data and the same version of thalweg")
            .blame(Culprit { rank, cause, ..Culprit::default() }))
    }

    /// Sends `pieces[i]` to rank i, this one included, and returns the pieces received, by rank; lengths may differ.
    pub fn all_to_all<T: Element>(&mut self, name: &str, pieces: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let (arrived, _) = self.operate(Collective::AllToAll.name(), name, |operation| {
            let Operation { parts, group, tag, deadline } = operation;
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| bytemuck::cast_slice(piece)).collect();
            let bytes = group.members.all_to_all(parts.transport.as_mut(), tag, &pieces, deadline)?;
            elements(&bytes, group.ranks())
        })?;
        Ok(arrived)
    }

    /// Runs the group's next operation; returns its result and its duration, which is booked as exchange.
    pub(crate) fn operate<R>(
        &mut self,
        kind: &str,
        name: &str,
        run: impl FnOnce(Operation<'_>) -> Result<R, TransportError>,
    ) -> Result<(R, Duration)> {
        self.check()?;
        let (tag, title) = self.state_mut().next_operation(kind, name);
        let Group { rank, subset } = self;
        rank.await_operation(&title, |rank, deadline| {
            let Rank { parts, world, .. } = rank;
            let group = subset.as_deref_mut().unwrap_or(world);
            run(Operation { parts, group, tag, deadline })
        })
    }

    pub(crate) fn state(&self) -> &ProcessGroup {
        self.subset.as_deref().unwrap_or(&self.rank.world)
    }

    pub(crate) fn state_mut(&mut self) -> &mut ProcessGroup {
        self.subset.as_deref_mut().unwrap_or(&mut self.rank.world)
    }

    fn is_world(&self) -> bool {
        self.subset.is_none()
    }

    /// Fails if the group's generation has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.state().check_generation(self.rank.generation())
    }

    /// Fails if the collective's root is not a member.
    pub(crate) fn check_root(&self, collective: Collective) -> Result<()> {
        let size = self.size();
        match collective {
            Collective::Broadcast { root } | Collective::Reduce { root } if root >= size => {
                let kind = collective.name();
                Err(Error::internal(format!("{kind}: there is no rank {root} in a group of {size}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether this rank is the only member, so that there is nothing to communicate.
    fn is_alone(&self) -> Result<bool> {
        if self.size() > 1 {
            return Ok(false);
        }
        self.check()?;
        // A world of one checks for an abort when it computes; a rank with peers does so in its operations.
        if !self.is_world() {
            self.rank.check()?;
        }
        Ok(true)
    }

    /// Fails on a group that is not the world.
    pub(crate) fn require_world(&self, what: &str) -> Result<()> {
        match self.is_world() {
            true => Ok(()),
            false => Err(Error::internal(format!("{what} needs the world, not {}", self.state().title()))),
        }
    }
}

/// Reinterprets the bytes received from `ranks` as elements.
fn elements<T: Element>(arrived: &[Vec<u8>], ranks: &[usize]) -> Result<Vec<Vec<T>>, TransportError> {
    let width = size_of::<T>().max(1);
    let read = |(bytes, rank): (&Vec<u8>, &usize)| match bytes.len() % width {
        0 => Ok(bytes.chunks_exact(width).map(bytemuck::pod_read_unaligned).collect()),
        _ => {
            let what = format!("{} bytes are no whole number of elements of {width}", bytes.len());
            Err(TransportError::new(*rank, Cause::Protocol(what)))
        }
    };
    arrived.iter().zip(ranks).map(read).collect()
}
