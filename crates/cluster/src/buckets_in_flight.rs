//! All-reduces of buckets that overlap with computation.
//!
//! A buffer is cut into buckets, which are started in a fixed order as their elements become ready. Between pieces of
//! its computation the rank polls those in flight; at the end it waits for all. Everything runs in the rank's own
//! thread and within one step: state that a fault leaves behind is dropped when the next step begins.

use crate::group::{Group, Operation};
use std::ops::Range;
use std::time::Duration;
use thalweg_comm::collective::{
    Algorithm, BlockingOperation, BucketSet, Collective, Progress, Schedule, Sum,
};
use thalweg_comm::transport::{Tag, TransportError};
use thalweg_comm::wire::tensor;
use thalweg_core::event::Phase;
use thalweg_core::{Error, Result};

/// Shortest time between two polls: each costs some system calls.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A part of a buffer that is reduced by an operation of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    pub range: Range<usize>,
    pub algorithm: Algorithm,
    /// Name in errors: `gradients of ...`.
    pub name: String,
}

/// The buckets of one buffer, and the progress of their all-reduces in the current step.
pub struct BucketsInFlight {
    /// Each with its schedule and the tensor id of its frames.
    buckets: Vec<(Bucket, Schedule, u32)>,
    /// Generation and id of the group that reduces them.
    group: (u32, u32),
    operations: BucketSet,
    /// Number of buckets started in this step.
    started: usize,
    /// Operation id of the first bucket.
    first_operation: u64,
    /// Time of the last poll, and whether any bucket was in flight after it.
    last_poll: (Duration, bool),
    progress_time: Duration,
    overlapped_time: Duration,
}

impl BucketsInFlight {
    /// Number of buckets started in this step.
    pub fn started(&self) -> usize {
        self.started
    }

    /// Time spent in this step on progressing buckets during computation.
    pub fn progress_time(&self) -> Duration {
        self.progress_time
    }

    /// Computation time of this step during which buckets in flight made progress.
    pub fn overlapped_time(&self) -> Duration {
        self.overlapped_time
    }

    /// Name of the first incomplete bucket.
    fn awaited(&self) -> &str {
        let index = self
            .operations
            .first_incomplete()
            .unwrap_or(self.started)
            .min(self.buckets.len().saturating_sub(1));
        self.buckets.get(index).map_or("nothing", |(bucket, ..)| &bucket.name)
    }
}

impl Group<'_> {
    /// Prepares all-reduces of these buckets. All members must pass the same.
    pub fn buckets_in_flight(&self, buckets: Vec<Bucket>) -> BucketsInFlight {
        let group = self.state();
        let schedules = buckets.into_iter().map(|bucket| {
            let schedule = bucket.algorithm.all_reduce(group.index(), group.members.hosts());
            let schedule = group.members.translate_ranks(schedule);
            let tensor = tensor(&format!("all-reduce of {}", bucket.name));
            (bucket, schedule, tensor)
        });
        BucketsInFlight {
            buckets: schedules.collect(),
            group: (group.generation, group.members.id()),
            operations: BucketSet::new(),
            started: 0,
            first_operation: 0,
            last_poll: (Duration::ZERO, false),
            progress_time: Duration::ZERO,
            overlapped_time: Duration::ZERO,
        }
    }

    /// Resets the buckets for a new step and reserves their operation ids. Fails if another group, or that of an earlier
    /// generation, prepared them.
    pub fn begin_bucket_step(&mut self, buckets: &mut BucketsInFlight) -> Result<()> {
        self.check()?;
        let group = self.state_mut();
        if buckets.group != (group.generation, group.members.id()) {
            return Err(Error::internal(format!("buckets of another group than {}", group.title())));
        }
        buckets.operations.clear();
        (buckets.started, buckets.last_poll) = (0, (Duration::ZERO, false));
        (buckets.progress_time, buckets.overlapped_time) = (Duration::ZERO, Duration::ZERO);
        // Reserved before the computation: all-reduces within it get later ids on every rank.
        buckets.first_operation = group.operation + 1;
        group.operation += buckets.buckets.len() as u64;
        Ok(())
    }

    /// Starts the all-reduce of the next bucket, which owns its part of the buffer until [`Group::finish_buckets`].
    pub fn start_next_bucket(&mut self, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<()> {
        self.progress_buckets(buckets, buffer)?;
        self.start_bucket(buckets).map_err(|fault| self.bucket_error(buckets, &fault))?;
        self.progress_buckets(buckets, buffer)
    }

    fn start_bucket(&mut self, buckets: &mut BucketsInFlight) -> Result<(), TransportError> {
        let BucketsInFlight { buckets, group, operations, started, first_operation, .. } = buckets;
        let Some((bucket, schedule, tensor)) = buckets.get(*started) else { return Ok(()) };
        let ((generation, group), operation) = (*group, *first_operation + *started as u64);
        let tag = Tag { generation, operation, group, tensor: *tensor };
        operations.start::<f32>(schedule, self.rank.parts.transport.as_ref(), tag, bucket.range.clone())?;
        *started += 1;
        Ok(())
    }

    /// Progresses the buckets in flight between two pieces of computation, unless it did so just before.
    pub fn poll_buckets(&mut self, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<()> {
        let (last_poll, in_flight) = buckets.last_poll;
        if !in_flight || self.rank.now().saturating_sub(last_poll) < POLL_INTERVAL {
            return Ok(());
        }
        self.progress_buckets(buckets, buffer)
    }

    /// Progresses all buckets without waiting; the time is booked as exchange.
    fn progress_buckets(&mut self, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<()> {
        if buckets.operations.first_incomplete().is_none() {
            return Ok(());
        }
        let (start, mut moved) = (self.rank.now(), false);
        loop {
            let transport = self.rank.parts.transport.as_mut();
            match buckets.operations.progress(transport, buffer, &Sum) {
                Ok(Progress::Moved) => moved = true,
                Ok(Progress::Idle) => break,
                Ok(Progress::Done) => {
                    moved = true;
                    break;
                }
                Err(fault) => return Err(self.bucket_error(buckets, &fault)),
            }
        }
        let (last_poll, in_flight) = buckets.last_poll;
        if in_flight && moved {
            buckets.overlapped_time += start.saturating_sub(last_poll);
        }
        let end = self.rank.now();
        buckets.last_poll = (end, buckets.operations.first_incomplete().is_some());
        buckets.progress_time += end - start;
        self.rank.book_exchange(end - start);
        Ok(())
    }

    /// A blocking all-reduce in the middle of the computation `work`, with buckets in flight. All members must
    /// have started the same buckets.
    pub fn all_reduce_with_buckets_in_flight(
        &mut self,
        buckets: &mut BucketsInFlight,
        buffer: &mut [f32],
        work: &str,
        name: &str,
        values: &mut [f32],
    ) -> Result<Duration> {
        self.progress_buckets(buckets, buffer)?;
        let operations = &mut buckets.operations;
        let ((), took) = self.operate("all-reduce", name, |operation| {
            let Operation { parts, group, tag, deadline } = operation;
            let schedule = group.schedule(Collective::AllReduce, size_of_val(values));
            let operation = BlockingOperation { schedule: &schedule, tag, values };
            operations.run_blocking(parts.transport.as_mut(), buffer, operation, &Sum, deadline)
        })?;
        buckets.last_poll = (self.rank.now(), buckets.operations.first_incomplete().is_some());
        if self.rank.training {
            self.rank.enter(Phase::Computing, work);
        }
        Ok(took)
    }

    /// Starts the remaining buckets and waits for all of them: then the buffer holds the sums.
    pub fn finish_buckets(&mut self, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<Duration> {
        self.progress_buckets(buckets, buffer)?;
        self.rank.enter(Phase::Exchanging, &self.awaited_title(buckets));
        self.rank.check()?;
        self.rank.livelock_if_injected();
        let start = self.rank.now();
        let result = self.wait_for_buckets(buckets, buffer);
        let took = self.rank.now() - start;
        self.rank.book_exchange(took);
        result.map_err(|fault| self.bucket_error(buckets, &fault))?;
        Ok(took)
    }

    fn wait_for_buckets(
        &mut self,
        buckets: &mut BucketsInFlight,
        buffer: &mut [f32],
    ) -> Result<(), TransportError> {
        while buckets.started < buckets.buckets.len() {
            self.start_bucket(buckets)?;
        }
        let deadline = self.rank.deadline();
        buckets.operations.finish(self.rank.parts.transport.as_mut(), buffer, &Sum, deadline)
    }

    fn bucket_error(&self, buckets: &BucketsInFlight, fault: &TransportError) -> Error {
        self.rank.explain(fault, &self.awaited_title(buckets))
    }

    /// Name in errors of the first incomplete bucket.
    fn awaited_title(&self, buckets: &BucketsInFlight) -> String {
        let mut title = format!("all-reduce of {}", buckets.awaited());
        self.state().add_name(&mut title);
        title
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulated::simulate;
    use crate::engine::threads::simulated_links;
    use crate::membership_policy::MembershipConfig;
    use crate::rank::Rank;
    use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind};

    fn buckets() -> Vec<Bucket> {
        let bucket = |range, algorithm, name: &str| Bucket { range, algorithm, name: name.into() };
        vec![
            bucket(0..700, Algorithm::Ring, "gradients of a"),
            bucket(700..700, Algorithm::Direct, "gradients of nothing"),
            bucket(700..50_000, Algorithm::HalvingDoubling, "gradients of b"),
        ]
    }

    /// Buckets are started during computation, with a blocking all-reduce in between.
    fn step(group: &mut Group, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<Duration> {
        group.begin_bucket_step(buckets)?;
        buffer.fill(1.0 + group.index() as f32);
        group.start_next_bucket(buckets, buffer)?;
        group.rank.sleep(Duration::from_millis(1 + group.index() as u64));
        group.poll_buckets(buckets, buffer)?;
        group.start_next_bucket(buckets, buffer)?;
        let mut values = [2.0, 3.0];
        group.all_reduce_with_buckets_in_flight(buckets, buffer, "work", "statistics", &mut values)?;
        let size = group.size() as f32;
        assert_eq!(values, [2.0 * size, 3.0 * size]);
        group.finish_buckets(buckets, buffer)
    }

    /// Three steps; returns the overlapped time.
    fn steps(group: &mut Group) -> Result<Duration> {
        let (mut buckets, mut buffer) = (group.buckets_in_flight(buckets()), vec![0.0; 50_000]);
        let mut overlapped = Duration::ZERO;
        for number in 0..3 {
            group.rank.begin_step(number);
            step(group, &mut buckets, &mut buffer)?;
            assert!(buffer.iter().all(|sum| *sum == 6.0), "step {number}");
            overlapped += buckets.overlapped_time();
        }
        Ok(overlapped)
    }

    #[test]
    fn buckets_are_reduced_during_computation() {
        let simulate = |world: usize, program: fn(&mut Rank) -> Result<Duration>| {
            let network = Network { bandwidth: 1e7, ..Network::ordinary(world, 5) };
            let (ended, _) =
                simulate(network, &[], &MembershipConfig::fixed(Duration::from_secs(5)), program);
            let overlapped: Duration = ended.into_iter().map(|ended| ended.result.unwrap()).sum();
            assert!(overlapped > Duration::ZERO);
        };
        simulate(3, |rank| steps(&mut rank.world()));
        // Of three ranks of five, while the others wait for them.
        simulate(5, |rank| {
            let mut overlapped = Duration::ZERO;
            if rank.index() % 2 == 0 {
                let mut even = rank.new_group("even", &[0, 2, 4])?;
                overlapped = steps(&mut rank.group(&mut even))?;
                let mut others = rank.world().buckets_in_flight(buckets());
                assert!(rank.group(&mut even).begin_bucket_step(&mut others).is_err());
            }
            rank.world().barrier("the end")?;
            Ok(overlapped)
        });
    }

    #[test]
    fn a_death_names_the_rank_and_the_bucket() {
        let network = Network { bandwidth: 1e6, ..Network::ordinary(2, 5) };
        let kill = SimulatedFault::at(Duration::from_millis(40), SimulatedFaultKind::Kill { rank: 1 });
        let ended = simulated_links::run(network, &[kill], Duration::from_secs(5), |rank| {
            rank.begin_step(7);
            let (mut buckets, mut buffer) = (rank.world().buckets_in_flight(buckets()), vec![0.0; 50_000]);
            step(&mut rank.world(), &mut buckets, &mut buffer)
        });
        let error = ended[0].as_ref().unwrap_err();
        let culprit = error.culprit.as_ref().unwrap();
        assert_eq!((culprit.rank, culprit.step), (1, Some(7)), "{error}");
        assert_eq!(culprit.operation.as_deref(), Some("all-reduce of gradients of b"), "{error}");
    }
}
