//! What all ranks do together with one buffer each: one interface to every collective, element type and operator.
//!
//! Which schedule carries out a collective is read from a fixed table by its size; the job, or a measurement, can name the
//! algorithm of the all-reduces that matter to it.

use crate::rank::{Parts, Rank};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use thalweg_comm::collective::operator::Number;
use thalweg_comm::collective::{
    Bracketed, Brackets, Circle, Element, Executor, Goal, Method, Operator, Schedule, Slots, Sum,
    chunk_range, native,
};
use thalweg_comm::transport::{Cause, Fault, Transport};
use thalweg_core::Result;
use thalweg_core::event::Phase;

/// How a rank carries out collectives.
pub(crate) struct Means {
    /// Who takes part.
    pub(crate) circle: Circle,
    pub(crate) executor: Executor,
    bracketed: Bracketed,
    /// The method that was named for all-reduces of at least so many bytes.
    named: Option<(Method, usize)>,
    /// The schedules so far, by what they are for and by how many bytes, and no more than [`KEPT`]: on hosts of several
    /// ranks a choice goes through the schedules of all.
    schedules: HashMap<(Goal, usize), Arc<Schedule>>,
}

/// More lengths than that do not come again and again.
const KEPT: usize = 64;

impl Means {
    /// Those of a rank of this group; all-reduces are carried out as the table says.
    pub(crate) fn of(parts: &Parts) -> Means {
        let everybody = Circle::everybody(parts.transport.rank(), parts.transport.world());
        Means::among(everybody.on(parts.hosts.numbers()))
    }

    /// Those among some ranks.
    pub(crate) fn among(circle: Circle) -> Means {
        Means {
            circle,
            executor: Executor::new(),
            bracketed: Bracketed::default(),
            named: None,
            schedules: HashMap::new(),
        }
    }

    /// What was named for an all-reduce of so many bytes, if anything was.
    fn method(&self, bytes: usize) -> Option<Method> {
        self.named.filter(|(_, least)| bytes >= *least).map(|(method, _)| method)
    }

    /// What carries out a collective of so many bytes by messages.
    pub(crate) fn schedule(&mut self, goal: Goal, bytes: usize) -> Arc<Schedule> {
        if let Some(schedule) = self.schedules.get(&(goal, bytes)) {
            return Arc::clone(schedule);
        }
        let circle = &self.circle;
        let schedule = Arc::new(match self.method(bytes) {
            Some(Method::Schedule(algorithm)) if goal == Goal::AllReduce => {
                circle.carry(algorithm.all_reduce(circle.place(), circle.hosts()))
            }
            _ => circle.schedule(goal, bytes),
        });
        if self.schedules.len() >= KEPT {
            self.schedules.clear();
        }
        self.schedules.insert((goal, bytes), Arc::clone(&schedule));
        schedule
    }
}

impl Rank {
    /// On which host each rank is, by number: what a choice of algorithms asks for.
    pub fn host_numbers(&self) -> &[usize] {
        self.means.circle.hosts()
    }

    /// From now on all-reduces of at least so many bytes are carried out this way, shorter ones by the table. All ranks
    /// must say the same.
    pub fn exchange_by(&mut self, method: Method, least_bytes: usize) {
        self.means.named = Some((method, least_bytes));
        self.means.schedules.clear();
    }

    /// What an all-reduce of so many bytes is carried out by where nobody chooses: the transport's own, or the table's.
    pub fn choose_method(&self, bytes: usize) -> Method {
        Method::choose(self.parts.transport.adds_up(), bytes, self.host_numbers())
    }

    /// Carries out a collective over everybody's `buffer`, in place. All ranks must give the same goal, name and length.
    pub fn collective<T: Element>(
        &mut self,
        goal: Goal,
        name: &str,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<Duration> {
        if self.world() == 1 {
            return Ok(Duration::ZERO);
        }
        let schedule = self.means.schedule(goal, size_of_val(buffer));
        self.operate(goal.name(), name, |rank, tag, deadline| {
            let transport = rank.parts.transport.as_mut();
            rank.means.executor.run(&schedule, transport, tag, buffer, operator, deadline)
        })
    }

    /// The elements of a buffer that are this rank's in a reduce-scatter and an all-gather.
    pub fn share(&self, length: usize) -> std::ops::Range<usize> {
        chunk_range(length, self.world(), self.index())
    }

    /// Adds up a buffer over all ranks, in place; every rank gets the same bits.
    pub fn all_reduce<T: Number>(&mut self, name: &str, buffer: &mut [T]) -> Result<Duration> {
        let native = self.means.method(size_of_val(buffer)) == Some(Method::Native) && self.world() > 1;
        match T::singles(buffer).filter(|_| native) {
            Some(buffer) => self.operate(Goal::AllReduce.name(), name, |rank, tag, deadline| {
                native::all_reduce(rank.parts.transport.as_mut(), tag, buffer, deadline)
            }),
            None => self.collective(Goal::AllReduce, name, buffer, &Sum),
        }
    }

    /// Adds up the terms in all ranks' slots as the brackets say; the sum is in everybody's first slot.
    pub fn all_reduce_brackets(
        &mut self,
        name: &str,
        brackets: &Brackets,
        slots: Slots,
        memory: &mut [f32],
    ) -> Result<Duration> {
        if self.world() == 1 {
            return Ok(Duration::ZERO);
        }
        self.operate("all-reduce", name, |rank, tag, deadline| {
            let (means, transport) = (&mut rank.means, rank.parts.transport.as_mut());
            means.bracketed.all_reduce(transport, tag, brackets, slots, memory, deadline)
        })
    }

    /// Adds up a buffer in the middle of a piece of work, and goes on with it.
    pub fn all_reduce_within(&mut self, work: &str, name: &str, buffer: &mut [f32]) -> Result<Duration> {
        let took = self.all_reduce(name, buffer)?;
        if self.training {
            self.enter(Phase::Computing, work);
        }
        Ok(took)
    }

    /// Returns when every rank has come here.
    pub fn barrier(&mut self, name: &str) -> Result<Duration> {
        self.collective(Goal::Barrier, name, &mut [0u8], &Sum)
    }

    /// Everybody's numbers become rank 0's.
    pub fn broadcast_into<T: Number>(&mut self, name: &str, values: &mut [T]) -> Result<()> {
        self.collective(Goal::Broadcast { root: 0 }, name, values, &Sum).map(|_| ())
    }

    /// Collects a few bytes of every rank on every rank, in the order of ranks.
    pub fn all_gather(&mut self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.world() == 1 {
            return Ok(vec![mine.to_vec()]);
        }
        let mut all = Vec::new();
        self.operate("all-gather", name, |rank, tag, deadline| {
            all = rank.means.circle.all_gather(rank.parts.transport.as_mut(), tag, mine, deadline)?;
            Ok(())
        })?;
        Ok(all)
    }

    /// Every rank gives each of them some elements, itself included, and gets what each has for it, by rank.
    pub fn all_to_all<T: Element>(&mut self, name: &str, pieces: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let mut arrived = Vec::new();
        self.operate(Goal::AllToAll.name(), name, |rank, tag, deadline| {
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| bytemuck::cast_slice(piece)).collect();
            let bytes =
                rank.means.circle.all_to_all(rank.parts.transport.as_mut(), tag, &pieces, deadline)?;
            arrived = elements(&bytes, rank.means.circle.ranks())?;
            Ok(())
        })?;
        Ok(arrived)
    }

    /// Everybody gets rank 0's bytes; the others' own are ignored.
    pub fn broadcast(&mut self, name: &str, mine: Vec<u8>) -> Result<Vec<u8>> {
        if self.world() == 1 {
            return Ok(mine);
        }
        let mut theirs = Vec::new();
        self.operate("broadcast", name, |rank, tag, deadline| {
            theirs = rank.means.circle.broadcast(rank.parts.transport.as_mut(), tag, 0, mine, deadline)?;
            Ok(())
        })?;
        Ok(theirs)
    }
}

/// What came from these ranks, as elements.
pub(crate) fn elements<T: Element>(arrived: &[Vec<u8>], ranks: &[usize]) -> Result<Vec<Vec<T>>, Fault> {
    let width = size_of::<T>().max(1);
    let read = |(bytes, rank): (&Vec<u8>, &usize)| match bytes.len() % width {
        0 => Ok(bytes.chunks_exact(width).map(bytemuck::pod_read_unaligned).collect()),
        _ => {
            let what = format!("{} bytes are no whole number of elements of {width}", bytes.len());
            Err(Fault::of(*rank, Cause::Protocol(what)))
        }
    };
    arrived.iter().zip(ranks).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::threads;
    use thalweg_comm::collective::{Algorithm, Max, Min};
    use thalweg_comm::transport::sim::Network;

    /// Every collective, with several element types and operators, as programs call them.
    fn program(rank: &mut Rank) -> Result<()> {
        let (index, world) = (rank.index(), rank.world());
        let mut counts = vec![index as u64 + 1; 7];
        rank.all_reduce("counts", &mut counts)?;
        assert_eq!(counts, vec![(world * (world + 1) / 2) as u64; 7]);
        let mut extremes = [index as f64, -(index as f64)];
        rank.collective(Goal::AllReduce, "extremes", &mut extremes, &Max)?;
        assert_eq!(extremes, [world as f64 - 1.0, 0.0]);
        let mut least = [index as i32 - 3];
        rank.collective(Goal::Reduce { root: world - 1 }, "least", &mut least, &Min)?;
        assert!(index + 1 < world || least == [-3]);
        let either = |mine: &mut [u8], theirs: &[u8]| mine.iter_mut().zip(theirs).for_each(|(a, b)| *a |= b);
        let mut bits = vec![1u8 << index; 5];
        rank.collective(Goal::ReduceScatter, "bits", &mut bits, &either)?;
        let share = rank.share(5);
        assert!(bits[share.clone()].iter().all(|bits| *bits == ((1u16 << world) - 1) as u8));
        let mut owners = vec![0u32; 5];
        owners[share].fill(index as u32);
        rank.collective(Goal::AllGather, "owners", &mut owners, &Sum)?;
        assert!(owners.is_sorted() && owners[0] == 0);
        let mut letters = vec![index as f32; 3 * world];
        rank.collective(Goal::AllToAll, "letters", &mut letters, &Sum)?;
        assert!(letters.iter().enumerate().all(|(place, from)| place / 3 == *from as usize));
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
    fn programs_reach_every_collective_with_any_elements_and_operators() {
        for world in [1, 2, 3, 5, 8] {
            for ended in threads::run(world, 0, program) {
                assert_eq!(ended.result, Ok(()));
            }
            let network = Network::ordinary(world, 1);
            for ended in threads::simulate(network, &[], Duration::from_secs(30), program).0 {
                assert_eq!(ended.result, Ok(()));
            }
        }
    }

    #[test]
    fn ranks_that_add_up_different_tensors_are_told() {
        for ended in threads::run(2, 0, |rank| {
            rank.barrier("the start")?;
            let name = ["means", "gradients"][rank.index()];
            rank.all_reduce(name, &mut [1.0f32; 10]).map(|_| ())
        }) {
            let error = ended.result.unwrap_err();
            let told = error.message.contains("is in another operation") && error.hint.is_some();
            assert!(told || error.message.contains("says rank"), "{error}");
        }
    }

    #[test]
    fn short_sums_do_not_run_the_algorithm_of_long_ones() {
        let mut means = Means::among(Circle::everybody(0, 8));
        means.named = Some((Method::Schedule(Algorithm::Ring), 1 << 20));
        let (short, long) = (means.schedule(Goal::AllReduce, 64), means.schedule(Goal::AllReduce, 100 << 20));
        assert_eq!(*short, Algorithm::BinomialTree.all_reduce(0, means.circle.hosts()));
        assert_eq!(*long, Algorithm::Ring.all_reduce(0, means.circle.hosts()));
        assert!(Arc::ptr_eq(&short, &means.schedule(Goal::AllReduce, 64)));
        (0..1000).for_each(|bytes| drop(means.schedule(Goal::AllGather, bytes)));
        assert!(means.schedules.len() <= KEPT);
    }
}
