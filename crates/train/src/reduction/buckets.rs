//! Reduction by messages: the gradient in buckets, which are sent during the pass where there are several.

use super::bucket_plan::BucketPlan;
use super::overlap::Overlap;
use super::{Description, Reduction, write_report};
use crate::compute::Pass;
use crate::context::Context;
use crate::finite;
use crate::state::State;
use crate::step_report::{self, StepReport, StepSummary};
use std::time::Duration;
use thalweg_cluster::PartialSums;
use thalweg_core::{Layout, Result, Tally};

/// The buffer of the exchange and the plan by which it is cut.
pub(crate) struct Buckets {
    plan: BucketPlan,
    /// The buckets that are sent during the pass; None if there is one bucket or no exchange.
    overlap: Option<Overlap>,
    /// The gradient, and the report behind it.
    buffer: Vec<f32>,
}

impl Buckets {
    /// The plan that the job asks for, or that the fixed table has.
    pub(crate) fn new(cx: &mut Context<'_>) -> Result<Buckets> {
        let buffer = vec![0.0; cx.parameters() + step_report::len(cx.rank.size())];
        let mut buckets = Buckets { plan: BucketPlan::default(), overlap: None, buffer };
        let hosts = cx.rank.world().host_numbers().to_vec();
        let plan = BucketPlan::of(cx.job, cx.compute.model.layout(), &hosts);
        buckets.set_plan(cx, plan)?;
        Ok(buckets)
    }

    /// Adopts rank 0's plan. All ranks must call it.
    pub(crate) fn set_plan(&mut self, cx: &mut Context<'_>, plan: BucketPlan) -> Result<()> {
        self.plan = plan.adopt(cx, self.buffer.len())?;
        self.overlap = Overlap::new(cx.rank, &self.plan, cx.compute.model.layout(), self.buffer.len());
        Ok(())
    }

    pub(crate) fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    /// Elements of the exchange.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn overlap_mut(&mut self) -> Option<&mut Overlap> {
        self.overlap.as_mut()
    }

    /// Sums the gradients and reports of all ranks. Returns the duration of the exchange.
    pub(crate) fn sum(&mut self, cx: &mut Context<'_>, report: &StepReport) -> Result<Duration> {
        let (parameters, sums) = (cx.parameters(), PartialSums::one(self.buffer.len()));
        write_report(cx, report, parameters, sums, &mut self.buffer);
        let took = match &mut self.overlap {
            Some(overlap) => overlap.finish(cx.rank, &mut self.buffer)?,
            None => cx.rank.world().all_reduce("gradients", &mut self.buffer)?,
        };
        let (rank, step, layout) = (cx.rank.member_id(), cx.work.next(), cx.compute.model.layout());
        finite::check_share(rank, step, &self.buffer[..parameters], 0, layout)?;
        Ok(took)
    }
}

impl Reduction for Buckets {
    fn gradient(&mut self, pass: &mut Pass<'_>, state: &State) -> Result<Tally> {
        let at = state.parameters();
        let buffer = &mut self.buffer[..];
        let Some(overlap) = &mut self.overlap else {
            return pass.fill_partial_sums(at, PartialSums::one(buffer.len()), buffer);
        };
        let buffer = &mut buffer[..at.len()];
        let mut gradient = overlap.begin(pass.rank, pass.planned.step.number)?;
        let tally = pass.accumulate(at, &mut gradient, Some((overlap, buffer)))?;
        overlap.complete(pass, tally.loss, &gradient, buffer)?;
        pass.collectives += overlap.give_back(gradient);
        Ok(tally)
    }

    fn sum_and_update(
        &mut self,
        cx: &mut Context<'_>,
        report: &StepReport,
        state: &mut State,
    ) -> Result<StepSummary> {
        let took = self.sum(cx, report)?;
        let (gradient, tail) = self.buffer.split_at(state.len());
        let (summary, waited) = cx.summarize(tail, took)?;
        if let Some(overlap) = &mut self.overlap {
            overlap.book(cx.rank, took.as_secs_f64() - waited);
        }
        cx.update(cx.moment(cx.work.next()), state, gradient)?;
        Ok(summary)
    }

    fn describe(&self, layout: &Layout) -> Description {
        self.plan.describe(layout, self.buffer.len())
    }
}
