//! Reduction: how the gradients of all workers become one sum and one update.
//!
//! Three implementations: in shared memory (`arena`), by messages in buckets (`buckets`), and along a fixed tree
//! (`tree`). Only the arena applies the update per range while it sums, out of place and for element-wise rules. The
//! others apply it once, after the last bucket: no parameter changes before all of the sum has arrived.

pub(crate) mod arena;
pub(crate) mod bucket_plan;
pub(crate) mod buckets;
pub(crate) mod overlap;
mod overlap_estimate;
mod tree;
mod tuning;

use crate::compute::Pass;
use crate::context::Context;
use crate::state::State;
use crate::step_report::{StepReport, StepSummary};
use thalweg_cluster::PartialSums;
use thalweg_core::{Error, Layout, Result, Tally, report};

/// Sums the gradients of a group and applies the update.
pub(crate) trait Reduction {
    /// Computes this rank's gradient, in the memory from which it is summed.
    fn gradient(&mut self, pass: &mut Pass<'_>, state: &State) -> Result<Tally>;

    /// Sums gradients and reports of all ranks, updates the state and commits it.
    fn sum_and_update(
        &mut self,
        cx: &mut Context<'_>,
        report: &StepReport,
        state: &mut State,
    ) -> Result<StepSummary>;

    /// A committed column of the state, wherever it lies.
    fn column<'a>(&'a self, index: usize, state: &'a State) -> &'a [f32] {
        &state.columns()[index].values
    }

    /// Copies the state as it was committed after that step into private memory, also after a failure.
    fn copy_state(&self, _step: u64, _state: &mut State) -> Result<()> {
        Ok(())
    }

    /// The algorithm and the buckets, for the report.
    fn describe(&self, layout: &Layout) -> Description;
}

/// How values are exchanged, for the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    pub algorithm: String,
    pub buckets: Vec<report::BucketReport>,
}

impl Description {
    /// Without an exchange.
    pub fn none() -> Description {
        Description { algorithm: "none".into(), buckets: Vec::new() }
    }
}

/// Whether the reduction of this generation is in shared memory, if there is enough of it. All ranks must call it: the
/// first call of a generation is an all-gather.
pub(crate) fn agree_on_arena(cx: &mut Context<'_>) -> Result<bool> {
    Ok(arena::suits(cx.job) && cx.rank.world().agree_on_shared_memory()?)
}

/// The reduction for the job in this generation of the group. All ranks must call it: it runs collectives (the agreement
/// on shared memory, the opening of arenas, the broadcast of the bucket plan, and the trials of `strategy.tune`).
pub(crate) fn open(cx: &mut Context<'_>, state: &State) -> Result<Box<dyn Reduction>> {
    // After a failure the job goes on at once.
    let tunes = cx.job.strategy.tune && cx.rank.generation() == 1;
    if let Some(arena) = arena::Arena::open(cx, state)? {
        if tunes {
            tuning::report_nothing(cx);
        }
        return Ok(Box::new(arena));
    }
    if cx.work.leaves().is_some() {
        return Ok(Box::new(tree::Tree::new(cx.rank.size())));
    }
    let mut buckets = buckets::Buckets::new(cx)?;
    if tunes {
        tuning::tune(cx, &mut buckets, state)?;
    }
    Ok(Box::new(buckets))
}

/// The reduction of this generation.
pub(crate) fn current(reduction: &mut Option<Box<dyn Reduction>>) -> Result<&mut (dyn Reduction + 'static)> {
    reduction.as_deref_mut().ok_or_else(|| Error::internal("a step before the group was formed"))
}

/// Writes the report behind the gradient in the first slot. The loss of leaves was summed with them and stays.
fn write_report(
    cx: &Context<'_>,
    report: &StepReport,
    parameters: usize,
    sums: PartialSums,
    memory: &mut [f32],
) {
    let tail = &mut sums.slice_mut(memory, 0)[parameters..];
    let loss = if cx.work.leaves().is_some() { f64::from(tail[0]) } else { report.loss };
    StepReport { loss, ..*report }.write(cx.rank.index(), tail);
}
