//! All-reduces of buckets that overlap with computation.
//!
//! A buffer is cut into buckets, which are started in a fixed order as their elements become ready. Between pieces of
//! its computation the rank polls those in flight; at the end it waits for all. Everything runs in the rank's own
//! thread and within one step: state that a fault leaves behind is dropped when the next step begins.

use crate::rank::Rank;
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

impl Rank {
    /// Prepares all-reduces of these buckets. All ranks must pass the same.
    pub fn buckets_in_flight(&self, buckets: Vec<Bucket>) -> BucketsInFlight {
        let schedules = buckets.into_iter().map(|bucket| {
            let schedule = bucket.algorithm.all_reduce(self.index(), self.host_numbers());
            let tensor = tensor(&format!("all-reduce of {}", bucket.name));
            (bucket, schedule, tensor)
        });
        BucketsInFlight {
            buckets: schedules.collect(),
            operations: BucketSet::new(),
            started: 0,
            first_operation: 0,
            last_poll: (Duration::ZERO, false),
            progress_time: Duration::ZERO,
            overlapped_time: Duration::ZERO,
        }
    }

    /// Resets the buckets for a new step and reserves their operation ids.
    pub fn begin_bucket_step(&mut self, buckets: &mut BucketsInFlight) {
        buckets.operations.clear();
        (buckets.started, buckets.last_poll) = (0, (Duration::ZERO, false));
        (buckets.progress_time, buckets.overlapped_time) = (Duration::ZERO, Duration::ZERO);
        // Reserved before the computation: all-reduces within it get later ids on every rank.
        buckets.first_operation = self.operation + 1;
        self.operation += buckets.buckets.len() as u64;
    }

    /// Starts the all-reduce of the next bucket, which owns its part of the buffer until [`Rank::finish_buckets`].
    pub fn start_next_bucket(&mut self, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<()> {
        self.progress_buckets(buckets, buffer)?;
        self.start_bucket(buckets).map_err(|fault| self.bucket_error(buckets, &fault))?;
        self.progress_buckets(buckets, buffer)
    }

    fn start_bucket(&mut self, buckets: &mut BucketsInFlight) -> Result<(), TransportError> {
        let BucketsInFlight { buckets, operations, started, first_operation, .. } = buckets;
        let Some((bucket, schedule, tensor)) = buckets.get(*started) else { return Ok(()) };
        let (generation, operation) = (self.parts.generation, *first_operation + *started as u64);
        let tag = Tag { generation, operation, group: 0, tensor: *tensor };
        operations.start::<f32>(schedule, self.parts.transport.as_ref(), tag, bucket.range.clone())?;
        *started += 1;
        Ok(())
    }

    /// Progresses the buckets in flight between two pieces of computation, unless it did so just before.
    pub fn poll_buckets(&mut self, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<()> {
        let (last_poll, in_flight) = buckets.last_poll;
        if !in_flight || self.now().saturating_sub(last_poll) < POLL_INTERVAL {
            return Ok(());
        }
        self.progress_buckets(buckets, buffer)
    }

    /// Progresses all buckets without waiting; the time is booked as exchange.
    fn progress_buckets(&mut self, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<()> {
        if buckets.operations.first_incomplete().is_none() {
            return Ok(());
        }
        let (start, mut moved) = (self.now(), false);
        loop {
            let transport = self.parts.transport.as_mut();
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
        let end = self.now();
        buckets.last_poll = (end, buckets.operations.first_incomplete().is_some());
        buckets.progress_time += end - start;
        if self.training {
            self.account.exchange_s += (end - start).as_secs_f64();
        }
        Ok(())
    }

    /// A blocking all-reduce in the middle of the computation `work`, with buckets in flight. All ranks must have
    /// started the same buckets.
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
        let took = self.operate("all-reduce", name, |rank, tag, deadline| {
            let schedule = rank.collectives.schedule(Collective::AllReduce, size_of_val(values));
            let operation = BlockingOperation { schedule: &schedule, tag, values };
            operations.run_blocking(rank.parts.transport.as_mut(), buffer, operation, &Sum, deadline)
        })?;
        buckets.last_poll = (self.now(), buckets.operations.first_incomplete().is_some());
        if self.training {
            self.enter(Phase::Computing, work);
        }
        Ok(took)
    }

    /// Starts the remaining buckets and waits for all of them: then the buffer holds the sums.
    pub fn finish_buckets(&mut self, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<Duration> {
        self.progress_buckets(buckets, buffer)?;
        let name = format!("all-reduce of {}", buckets.awaited());
        self.parts.rank_status.enter(self.step, Phase::Exchanging, self.operation, &name);
        self.check()?;
        self.livelock_if_injected();
        let start = self.now();
        let result = self.wait_for_buckets(buckets, buffer);
        let took = self.now() - start;
        if self.training {
            self.account.exchange_s += took.as_secs_f64();
        }
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
        let deadline = self.deadline();
        buckets.operations.finish(self.parts.transport.as_mut(), buffer, &Sum, deadline)
    }

    fn bucket_error(&self, buckets: &BucketsInFlight, fault: &TransportError) -> Error {
        self.explain(fault, "all-reduce", buckets.awaited())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulated::fixed_group;
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
    fn step(rank: &mut Rank, buckets: &mut BucketsInFlight, buffer: &mut [f32]) -> Result<Duration> {
        rank.begin_bucket_step(buckets);
        buffer.fill(1.0 + rank.index() as f32);
        rank.start_next_bucket(buckets, buffer)?;
        rank.sleep(Duration::from_millis(1 + rank.index() as u64));
        rank.poll_buckets(buckets, buffer)?;
        rank.start_next_bucket(buckets, buffer)?;
        let mut values = [2.0, 3.0];
        rank.all_reduce_with_buckets_in_flight(buckets, buffer, "work", "statistics", &mut values)?;
        let world = rank.world() as f32;
        assert_eq!(values, [2.0 * world, 3.0 * world]);
        rank.finish_buckets(buckets, buffer)
    }

    #[test]
    fn buckets_are_reduced_during_computation() {
        let network = Network { bandwidth: 1e7, ..Network::ordinary(3, 5) };
        let (ended, _) = fixed_group::simulate(network, &[], Duration::from_secs(5), |rank| {
            let (mut buckets, mut buffer) = (rank.buckets_in_flight(buckets()), vec![0.0; 50_000]);
            let mut overlapped = Duration::ZERO;
            for number in 0..3 {
                rank.begin_step(number);
                step(rank, &mut buckets, &mut buffer)?;
                assert!(buffer.iter().all(|sum| *sum == 6.0), "step {number}");
                overlapped += buckets.overlapped_time();
            }
            Ok(overlapped)
        });
        let overlapped: Duration = ended.into_iter().map(|ended| ended.result.unwrap()).sum();
        assert!(overlapped > Duration::ZERO);
    }

    #[test]
    fn a_death_names_the_rank_and_the_bucket() {
        let network = Network { bandwidth: 1e6, ..Network::ordinary(2, 5) };
        let kill = SimulatedFault::at(Duration::from_millis(40), SimulatedFaultKind::Kill { rank: 1 });
        let (ended, _) = fixed_group::simulate(network, &[kill], Duration::from_secs(5), |rank| {
            let (mut buckets, mut buffer) = (rank.buckets_in_flight(buckets()), vec![0.0; 50_000]);
            rank.begin_step(7);
            step(rank, &mut buckets, &mut buffer)
        });
        let error = ended[0].result.as_ref().unwrap_err();
        let culprit = error.culprit.as_ref().unwrap();
        assert_eq!((culprit.rank, culprit.step), (1, Some(7)), "{error}");
        assert_eq!(culprit.operation.as_deref(), Some("all-reduce of gradients of b"), "{error}");
    }
}
