//! Reduction in the memory that the ranks of a host share.
//!
//! Each rank writes its gradient where the others read it. For an element-wise update, parameters and slots are shared
//! too: each rank sums its shard of the gradient and updates that shard of them in the same pass. It is the replicated
//! update, bit by bit, with the work of one rank divided by all. The state before the step stays intact until the next
//! one: the columns exist twice, and an update reads one copy and writes the other. The step is committed once a rank has
//! passed the barrier that ends it, so the survivors of a death find the state before or after the step.
//!
//! Updates that need whole tensors (LARS, LAMB) or the norm of the whole gradient wait for the sum: every rank updates
//! columns of its own, from a sum that is shared.

use super::{Description, Reduction, write_report};
use crate::compute::Pass;
use crate::context::Context;
use crate::finite;
use crate::state::State;
use crate::step_report::{self, StepReport, StepSummary};
use std::ops::Range;
use std::time::Duration;
use thalweg_cluster::{PartialSums, Rank, ReductionTree, SharedArena};
use thalweg_core::event::{Event, Level};
use thalweg_core::spec::bucket::BucketSize;
use thalweg_core::spec::strategy::{Algorithm, TransportChoice};
use thalweg_core::{Error, JobSpec, Kind, Layout, Result, Tally};
use thalweg_graph::optimizer::Scope;

/// The first column of the arena. Behind it, if they are shared, are the columns of the state, twice.
const SUMS: usize = 0;

/// Gradients, their sums and, for element-wise updates, the state.
pub(crate) struct Arena {
    arena: SharedArena,
    sums: PartialSums,
    /// The shared copies of the state; None if every rank has its own.
    shared: Option<SharedState>,
}

/// Two copies of the state's columns.
struct SharedState {
    columns: usize,
    /// The copy that is committed: 0 or 1.
    current: usize,
    /// The step after which it was.
    step: u64,
}

impl SharedState {
    /// The first column of a copy in the arena.
    fn first(&self, copy: usize) -> usize {
        1 + copy * self.columns
    }
}

/// Whether the job may use arenas: named algorithms and bucket sizes are about messages.
pub(crate) fn suits(job: &JobSpec) -> bool {
    let exchange = &job.exchange;
    exchange.algorithm == Algorithm::Auto
        && matches!(exchange.bucket, BucketSize::Auto | BucketSize::Whole)
        && exchange.transport != TransportChoice::Tcp
}

impl Arena {
    /// Opens the arenas of all ranks, if the job may use them and all ranks are on one host with enough shared memory.
    pub(crate) fn open(cx: &mut Context<'_>, state: &State) -> Result<Option<Arena>> {
        if !super::agree_on_arena(cx)? {
            return Ok(None);
        }
        let exchange = &cx.job.exchange;
        let elementwise = cx.optimizer.scope() == Scope::Element;
        let columns = if elementwise { state.columns().len() } else { 0 };
        let sums = cx.work.partial_sums(state.len(), step_report::len(cx.rank.size()));
        let mut arena = match cx.rank.world().open_arena("arenas", sums, 1 + 2 * columns)? {
            Ok(arena) => arena,
            Err(reason) if exchange.transport == TransportChoice::Shm => {
                let message = format!("no shared memory for gradients: {reason}");
                return Err(Error::new(Kind::RankFailed, message)
                    .hint("strategy.exchange.transport = \"auto\" would send them as messages"));
            }
            Err(reason) => {
                if cx.rank.index() == 0 {
                    let message =
                        format!("no shared memory for gradients, which are sent as messages: {reason}");
                    cx.rank.emit(Event::Notice { level: Level::Warning, message });
                }
                return Ok(None);
            }
        };
        if columns > 0 {
            cx.rank.world().write_shards("parameters", &mut arena, sums.length, |range, shared| {
                let range = within(&range, state.len());
                for (column, shared) in state.columns().iter().zip(&mut shared[1..=columns]) {
                    shared[..range.len()].copy_from_slice(&column.values[range.clone()]);
                }
            })?;
        }
        let step = cx.work.next();
        let shared = elementwise.then_some(SharedState { columns, current: 0, step });
        Ok(Some(Arena { arena, sums, shared }))
    }

    /// Sums, then updates columns of this rank's own.
    fn sum_then_update(&mut self, cx: &mut Context<'_>, state: &mut State) -> Result<StepSummary> {
        let ((), took) = sum(&mut self.arena, cx.rank, cx.work.tree(), |_, _| ())?;
        let (gradient, tail) = self.arena.column(SUMS)[..self.sums.length].split_at(state.len());
        let step = cx.work.next();
        finite::check_share(cx.rank.member_id(), step, gradient, 0, cx.compute.model.layout())?;
        let (summary, _) = cx.summarize(tail, took)?;
        cx.update(cx.moment(step), state, gradient)?;
        Ok(summary)
    }
}

impl Reduction for Arena {
    fn gradient(&mut self, pass: &mut Pass<'_>, state: &State) -> Result<Tally> {
        let column = self.shared.as_ref().map(|shared| shared.first(shared.current));
        let (memory, parameters) = self.arena.arena_and_column(column.unwrap_or(SUMS));
        let at = if column.is_some() { &parameters[..state.len()] } else { state.parameters() };
        pass.fill_partial_sums(at, self.sums, memory)
    }

    fn sum_and_update(
        &mut self,
        cx: &mut Context<'_>,
        report: &StepReport,
        state: &mut State,
    ) -> Result<StepSummary> {
        write_report(cx, report, state.len(), self.sums, self.arena.arena());
        let Some(SharedState { columns, current, .. }) = self.shared else {
            return self.sum_then_update(cx, state);
        };
        let (member_id, step) = (cx.rank.member_id(), cx.work.next());
        let moment = cx.moment(step);
        let Context { rank, work, optimizer, compute, .. } = &mut *cx;
        let layout = compute.model.layout();
        let (updated, took) = sum(&mut self.arena, rank, work.tree(), |range, shards| {
            let range = within(&range, state.len());
            let Some((sums, shards)) = shards.split_first_mut() else {
                return Err(Error::internal("an arena without a column for sums"));
            };
            let gradient = &sums[..range.len()];
            finite::check_share(member_id, step, gradient, range.start, layout)?;
            let (one, other) = shards.split_at_mut(columns);
            let (from, to) = if current == 0 { (one, other) } else { (other, one) };
            let from =
                [0, 1, 2].map(|column| from.get(column).map_or(&[][..], |values| &values[..range.len()]));
            let mut to = to.iter_mut().map(|values| &mut values[..range.len()]);
            let to = [0, 1, 2].map(|_| to.next().unwrap_or_default());
            optimizer.apply_range(moment, range, from, to, gradient);
            Ok(())
        })?;
        // The barrier is passed: the step is committed on all ranks.
        self.shared = Some(SharedState { columns, current: 1 - current, step: step + 1 });
        updated?;
        let tail = &self.arena.column(SUMS)[state.len()..self.sums.length];
        Ok(cx.summarize(tail, took)?.0)
    }

    fn column<'a>(&'a self, index: usize, state: &'a State) -> &'a [f32] {
        match &self.shared {
            Some(shared) => &self.arena.column(shared.first(shared.current) + index)[..state.len()],
            None => &state.columns()[index].values,
        }
    }

    /// The memory exists as long as any process has it mapped, and lost ranks were killed before it is read.
    fn copy_state(&self, step: u64, state: &mut State) -> Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let Some(ahead) = step.checked_sub(shared.step).filter(|ahead| *ahead <= 1) else {
            return Err(Error::internal(format!("shared memory holds step {}, not {step}", shared.step)));
        };
        let first = shared.first(shared.current ^ ahead as usize);
        for (index, column) in state.columns_mut().iter_mut().enumerate() {
            self.arena.read_after_failure(first + index, &mut column.values);
        }
        Ok(())
    }

    fn describe(&self, _: &Layout) -> Description {
        Description { algorithm: "arena".into(), ..Description::none() }
    }
}

/// Sums gradients and reports, in the order of ranks or of the tree, and runs `work` on this rank's shard of all columns.
fn sum<T>(
    arena: &mut SharedArena,
    rank: &mut Rank,
    tree: Option<&ReductionTree>,
    work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
) -> Result<(T, Duration)> {
    let length = arena.length();
    match tree {
        Some(tree) => rank.world().tree_sum_and_apply("gradients", arena, tree, work),
        None => rank.world().sum_and_apply("gradients", arena, length, work),
    }
}

/// The part of a shard that is parameters: reports are behind them.
fn within(range: &Range<usize>, parameters: usize) -> Range<usize> {
    range.start.min(parameters)..range.end.min(parameters)
}
