//! Reduction along a fixed tree by messages: the sum has the same bits in a world of any size.

use super::{Description, Reduction, write_report};
use crate::compute::Pass;
use crate::context::Context;
use crate::finite;
use crate::state::State;
use crate::step_report::{self, StepReport, StepSummary};
use thalweg_cluster::PartialSums;
use thalweg_core::{Error, Layout, Result, Tally};

/// The partial sums of this rank.
pub(crate) struct Tree {
    world: usize,
    sums: PartialSums,
    memory: Vec<f32>,
}

impl Tree {
    pub(crate) fn new(world: usize) -> Tree {
        Tree { world, sums: PartialSums::one(0), memory: Vec::new() }
    }
}

impl Reduction for Tree {
    fn gradient(&mut self, pass: &mut Pass<'_>, state: &State) -> Result<Tally> {
        self.sums = pass.planned.partial_sums(state.len(), step_report::len(self.world));
        self.memory.resize(self.sums.elements(), 0.0);
        pass.fill_partial_sums(state.parameters(), self.sums, &mut self.memory)
    }

    fn sum_and_update(
        &mut self,
        cx: &mut Context<'_>,
        report: &StepReport,
        state: &mut State,
    ) -> Result<StepSummary> {
        let (sums, parameters, step) = (self.sums, state.len(), cx.work.next());
        write_report(cx, report, parameters, sums, &mut self.memory);
        let tree = cx.work.tree().ok_or_else(|| Error::internal("a sum over leaves without a tree"))?;
        let took = cx.rank.world().all_reduce_tree("gradients", tree, sums, &mut self.memory)?;
        let (gradient, tail) = sums.slice(&self.memory, 0).split_at(parameters);
        finite::check_share(cx.rank.member_id(), step, gradient, 0, cx.compute.model.layout())?;
        let (summary, _) = cx.summarize(tail, took)?;
        cx.update(cx.moment(step), state, gradient)?;
        Ok(summary)
    }

    fn describe(&self, _: &Layout) -> Description {
        let algorithm = if self.world == 1 { "none" } else { "leaf-tree" };
        Description { algorithm: algorithm.into(), ..Description::none() }
    }
}
