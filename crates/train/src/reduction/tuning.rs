//! `strategy.tune`: the fastest buckets and algorithm, found by trials before the first step.
//!
//! A trial is a step without its update: the gradient of the first step's rows, and its exchange. No parameter changes
//! and no row counts. A candidate's figure is the time of the slowest rank in the best of a few trials; the least one is
//! chosen. Rank 0's clock ends the trials, so candidates are ordered by the time that the measured links predict.

use super::bucket_plan::BucketPlan;
use super::buckets::Buckets;
use crate::context::Context;
use crate::state::State;
use std::time::Duration;
use thalweg_cluster::collective::Cost;
use thalweg_cluster::collective::cost_model::has_shared_hosts;
use thalweg_cluster::{Algorithm, AllReduceMethod};
use thalweg_core::Result;
use thalweg_core::event::{Event, Level};
use thalweg_core::spec::bucket::BucketSize;

/// No trial begins after this time.
const TIME_LIMIT: Duration = Duration::from_secs(3);

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

/// Measured links: seconds of an empty message, and bytes per second of a long one.
struct Links {
    latency: f64,
    bandwidth: f64,
}

impl Links {
    /// Seconds of an all-reduce of `elements` elements on the slowest rank, if only links counted.
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

/// Tries what the job leaves open, adopts the fastest plan and reports it. All ranks must call it.
pub(super) fn tune(cx: &mut Context<'_>, buckets: &mut Buckets, state: &State) -> Result<()> {
    if buckets.plan().len() == 0 {
        report_nothing(cx);
        return Ok(());
    }
    cx.rank.begin_preparation("tuning the exchange");
    let start = cx.rank.now();
    let links = measure_links(cx)?;
    let table = buckets.plan().clone();
    let mut best: Option<(f64, BucketPlan)> = None;
    let mut of_the_table = f64::NAN;
    let mut tried = 0;
    for plan in candidates(cx, buckets, &links) {
        let late = u8::from(cx.rank.now() - start > TIME_LIMIT && best.is_some());
        if cx.rank.world().broadcast("time left", 0, vec![late])?.first() != Some(&0) {
            break;
        }
        let seconds = trial(cx, buckets, state, &plan)?;
        tried += 1;
        if plan == table {
            of_the_table = seconds;
        }
        if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
            best = Some((seconds, plan));
        }
    }
    let (seconds, plan) = best.unwrap_or((of_the_table, table));
    buckets.set_plan(cx, plan)?;
    let plan = buckets.plan();
    let longest = plan.reported(cx.compute.model.layout(), buckets.len());
    let longest = longest.iter().map(|bucket| bucket.bytes).max().unwrap_or(0);
    let message = format!(
        "tuned in {:.1} s over {tried} candidates: {} of at most {longest} bytes by {} take {:.2} ms a step without \
         its update, the fixed table's choice {:.2} ms; links have {:.0} us and {:.0} MB/s; another run may choose \
         otherwise and differ in the last bits",
        (cx.rank.now() - start).as_secs_f64(),
        if plan.len() == 1 { "1 bucket".into() } else { format!("{} buckets", plan.len()) },
        plan.algorithms(),
        1e3 * seconds,
        1e3 * of_the_table,
        1e6 * links.latency,
        links.bandwidth / 1e6,
    );
    notify(cx, message);
    Ok(())
}

/// The table's plan first, then all others that the job allows and that differ, by predicted time.
fn candidates(cx: &mut Context<'_>, buckets: &Buckets, links: &Links) -> Vec<BucketPlan> {
    let hosts = cx.rank.world().host_numbers().to_vec();
    let layout = cx.compute.model.layout();
    let sizes: &[BucketSize] = match &cx.job.exchange.bucket {
        BucketSize::Auto => &SIZES,
        asked => std::slice::from_ref(asked),
    };
    let open = AllReduceMethod::named(cx.job.exchange.algorithm.name()).is_none();
    let mut others: Vec<BucketPlan> = Vec::new();
    for size in sizes {
        let plan = BucketPlan::cut(cx.job, layout, *size, &hosts);
        let variants = algorithms(&hosts).filter(|_| open).map(|algorithm| plan.clone().by(algorithm));
        for plan in std::iter::once(plan.clone()).chain(variants) {
            if plan != *buckets.plan() && !others.contains(&plan) {
                others.push(plan);
            }
        }
    }
    let predicted = |plan: &BucketPlan| {
        let all = plan.buckets(layout, buckets.len());
        all.iter().map(|of| links.promise(of.algorithm, &hosts, of.range.len())).sum::<f64>()
    };
    let mut others: Vec<(f64, BucketPlan)> =
        others.into_iter().map(|plan| (predicted(&plan), plan)).collect();
    others.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    std::iter::once(buckets.plan().clone()).chain(others.into_iter().map(|(_, plan)| plan)).collect()
}

/// Seconds of a gradient and its exchange on the slowest rank, in the best of a few trials.
fn trial(cx: &mut Context<'_>, buckets: &mut Buckets, state: &State, plan: &BucketPlan) -> Result<f64> {
    buckets.set_plan(cx, plan.clone())?;
    if let Some(overlap) = buckets.overlap_mut() {
        overlap.skip_probe();
    }
    let mut best = f64::INFINITY;
    for trial in 0..TRIALS {
        cx.rank.world().barrier("tuning")?;
        let start = cx.rank.now();
        let report = cx.compute_gradient(buckets, state)?;
        buckets.sum(cx, &report)?;
        let seconds = slowest(cx, (cx.rank.now() - start).as_secs_f64())?;
        if trial > 0 {
            best = best.min(seconds);
        }
    }
    cx.compute.clear_consumed();
    Ok(best)
}

/// Every rank exchanges with its neighbours at once: a few bytes and many.
fn measure_links(cx: &mut Context<'_>) -> Result<Links> {
    let (index, world) = (cx.rank.index(), cx.rank.size());
    let (next, before) = ((index + 1) % world, (index + world - 1) % world);
    let (sent, mut received) = (vec![0.0; LONG / 4], vec![0.0; LONG / 4]);
    let mut measure = |cx: &mut Context<'_>, length: usize| -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..TRIALS {
            cx.rank.world().barrier("tuning")?;
            let start = cx.rank.now();
            let receive = &mut [(before, &mut received[..length])];
            cx.rank.world().exchange("measuring", "links", &[(next, &sent[..length])], receive)?;
            best = best.min(slowest(cx, (cx.rank.now() - start).as_secs_f64())?);
        }
        Ok(best)
    };
    let (short, long) = (measure(cx, 1)?, measure(cx, LONG / 4)?);
    Ok(Links { latency: short, bandwidth: LONG as f64 / (long - short).max(1e-9) })
}

/// The longest time of any rank.
fn slowest(cx: &mut Context<'_>, seconds: f64) -> Result<f64> {
    let all = cx.rank.world().all_gather("times", &seconds.to_le_bytes())?;
    let number = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0.0, |bytes| f64::from_le_bytes(*bytes));
    Ok(all.iter().map(number).fold(0.0, f64::max))
}

pub(super) fn report_nothing(cx: &Context<'_>) {
    notify(cx, "strategy.tune: nothing to tune, gradients are not sent as messages here".into());
}

fn notify(cx: &Context<'_>, message: String) {
    if cx.rank.index() == 0 {
        cx.rank.emit(Event::Notice { level: Level::Info, message });
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
