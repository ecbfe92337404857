//! Exchanges that are under way while a rank computes.
//!
//! A buffer is cut into buckets. Each leaves when its part of the buffer is ready, always in the same order; between
//! pieces of its own work the rank looks after those that have left, and when its work is done it waits for the rest.
//! All of it happens in the rank's own thread and within one step: what a fault leaves behind is forgotten when the next
//! step begins.

use crate::rank::Rank;
use std::ops::Range;
use std::time::Duration;
use thalweg_comm::collective::{Algorithm, Flight, Goal, Guest, Progress, Schedule, Sum};
use thalweg_comm::transport::{Fault, Tag};
use thalweg_comm::wire::tensor;
use thalweg_core::event::Phase;
use thalweg_core::{Error, Result};

/// The least time between two looks at what is under way: a look costs some system calls.
const PAUSE: Duration = Duration::from_micros(50);

/// A part of a buffer that travels on its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    /// Its elements.
    pub range: Range<usize>,
    /// How they are summed.
    pub algorithm: Algorithm,
    /// What it is called in errors: `gradients of ...`.
    pub name: String,
}

/// The buckets of one buffer, and how far they are on their way.
pub struct Departures {
    /// Each with its schedule, and what its frames carry of its name.
    buckets: Vec<(Bucket, Schedule, u32)>,
    flight: Flight,
    /// So many have left in this step.
    left: usize,
    /// The number of the first one's operation.
    first: u64,
    /// When the rank last looked after them, and whether something was under way then.
    looked: (Duration, bool),
    looking: Duration,
    beside: Duration,
}

impl Departures {
    /// How many have left in this step.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Time spent looking after them in this step, while the rank had work of its own.
    pub fn looking(&self) -> Duration {
        self.looking
    }

    /// Time of the rank's own work in this step during which something was under way, as far as it was seen to have
    /// moved meanwhile.
    pub fn beside(&self) -> Duration {
        self.beside
    }

    /// What is waited for first.
    fn awaited(&self) -> &str {
        let index = self.flight.first_open().unwrap_or(self.left).min(self.buckets.len().saturating_sub(1));
        self.buckets.get(index).map_or("nothing", |(bucket, ..)| &bucket.name)
    }
}

impl Rank {
    /// Makes ready for exchanges in these buckets. All ranks must name the same.
    pub fn open_departures(&self, buckets: Vec<Bucket>) -> Departures {
        let schedules = buckets.into_iter().map(|bucket| {
            let schedule = bucket.algorithm.all_reduce(self.index(), self.host_numbers());
            let tensor = tensor(&format!("all-reduce of {}", bucket.name));
            (bucket, schedule, tensor)
        });
        Departures {
            buckets: schedules.collect(),
            flight: Flight::new(),
            left: 0,
            first: 0,
            looked: (Duration::ZERO, false),
            looking: Duration::ZERO,
            beside: Duration::ZERO,
        }
    }

    /// A step begins: nothing has left yet.
    pub fn begin_departures(&mut self, departures: &mut Departures) {
        departures.flight.abandon();
        (departures.left, departures.looked) = (0, (Duration::ZERO, false));
        (departures.looking, departures.beside) = (Duration::ZERO, Duration::ZERO);
        // Numbered before the pass: whatever it sums on its way comes after them on every rank.
        departures.first = self.operation + 1;
        self.operation += departures.buckets.len() as u64;
    }

    /// The next bucket leaves: from now on its part of the buffer belongs to the exchange.
    pub fn send_off(&mut self, departures: &mut Departures, buffer: &mut [f32]) -> Result<()> {
        self.look_after(departures, buffer)?;
        self.start_next(departures).map_err(|fault| self.blame(departures, &fault))?;
        self.look_after(departures, buffer)
    }

    fn start_next(&mut self, departures: &mut Departures) -> Result<(), Fault> {
        let Departures { buckets, flight, left, first, .. } = departures;
        let Some((bucket, schedule, tensor)) = buckets.get(*left) else { return Ok(()) };
        let (generation, operation) = (self.parts.generation, *first + *left as u64);
        let tag = Tag { generation, operation, group: 0, tensor: *tensor };
        flight.start::<f32>(schedule, self.parts.transport.as_ref(), tag, bucket.range.clone())?;
        *left += 1;
        Ok(())
    }

    /// Between two pieces of work: what is under way moves on, unless it just did.
    pub fn glance(&mut self, departures: &mut Departures, buffer: &mut [f32]) -> Result<()> {
        let (looked, under_way) = departures.looked;
        if !under_way || self.now().saturating_sub(looked) < PAUSE {
            return Ok(());
        }
        self.look_after(departures, buffer)
    }

    /// Moves what can be moved without waiting. It is booked as exchange.
    fn look_after(&mut self, departures: &mut Departures, buffer: &mut [f32]) -> Result<()> {
        if departures.flight.first_open().is_none() {
            return Ok(());
        }
        let (start, mut moved) = (self.now(), false);
        loop {
            let transport = self.parts.transport.as_mut();
            match departures.flight.progress(transport, buffer, &Sum) {
                Ok(Progress::Moved) => moved = true,
                Ok(Progress::Idle) => break,
                Ok(Progress::Done) => {
                    moved = true;
                    break;
                }
                Err(fault) => return Err(self.blame(departures, &fault)),
            }
        }
        let (looked, under_way) = departures.looked;
        if under_way && moved {
            departures.beside += start.saturating_sub(looked);
        }
        let end = self.now();
        departures.looked = (end, departures.flight.first_open().is_some());
        departures.looking += end - start;
        if self.training {
            self.account.exchange_s += (end - start).as_secs_f64();
        }
        Ok(())
    }

    /// Adds up values in the middle of a piece of work, while buckets are under way, and goes on with it. All ranks must
    /// have sent off the same buckets before.
    pub fn all_reduce_beside(
        &mut self,
        departures: &mut Departures,
        buffer: &mut [f32],
        work: &str,
        name: &str,
        values: &mut [f32],
    ) -> Result<Duration> {
        self.look_after(departures, buffer)?;
        let flight = &mut departures.flight;
        let took = self.operate("all-reduce", name, |rank, tag, deadline| {
            let schedule = rank.means.schedule(Goal::AllReduce, size_of_val(values));
            let guest = Guest { schedule: &schedule, tag, values };
            flight.run_beside(rank.parts.transport.as_mut(), buffer, guest, &Sum, deadline)
        })?;
        departures.looked = (self.now(), departures.flight.first_open().is_some());
        if self.training {
            self.enter(Phase::Computing, work);
        }
        Ok(took)
    }

    /// Sends off what has not left and waits until all have arrived: then the buffer holds the sums.
    pub fn await_departures(&mut self, departures: &mut Departures, buffer: &mut [f32]) -> Result<Duration> {
        self.look_after(departures, buffer)?;
        let name = format!("all-reduce of {}", departures.awaited());
        self.parts.beacon.enter(self.step, Phase::Exchanging, self.operation, &name);
        self.check()?;
        self.livelock_if_injected();
        let start = self.now();
        let result = self.wait_for(departures, buffer);
        let took = self.now() - start;
        if self.training {
            self.account.exchange_s += took.as_secs_f64();
        }
        result.map_err(|fault| self.blame(departures, &fault))?;
        Ok(took)
    }

    fn wait_for(&mut self, departures: &mut Departures, buffer: &mut [f32]) -> Result<(), Fault> {
        while departures.left < departures.buckets.len() {
            self.start_next(departures)?;
        }
        let deadline = self.deadline();
        departures.flight.finish(self.parts.transport.as_mut(), buffer, &Sum, deadline)
    }

    /// What happened, and to which bucket.
    fn blame(&self, departures: &Departures, fault: &Fault) -> Error {
        self.explain(fault, "all-reduce", departures.awaited())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::threads;
    use thalweg_comm::transport::sim::{Kind, Mishap, Network};

    fn buckets() -> Vec<Bucket> {
        let bucket = |range, algorithm, name: &str| Bucket { range, algorithm, name: name.into() };
        vec![
            bucket(0..700, Algorithm::Ring, "gradients of a"),
            bucket(700..700, Algorithm::Direct, "gradients of nothing"),
            bucket(700..50_000, Algorithm::HalvingDoubling, "gradients of b"),
        ]
    }

    /// Buckets leave while the rank computes, values are summed in between, and all arrive.
    fn step(rank: &mut Rank, departures: &mut Departures, buffer: &mut [f32]) -> Result<Duration> {
        rank.begin_departures(departures);
        buffer.fill(1.0 + rank.index() as f32);
        rank.send_off(departures, buffer)?;
        rank.sleep(Duration::from_millis(1 + rank.index() as u64));
        rank.glance(departures, buffer)?;
        rank.send_off(departures, buffer)?;
        let mut values = [2.0, 3.0];
        rank.all_reduce_beside(departures, buffer, "work", "statistics", &mut values)?;
        let world = rank.world() as f32;
        assert_eq!(values, [2.0 * world, 3.0 * world]);
        rank.await_departures(departures, buffer)
    }

    #[test]
    fn buckets_leave_in_the_middle_of_work_and_arrive() {
        let network = Network { bandwidth: 1e7, ..Network::ordinary(3, 5) };
        let (ended, _) = threads::simulate(network, &[], Duration::from_secs(5), |rank| {
            let (mut departures, mut buffer) = (rank.open_departures(buckets()), vec![0.0; 50_000]);
            let mut beside = Duration::ZERO;
            for number in 0..3 {
                rank.begin_step(number);
                step(rank, &mut departures, &mut buffer)?;
                assert!(buffer.iter().all(|sum| *sum == 6.0), "step {number}");
                beside += departures.beside();
            }
            Ok(beside)
        });
        let beside: Duration = ended.into_iter().map(|ended| ended.result.unwrap()).sum();
        assert!(beside > Duration::ZERO);
    }

    #[test]
    fn a_death_names_the_rank_and_the_bucket() {
        let network = Network { bandwidth: 1e6, ..Network::ordinary(2, 5) };
        let kill = Mishap::at(Duration::from_millis(40), Kind::Kill { rank: 1 });
        let (ended, _) = threads::simulate(network, &[kill], Duration::from_secs(5), |rank| {
            let (mut departures, mut buffer) = (rank.open_departures(buckets()), vec![0.0; 50_000]);
            rank.begin_step(7);
            step(rank, &mut departures, &mut buffer)
        });
        let error = ended[0].result.as_ref().unwrap_err();
        let culprit = error.culprit.as_ref().unwrap();
        assert_eq!((culprit.rank, culprit.step), (1, Some(7)), "{error}");
        assert_eq!(culprit.operation.as_deref(), Some("all-reduce of gradients of b"), "{error}");
    }
}
