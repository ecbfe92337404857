//! Collectives of the whole group, for every element type and operator.
//!
//! A fixed table chooses the schedule by buffer size; [`Rank::set_allreduce_algorithm`] overrides it for large
//! all-reduces.

use crate::rank::{Rank, RankParts};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use thalweg_comm::collective::operator::Number;
use thalweg_comm::collective::{
    AllReduceMethod, Collective, Element, Executor, Group, Operator, PartialSums, ReductionTree,
    ReproducibleAllReduce, Schedule, Sum, chunk_range, native,
};
use thalweg_comm::transport::{Cause, Transport, TransportError};
use thalweg_core::Result;
use thalweg_core::event::Phase;

/// What a rank needs to run the collectives of one group.
pub(crate) struct CollectiveContext {
    pub(crate) group: Group,
    pub(crate) executor: Executor,
    reproducible: ReproducibleAllReduce,
    /// The method set for all-reduces of at least this many bytes.
    named: Option<(AllReduceMethod, usize)>,
    /// Cached by collective and size in bytes, at most [`MAX_SCHEDULES`]: with several ranks per host choosing one
    /// builds the schedules of all algorithms.
    schedules: HashMap<(Collective, usize), Arc<Schedule>>,
}

/// A program that repeats its buffer sizes uses fewer.
const MAX_SCHEDULES: usize = 64;

impl CollectiveContext {
    /// For the group of all ranks.
    pub(crate) fn of_world(parts: &RankParts) -> CollectiveContext {
        let world = Group::world(parts.transport.rank(), parts.transport.world());
        CollectiveContext::of_group(world.with_hosts(parts.hosts.numbers()))
    }

    pub(crate) fn of_group(group: Group) -> CollectiveContext {
        CollectiveContext {
            group,
            executor: Executor::new(),
            reproducible: ReproducibleAllReduce::default(),
            named: None,
            schedules: HashMap::new(),
        }
    }

    /// The method set for an all-reduce of this size, if any.
    fn method(&self, bytes: usize) -> Option<AllReduceMethod> {
        self.named.filter(|(_, min_bytes)| bytes >= *min_bytes).map(|(method, _)| method)
    }

    /// The schedule of a collective of this size.
    pub(crate) fn schedule(&mut self, collective: Collective, bytes: usize) -> Arc<Schedule> {
        if let Some(schedule) = self.schedules.get(&(collective, bytes)) {
            return Arc::clone(schedule);
        }
        let group = &self.group;
        let schedule = Arc::new(match self.method(bytes) {
            Some(AllReduceMethod::Schedule(algorithm)) if collective == Collective::AllReduce => {
                group.translate_ranks(algorithm.all_reduce(group.group_rank(), group.hosts()))
            }
            _ => group.schedule(collective, bytes),
        });
        if self.schedules.len() >= MAX_SCHEDULES {
            self.schedules.clear();
        }
        self.schedules.insert((collective, bytes), Arc::clone(&schedule));
        schedule
    }
}

impl Rank {
    /// The host of each rank, as the first rank on that host: input to the choice of algorithm.
    pub fn host_numbers(&self) -> &[usize] {
        self.collectives.group.hosts()
    }

    /// Sets the method of all-reduces of at least `min_bytes`; smaller ones use the table. All ranks must set the same.
    pub fn set_allreduce_algorithm(&mut self, method: AllReduceMethod, min_bytes: usize) {
        self.collectives.named = Some((method, min_bytes));
        self.collectives.schedules.clear();
    }

    /// The all-reduce method used for this size by default: the transport's own, or the table's.
    pub fn default_all_reduce_method(&self, bytes: usize) -> AllReduceMethod {
        AllReduceMethod::choose(self.parts.transport.has_native_all_reduce(), bytes, self.host_numbers())
    }

    /// Runs a collective over all ranks' `buffer`s, in place. All ranks must pass the same collective, name and length.
    pub fn collective<T: Element>(
        &mut self,
        collective: Collective,
        name: &str,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<Duration> {
        if self.world() == 1 {
            return Ok(Duration::ZERO);
        }
        let schedule = self.collectives.schedule(collective, size_of_val(buffer));
        self.operate(collective.name(), name, |rank, tag, deadline| {
            let transport = rank.parts.transport.as_mut();
            rank.collectives.executor.run(&schedule, transport, tag, buffer, operator, deadline)
        })
    }

    /// The range of a buffer that this rank owns in a reduce-scatter and an all-gather.
    pub fn own_chunk(&self, length: usize) -> std::ops::Range<usize> {
        chunk_range(length, self.world(), self.index())
    }

    /// Sums a buffer over all ranks, in place; the result is bitwise equal on all ranks.
    pub fn all_reduce<T: Number>(&mut self, name: &str, buffer: &mut [T]) -> Result<Duration> {
        let native =
            self.collectives.method(size_of_val(buffer)) == Some(AllReduceMethod::Native) && self.world() > 1;
        match T::as_f32_mut(buffer).filter(|_| native) {
            Some(buffer) => self.operate(Collective::AllReduce.name(), name, |rank, tag, deadline| {
                native::all_reduce(rank.parts.transport.as_mut(), tag, buffer, deadline)
            }),
            None => self.collective(Collective::AllReduce, name, buffer, &Sum),
        }
    }

    /// Sums the terms in all ranks' partial sums in the order of the tree; the result is in each rank's first slot. The
    /// result does not depend on the number of ranks.
    pub fn all_reduce_tree(
        &mut self,
        name: &str,
        tree: &ReductionTree,
        slots: PartialSums,
        memory: &mut [f32],
    ) -> Result<Duration> {
        if self.world() == 1 {
            return Ok(Duration::ZERO);
        }
        self.operate("all-reduce", name, |rank, tag, deadline| {
            let (context, transport) = (&mut rank.collectives, rank.parts.transport.as_mut());
            context.reproducible.all_reduce(transport, tag, tree, slots, memory, deadline)
        })
    }

    /// An all-reduce in the middle of the computation `work`, which continues afterwards.
    pub fn all_reduce_during(&mut self, work: &str, name: &str, buffer: &mut [f32]) -> Result<Duration> {
        let took = self.all_reduce(name, buffer)?;
        if self.training {
            self.enter(Phase::Computing, work);
        }
        Ok(took)
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self, name: &str) -> Result<Duration> {
        self.collective(Collective::Barrier, name, &mut [0u8], &Sum)
    }

    /// Overwrites `values` on all ranks with rank 0's.
    pub fn broadcast_into<T: Number>(&mut self, name: &str, values: &mut [T]) -> Result<()> {
        self.collective(Collective::Broadcast { root: 0 }, name, values, &Sum).map(|_| ())
    }

    /// Gathers a few bytes of every rank on every rank, by rank; lengths may differ.
    pub fn all_gather(&mut self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.world() == 1 {
            return Ok(vec![mine.to_vec()]);
        }
        let mut all = Vec::new();
        self.operate("all-gather", name, |rank, tag, deadline| {
            all = rank.collectives.group.all_gather(rank.parts.transport.as_mut(), tag, mine, deadline)?;
            Ok(())
        })?;
        Ok(all)
    }

    /// Sends `pieces[i]` to rank i, this one included, and returns the pieces received, by rank; lengths may differ.
    pub fn all_to_all<T: Element>(&mut self, name: &str, pieces: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let mut arrived = Vec::new();
        self.operate(Collective::AllToAll.name(), name, |rank, tag, deadline| {
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| bytemuck::cast_slice(piece)).collect();
            let bytes =
                rank.collectives.group.all_to_all(rank.parts.transport.as_mut(), tag, &pieces, deadline)?;
            arrived = elements(&bytes, rank.collectives.group.ranks())?;
            Ok(())
        })?;
        Ok(arrived)
    }

    /// Returns rank 0's bytes on all ranks; `mine` is ignored on the others.
    pub fn broadcast(&mut self, name: &str, mine: Vec<u8>) -> Result<Vec<u8>> {
        if self.world() == 1 {
            return Ok(mine);
        }
        let mut theirs = Vec::new();
        self.operate("broadcast", name, |rank, tag, deadline| {
            theirs =
                rank.collectives.group.broadcast(rank.parts.transport.as_mut(), tag, 0, mine, deadline)?;
            Ok(())
        })?;
        Ok(theirs)
    }
}

/// Reinterprets the bytes received from `ranks` as elements.
pub(crate) fn elements<T: Element>(
    arrived: &[Vec<u8>],
    ranks: &[usize],
) -> Result<Vec<Vec<T>>, TransportError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulated::fixed_group;
    use crate::engine::threads;
    use thalweg_comm::collective::{Algorithm, Max, Min};
    use thalweg_comm::transport::sim::Network;

    /// Every collective, with several element types and operators.
    fn program(rank: &mut Rank) -> Result<()> {
        let (index, world) = (rank.index(), rank.world());
        let mut counts = vec![index as u64 + 1; 7];
        rank.all_reduce("counts", &mut counts)?;
        assert_eq!(counts, vec![(world * (world + 1) / 2) as u64; 7]);
        let mut extremes = [index as f64, -(index as f64)];
        rank.collective(Collective::AllReduce, "extremes", &mut extremes, &Max)?;
        assert_eq!(extremes, [world as f64 - 1.0, 0.0]);
        let mut least = [index as i32 - 3];
        rank.collective(Collective::Reduce { root: world - 1 }, "least", &mut least, &Min)?;
        assert!(index + 1 < world || least == [-3]);
        let either = |mine: &mut [u8], theirs: &[u8]| mine.iter_mut().zip(theirs).for_each(|(a, b)| *a |= b);
        let mut bits = vec![1u8 << index; 5];
        rank.collective(Collective::ReduceScatter, "bits", &mut bits, &either)?;
        let chunk = rank.own_chunk(5);
        assert!(bits[chunk.clone()].iter().all(|bits| *bits == ((1u16 << world) - 1) as u8));
        let mut owners = vec![0u32; 5];
        owners[chunk].fill(index as u32);
        rank.collective(Collective::AllGather, "owners", &mut owners, &Sum)?;
        assert!(owners.is_sorted() && owners[0] == 0);
        let mut chunks = vec![index as f32; 3 * world];
        rank.collective(Collective::AllToAll, "chunks", &mut chunks, &Sum)?;
        assert!(chunks.iter().enumerate().all(|(at, from)| at / 3 == *from as usize));
        let pieces: Vec<Vec<u32>> = (0..world).map(|to| vec![index as u32; to + 2 * index]).collect();
        let arrived = rank.all_to_all("pieces", &pieces)?;
        assert!((0..world).all(|from| arrived[from] == vec![from as u32; index + 2 * from]));
        let mut values = vec![index as f32; 3];
        rank.broadcast_into("values", &mut values)?;
        assert_eq!(values, [0.0; 3]);
        assert_eq!(rank.all_gather("names", &vec![index as u8; index])?[world - 1].len(), world - 1);
        assert_eq!(rank.broadcast("word", vec![index as u8])?, [0]);
        rank.barrier("the end").map(|_| ())
    }

    #[test]
    fn every_collective_takes_any_element_type_and_operator() {
        for world in [1, 2, 3, 5, 8] {
            for ended in threads::run(world, 0, program) {
                assert_eq!(ended.result, Ok(()));
            }
            let network = Network::ordinary(world, 1);
            for ended in fixed_group::simulate(network, &[], Duration::from_secs(30), program).0 {
                assert_eq!(ended.result, Ok(()));
            }
        }
    }

    #[test]
    fn all_reduces_of_different_tensors_fail() {
        for ended in threads::run(2, 0, |rank| {
            rank.barrier("the start")?;
            let name = ["means", "gradients"][rank.index()];
            rank.all_reduce(name, &mut [1.0f32; 10]).map(|_| ())
        }) {
            let error = ended.result.unwrap_err();
            let mismatch = error.message.contains("is in another operation") && error.hint.is_some();
            assert!(mismatch || error.message.contains("reported lost by rank"), "{error}");
        }
    }

    #[test]
    fn small_all_reduces_ignore_the_method_set_for_large_ones() {
        let mut context = CollectiveContext::of_group(Group::world(0, 8));
        context.named = Some((AllReduceMethod::Schedule(Algorithm::Ring), 1 << 20));
        let (short, long) =
            (context.schedule(Collective::AllReduce, 64), context.schedule(Collective::AllReduce, 100 << 20));
        assert_eq!(*short, Algorithm::BinomialTree.all_reduce(0, context.group.hosts()));
        assert_eq!(*long, Algorithm::Ring.all_reduce(0, context.group.hosts()));
        assert!(Arc::ptr_eq(&short, &context.schedule(Collective::AllReduce, 64)));
        (0..1000).for_each(|bytes| drop(context.schedule(Collective::AllGather, bytes)));
        assert!(context.schedules.len() <= MAX_SCHEDULES);
    }
}
