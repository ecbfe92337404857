//! `strategy.tune`: which buckets and which algorithm are fastest here, found by trying them before the first step.
//!
//! A trial is what a step does before its update: the gradient of the first step's rows, and its exchange. Nothing of it
//! stays: no parameter moves, no row counts. A figure is that of the slowest rank, the best of a few trials, and the least
//! one decides. Rank 0's clock decides when it is enough: so what the links, measured before, promise most for is tried first.

use crate::buckets::Plan;
use crate::worker::{Step, Worker};
use std::time::Duration;
use thalweg_cluster::collective::Cost;
use thalweg_cluster::collective::cost_model::has_shared_hosts;
use thalweg_cluster::{Algorithm, AllReduceMethod};
use thalweg_core::Result;
use thalweg_core::event::{Event, Level};
use thalweg_core::spec::bucket::BucketSize;

/// No new trial begins after so long.
const ENOUGH: Duration = Duration::from_secs(3);

/// Trials of a candidate; the first one warms up.
const TRIALS: usize = 3;

/// Bytes with which links are measured.
const LONG: usize = 1 << 20;

/// Sizes that are tried where the job leaves them open.
const SIZES: [BucketSize; 5] = [
    BucketSize::Whole,
    BucketSize::Bytes(512 << 10),
    BucketSize::Bytes(2 << 20),
    BucketSize::Bytes(8 << 20),
    BucketSize::Bytes(32 << 20),
];

/// What the links do: seconds of a message without contents, and bytes per second of one with many.
struct Links {
    latency: f64,
    bandwidth: f64,
}

impl Links {
    /// Seconds of an all-reduce of so many elements for the rank that has most to send, if nothing but links counted.
    fn promise(&self, algorithm: Algorithm, hosts: &[usize], elements: usize) -> f64 {
        let costs =
            (0..hosts.len()).map(|rank| algorithm.all_reduce_cost(rank, hosts, elements, size_of::<f32>()));
        let seconds = |cost: Cost| {
            let bytes = cost.bytes_sent.max(cost.bytes_received);
            cost.steps as f64 * self.latency + bytes as f64 / self.bandwidth
        };
        costs.map(seconds).fold(0.0, f64::max)
    }
}

impl Worker<'_> {
    /// Tries what the job leaves open and takes the fastest; says what was found.
    pub(crate) fn tune(&mut self) -> Result<()> {
        if self.plan.len() == 0 {
            self.say("strategy.tune: nothing to tune, gradients do not travel as messages here".into());
            return Ok(());
        }
        self.rank.begin_preparation("tuning the exchange");
        let start = self.rank.now();
        let links = self.measure_links()?;
        let table = self.plan.clone();
        let mut best: Option<(f64, Plan)> = None;
        let mut of_the_table = f64::NAN;
        let mut tried = 0;
        for plan in self.candidates(&links) {
            // Rank 0 decides for all whether there is time.
            let late = u8::from(self.rank.now() - start > ENOUGH && best.is_some());
            if self.rank.broadcast("time left", vec![late])?.first() != Some(&0) {
                break;
            }
            let seconds = self.trial(&plan)?;
            tried += 1;
            if plan == table {
                of_the_table = seconds;
            }
            if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                best = Some((seconds, plan));
            }
        }
        let (seconds, plan) = best.unwrap_or((of_the_table, table));
        self.travel_by(plan)?;
        let longest = self.plan.reported(self.parts.model.layout(), self.buffer.len());
        let longest = longest.iter().map(|bucket| bucket.bytes).max().unwrap_or(0);
        self.say(format!(
            "tuned in {:.1} s over {tried} candidates: {} of at most {longest} bytes by {} take {:.2} ms a step without \
             its update, the fixed table's choice {:.2} ms; links have {:.0} us and {:.0} MB/s; another run may choose \
             otherwise and differ in the last bits",
            (self.rank.now() - start).as_secs_f64(),
            if self.plan.len() == 1 { "1 bucket".into() } else { format!("{} buckets", self.plan.len()) },
            self.plan.algorithms(),
            1e3 * seconds,
            1e3 * of_the_table,
            1e6 * links.latency,
            links.bandwidth / 1e6,
        ));
        Ok(())
    }

    /// The table's plan first, then all others that the job allows and that differ, those that promise most before others.
    fn candidates(&self, links: &Links) -> Vec<Plan> {
        let (layout, hosts) = (self.parts.model.layout(), self.rank.host_numbers());
        let sizes: &[BucketSize] = match &self.job.exchange.bucket {
            BucketSize::Auto => &SIZES,
            asked => std::slice::from_ref(asked),
        };
        let open = AllReduceMethod::named(self.job.exchange.algorithm.name()).is_none();
        let mut others: Vec<Plan> = Vec::new();
        for size in sizes {
            let plan = Plan::cut(self.job, layout, *size, hosts);
            let ways = algorithms(hosts).filter(|_| open).map(|way| plan.clone().by(way));
            for plan in std::iter::once(plan.clone()).chain(ways) {
                if plan != self.plan && !others.contains(&plan) {
                    others.push(plan);
                }
            }
        }
        let promise = |plan: &Plan| {
            let buckets = plan.buckets(layout, self.buffer.len());
            buckets.iter().map(|of| links.promise(of.algorithm, hosts, of.range.len())).sum::<f64>()
        };
        let mut others: Vec<(f64, Plan)> = others.into_iter().map(|plan| (promise(&plan), plan)).collect();
        others.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        std::iter::once(self.plan.clone()).chain(others.into_iter().map(|(_, plan)| plan)).collect()
    }

    /// Seconds of the slowest rank for a gradient and its exchange, the best of a few.
    fn trial(&mut self, plan: &Plan) -> Result<f64> {
        self.travel_by(plan.clone())?;
        // Only the overlap itself is of interest here, not what it hides.
        if let Some(overlap) = &mut self.overlap {
            overlap.skip_soundings();
        }
        let steps = self.sampler.steps_per_epoch();
        let step = Step { number: self.next, epoch: self.next / steps, index: self.next % steps };
        let mut best = f64::INFINITY;
        for trial in 0..TRIALS {
            self.rank.barrier("tuning")?;
            let start = self.rank.now();
            self.compute_gradient(&step)?;
            self.all_reduce_gradient()?;
            let seconds = self.slowest((self.rank.now() - start).as_secs_f64())?;
            if trial > 0 {
                best = best.min(seconds);
            }
        }
        self.consumed.clear();
        Ok(best)
    }

    /// Every rank with its neighbour at once: a few bytes and many.
    fn measure_links(&mut self) -> Result<Links> {
        let (index, world) = (self.rank.index(), self.rank.world());
        let (next, before) = ((index + 1) % world, (index + world - 1) % world);
        let (sent, mut received) = (vec![0.0; LONG / 4], vec![0.0; LONG / 4]);
        let mut measure = |worker: &mut Self, length: usize| -> Result<f64> {
            let mut best = f64::INFINITY;
            for _ in 0..TRIALS {
                worker.rank.barrier("tuning")?;
                let start = worker.rank.now();
                let receive = &mut [(before, &mut received[..length])];
                worker.rank.exchange("measuring", "links", &[(next, &sent[..length])], receive)?;
                best = best.min(worker.slowest((worker.rank.now() - start).as_secs_f64())?);
            }
            Ok(best)
        };
        let (short, long) = (measure(self, 1)?, measure(self, LONG / 4)?);
        Ok(Links { latency: short, bandwidth: LONG as f64 / (long - short).max(1e-9) })
    }

    /// The longest time of any rank.
    fn slowest(&mut self, seconds: f64) -> Result<f64> {
        let all = self.rank.all_gather("times", &seconds.to_le_bytes())?;
        let number = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0.0, |bytes| f64::from_le_bytes(*bytes));
        Ok(all.iter().map(number).fold(0.0, f64::max))
    }

    fn say(&self, message: String) {
        if self.rank.index() == 0 {
            self.rank.emit(Event::Notice { level: Level::Info, message });
        }
    }
}

/// All algorithms that differ among ranks on these hosts: with one rank each, or one host, a hierarchy is none.
fn algorithms(hosts: &[usize]) -> impl Iterator<Item = Algorithm> {
    let mixed = has_shared_hosts(hosts);
    Algorithm::ALL.into_iter().filter(move |algorithm| mixed || *algorithm != Algorithm::Hierarchical)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_tried_a_hierarchy_only_where_there_is_one() {
        assert_eq!(algorithms(&[0, 0, 1, 1]).count(), Algorithm::ALL.len());
        for hosts in [[0; 4], [0, 1, 2, 3]] {
            assert!(algorithms(&hosts).all(|algorithm| algorithm != Algorithm::Hierarchical));
            assert_eq!(algorithms(&hosts).count(), Algorithm::ALL.len() - 1);
        }
    }

    #[test]
    fn few_steps_promise_most_on_far_links_and_few_bytes_on_narrow_ones() {
        let hosts: Vec<usize> = (0..8).collect();
        let (far, narrow) =
            (Links { latency: 1.0, bandwidth: 1e12 }, Links { latency: 1e-9, bandwidth: 1e3 });
        let best = |links: &Links| {
            let promise = |way: &Algorithm| links.promise(*way, &hosts, 1 << 20);
            algorithms(&hosts).min_by(|one, other| promise(one).total_cmp(&promise(other)))
        };
        assert_eq!(best(&far), Some(Algorithm::Direct));
        let least = narrow.promise(Algorithm::Ring, &hosts, 1 << 20);
        assert!(least < 0.7 * narrow.promise(Algorithm::RecursiveDoubling, &hosts, 1 << 20));
    }
}
