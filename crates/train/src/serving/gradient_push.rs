//! How the gradient of a worker gets to a server that waits for all: at once, in buckets that leave during the pass, or as
//! the terms of a fixed sum.

use super::clocked::Unit;
use super::shards;
use crate::compute::Pass;
use crate::context::Context;
use crate::reduction::Description;
use crate::reduction::bucket_plan::BucketPlan;
use crate::reduction::overlap::{InFlight, Overlap};
use crate::step_report::{StepReport, StepSummary};
use std::ops::Range;
use std::time::Duration;
use thalweg_cluster::{PartialSums, Rank};
use thalweg_core::{Error, Layout, Result, Tally};

/// The gradient of one worker, and how it leaves.
#[derive(Default)]
pub struct GradientPush {
    plan: BucketPlan,
    /// The buckets that leave during the pass; None if there is one, or if terms of a sum are pushed.
    overlap: Option<Overlap>,
    sums: Option<PartialSums>,
    /// Slots of partial sums that are pushed.
    held: usize,
    memory: Vec<f32>,
    /// The servers, and what each gets of a gradient.
    shards: Vec<(usize, Range<usize>)>,
}

impl GradientPush {
    /// For this generation, by the buckets that the job asks for or the fixed table has.
    pub fn open(cx: &mut Context<'_>) -> Result<GradientPush> {
        let (memory, shards) = (vec![0.0; cx.parameters()], shards::of(cx)?);
        let mut push = GradientPush { memory, shards, ..GradientPush::default() };
        let reads = |shard: &(usize, Range<usize>)| cx.windows.reaches(cx.rank, shard.0, push.memory.len());
        // A server that reads shared memory does so when it adds: nothing is in flight before.
        if cx.work.leaves().is_none() && !push.shards.iter().all(reads) {
            let (layout, hosts) = (cx.compute.model.layout(), cx.rank.world().host_numbers().to_vec());
            push.plan = BucketPlan::of(cx.job, layout, &hosts);
            let plan = &push.plan;
            let buckets = plan.buckets(layout, layout.len()).into_iter().map(|bucket| bucket.range);
            let buckets = PushedBuckets::new(Unit::of(cx), push.shards.clone(), buckets.collect());
            push.overlap = Overlap::of(plan, layout, || Box::new(buckets));
        }
        Ok(push)
    }

    /// `g_i` at the parameters `at`.
    pub(crate) fn compute(&mut self, pass: &mut Pass<'_>, at: &[f32]) -> Result<Tally> {
        self.held = pass.planned.held;
        let sums = pass.planned.partial_sums(at.len(), usize::from(pass.planned.leaves.is_some()));
        self.sums = pass.planned.leaves.map(|_| sums);
        let Some(overlap) = &mut self.overlap else {
            self.memory.resize(sums.elements(), 0.0);
            return pass.fill_partial_sums(at, sums, &mut self.memory);
        };
        let mut gradient = overlap.begin(pass.rank, pass.planned.step.number)?;
        let tally = pass.accumulate(at, &mut gradient, Some((overlap, &mut self.memory)))?;
        overlap.complete(pass, tally.loss, &gradient, &mut self.memory)?;
        pass.collectives += overlap.give_back(gradient);
        Ok(tally)
    }

    /// Pushes what has not left yet, and the report.
    pub fn push(&mut self, cx: &mut Context<'_>, report: &StepReport) -> Result<()> {
        if let Some(overlap) = &mut self.overlap {
            overlap.finish(cx.rank, &mut self.memory)?;
        }
        self.shards.iter().try_for_each(|(server, range)| self.push_to(cx, *server, range, report))
    }

    /// What one server gets. The report comes with the last part.
    fn push_to(
        &self,
        cx: &mut Context<'_>,
        server: usize,
        range: &Range<usize>,
        report: &StepReport,
    ) -> Result<()> {
        let (unit, report) = (Unit::of(cx), Some(report));
        match (&self.overlap, self.sums) {
            (Some(_), _) => unit.push(cx, server, (range.len(), 0), &[], report),
            (None, None) => unit.push(cx, server, (0, range.start), &self.memory[range.clone()], report),
            (None, Some(sums)) => {
                let length = range.len() + 1;
                for slot in 0..self.held {
                    let term = sums.slice(&self.memory, slot);
                    let term = [&term[range.clone()], &term[sums.head - 1..sums.head]].concat();
                    unit.push(cx, server, (slot * length, 0), &term, None)?;
                }
                unit.push(cx, server, (self.held * length, 0), &[], report)
            }
        }
    }

    /// Books the exchange of a step that began at `since`, once the parameters are pulled.
    pub(crate) fn book(&mut self, cx: &mut Context<'_>, summary: &StepSummary, since: Duration) {
        let took = cx.rank.now().saturating_sub(since);
        let waited = cx.book_wait(summary, took);
        if let Some(overlap) = &mut self.overlap {
            overlap.book(cx.rank, took.as_secs_f64() - waited);
        }
    }

    pub(crate) fn describe(&self, layout: &Layout) -> Description {
        let Some(_) = self.overlap else { return Description::none() };
        let mut described = self.plan.describe(layout, layout.len());
        let algorithm = String::from("push");
        described.buckets.iter_mut().for_each(|bucket| bucket.algorithm.clone_from(&algorithm));
        Description { algorithm, ..described }
    }
}

/// Buckets that servers are sent, each its part of them.
struct PushedBuckets {
    unit: Unit,
    shards: Vec<(usize, Range<usize>)>,
    buckets: Vec<Range<usize>>,
    started: usize,
    progress_time: Duration,
    /// Since when a bucket was in flight and the rank computed, and for how long before.
    computing_since: Option<Duration>,
    overlapped_time: Duration,
}

impl PushedBuckets {
    fn new(unit: Unit, shards: Vec<(usize, Range<usize>)>, buckets: Vec<Range<usize>>) -> PushedBuckets {
        PushedBuckets {
            unit,
            shards,
            buckets,
            started: 0,
            progress_time: Duration::ZERO,
            computing_since: None,
            overlapped_time: Duration::ZERO,
        }
    }

    /// Runs `work` on what is in flight, which interrupts the computation.
    fn interrupt(
        &mut self,
        rank: &mut Rank,
        work: impl FnOnce(&mut Self, &mut Rank) -> Result<()>,
    ) -> Result<()> {
        let begun = rank.now();
        if let Some(since) = self.computing_since {
            self.overlapped_time += begun.saturating_sub(since);
        }
        let outcome = work(self, rank);
        let ended = rank.now();
        self.progress_time += ended.saturating_sub(begun);
        rank.book_exchange(ended.saturating_sub(begun));
        self.computing_since = (self.started > 0).then_some(ended);
        outcome
    }
}

impl InFlight for PushedBuckets {
    fn begin(&mut self, _: &mut Rank, step: u64) -> Result<()> {
        self.unit = self.unit.at(step);
        (self.started, self.computing_since) = (0, None);
        (self.progress_time, self.overlapped_time) = (Duration::ZERO, Duration::ZERO);
        Ok(())
    }

    fn started(&self) -> usize {
        self.started
    }

    fn start_next(&mut self, rank: &mut Rank, buffer: &mut [f32]) -> Result<()> {
        self.interrupt(rank, |pushed, rank| {
            let Some(bucket) = pushed.buckets.get(pushed.started) else { return Ok(()) };
            pushed.started += 1;
            for (server, shard) in &pushed.shards {
                let part = bucket.start.max(shard.start)..bucket.end.min(shard.end);
                if !part.is_empty() {
                    pushed.unit.send(rank, *server, part.start - shard.start, &buffer[part])?;
                }
            }
            Ok(())
        })
    }

    fn poll(&mut self, rank: &mut Rank, _: &mut [f32]) -> Result<()> {
        if self.started == 0 {
            return Ok(());
        }
        self.interrupt(rank, |_, rank| rank.poll_messages())
    }

    fn sum(&mut self, _: &mut Rank, _: &mut [f32], _: &str, name: &str, _: &mut [f32]) -> Result<Duration> {
        Err(Error::internal(format!("{name}: a server sums nothing during a pass")))
    }

    fn finish(&mut self, rank: &mut Rank, buffer: &mut [f32]) -> Result<Duration> {
        let begun = rank.now();
        // The pass is over: what follows hides nothing.
        let (progress_time, overlapped_time) = (self.progress_time, self.overlapped_time);
        while self.started < self.buckets.len() {
            self.start_next(rank, buffer)?;
        }
        (self.progress_time, self.overlapped_time) = (progress_time, overlapped_time);
        Ok(rank.now().saturating_sub(begun))
    }

    fn progress_time(&self) -> Duration {
        self.progress_time
    }

    fn overlapped_time(&self) -> Duration {
        self.overlapped_time
    }
}
