//! Compute: loss and gradient of this rank's rows at given parameters. It keeps no parameters and no state of training.

use crate::accumulate::{Accumulator, Turn};
use crate::finite;
use crate::hooks::{AbortCheck, PassHooks, WORK};
use crate::reduction::overlap::{BucketSender, Overlap};
use crate::registry::{self, AllReduced};
use crate::slowdown::Slowdown;
use crate::work::PlannedShare;
use std::time::Duration;
use thalweg_cluster::{PartialSums, Rank};
use thalweg_core::{Batch, Error, JobSpec, Layout, Model, Result, Tally};
use thalweg_data::Data;

/// A model with the rows it is trained and validated on, and scratch memory.
pub struct Compute {
    pub data: Data,
    pub model: Box<dyn Model>,
    batch: Batch,
    accumulator: Accumulator,
    /// Rows that batches brought to the model since they were last taken: these count, not what was planned.
    consumed: Vec<u64>,
    slowdown: Option<Slowdown>,
    /// Whether running statistics of a worker's own rows are those of rank 0, as in `DistributedDataParallel`.
    statistics_of_rank0: bool,
}

/// What a computation came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Computed {
    /// Sum of the rows' losses.
    pub loss: f64,
    pub rows: usize,
    pub took: Duration,
}

impl Compute {
    pub fn new(job: &JobSpec, data: Data, model: Box<dyn Model>) -> Compute {
        let batch = data.training.empty_batch();
        let accumulator = Accumulator::new(job.train.accumulate);
        let statistics_of_rank0 = registry::of(job).claims.all_reduced == AllReduced::Gradients;
        Compute { data, model, batch, accumulator, consumed: Vec::new(), slowdown: None, statistics_of_rank0 }
    }

    /// The slowdown that the job simulates on the worker with this member id.
    pub fn slow_down(&mut self, job: &JobSpec, member_id: usize) {
        self.slowdown = Slowdown::of(job, member_id);
    }

    /// The rows computed since they were last cleared.
    pub fn consumed(&self) -> &[u64] {
        &self.consumed
    }

    pub fn clear_consumed(&mut self) {
        self.consumed.clear();
    }

    /// Runs `work`, which computes this rank's share of a step, and books its time: without the collectives inside of it,
    /// with the delays that the job simulates.
    pub(crate) fn run(
        &mut self,
        rank: &mut Rank,
        planned: PlannedShare<'_>,
        work: impl FnOnce(&mut Pass<'_>) -> Result<Tally>,
    ) -> Result<Computed> {
        let computed = self.run_unless(rank, planned, None, work)?;
        computed.ok_or_else(|| Error::internal("an abandoned pass that was to be completed"))
    }

    /// The same, unless the computation becomes useless before its end.
    pub(crate) fn run_unless(
        &mut self,
        rank: &mut Rank,
        planned: PlannedShare<'_>,
        mut abort_check: Option<&mut AbortCheck<'_>>,
        work: impl FnOnce(&mut Pass<'_>) -> Result<Tally>,
    ) -> Result<Option<Computed>> {
        let (start, mine) = (rank.now(), planned.share.rows.len());
        let operations = self.model.flops_per_row() * mine as u64;
        let step = planned.step.number;
        let computed = rank.compute_with_collectives(WORK, 0, |rank| {
            let abort_check = reborrow(&mut abort_check);
            let mut pass = Pass {
                compute: self,
                rank,
                planned,
                computed: 0,
                collectives: Duration::ZERO,
                abort_check,
                is_abandoned: false,
            };
            let tally = work(&mut pass);
            if pass.is_abandoned {
                return Ok(None);
            }
            pass.rank.charge(operations);
            Ok(Some((tally?, pass.collectives)))
        })?;
        let Some((tally, collectives)) = computed else { return Ok(None) };
        let mut took = (rank.now() - start).saturating_sub(collectives);
        let mut delay = Duration::ZERO;
        if let Some(slowdown) = &mut self.slowdown {
            let [step, turn] = slowdown.next_turn(step);
            let mut random = rank.random("jitter", &[step, rank.member_id() as u64, turn]);
            delay = slowdown.rest(mine, took, &mut random);
        }
        delay += rank.injected_delay(took + delay);
        if !delay.is_zero() {
            let is_abandoned = rank.compute_with_collectives(WORK, 0, |rank| match abort_check {
                Some(abort_check) => abort_check(rank, delay),
                None => rank.slow_down(delay).map(|()| false),
            })?;
            if is_abandoned {
                return Ok(None);
            }
            took = (rank.now() - start).saturating_sub(collectives);
        }
        rank.book_step(mine, took);
        Ok(Some(Computed { loss: tally.loss, rows: mine, took }))
    }
}

fn reborrow<'a>(abort_check: &'a mut Option<&mut AbortCheck<'_>>) -> Option<&'a mut AbortCheck<'a>> {
    match abort_check {
        Some(abort_check) => Some(&mut **abort_check),
        None => None,
    }
}

/// The computation of this rank's share of one step, in one or several passes through the model.
pub(crate) struct Pass<'a> {
    compute: &'a mut Compute,
    pub(crate) rank: &'a mut Rank,
    pub(crate) planned: PlannedShare<'a>,
    /// Rows computed so far.
    computed: usize,
    /// Time of collectives during the passes.
    pub(crate) collectives: Duration,
    /// What may end the passes, and whether it has.
    abort_check: Option<&'a mut AbortCheck<'a>>,
    is_abandoned: bool,
}

impl<'a> Pass<'a> {
    pub(crate) fn layout(&self) -> &Layout {
        self.compute.model.layout()
    }

    /// This rank's rows.
    fn mine(&self) -> &'a [u64] {
        &self.planned.rows[self.planned.share.rows.clone()]
    }

    /// One pass: the gradient of `rows` at the parameters `at`. Completed tensors are announced to `sender`.
    fn run(
        &mut self,
        rows: &[u64],
        at: &[f32],
        gradient: &mut [f32],
        sender: Option<BucketSender<'_>>,
    ) -> Result<Tally> {
        let mine = self.mine().len();
        let Compute { data, model, batch, consumed, accumulator, statistics_of_rank0, .. } =
            &mut *self.compute;
        let own = rows.len() as f32 / mine.max(1) as f32;
        let statistics_weight = statistics_of_rank0.then_some(if self.rank.index() == 0 { own } else { 0.0 });
        let per_row = model.flops_per_row();
        let operations = (per_row * self.computed as u64, per_row * rows.len() as u64);
        data.training.load(rows, self.planned.step.epoch, batch)?;
        consumed.extend_from_slice(&batch.rows);
        self.computed += rows.len();
        let parts = accumulator.parts();
        let mut hooks = PassHooks {
            rank: self.rank,
            parts,
            operations,
            sender,
            statistics_weight,
            collectives: Duration::ZERO,
            abort_check: reborrow(&mut self.abort_check),
            is_abandoned: false,
        };
        let scale = 1.0 / self.planned.divisor;
        let tally = hooks.run(|hooks| model.gradient(at, batch, scale, gradient, hooks));
        self.collectives += hooks.collectives;
        self.is_abandoned |= hooks.is_abandoned;
        tally
    }

    /// The gradient of this rank's rows at once, or accumulated over the parts that the job asks for. `overlap` sends
    /// the tensors that the last pass completes.
    pub(crate) fn accumulate(
        &mut self,
        at: &[f32],
        gradient: &mut [f32],
        mut overlap: Option<(&mut Overlap, &mut [f32])>,
    ) -> Result<Tally> {
        let (mine, step) = (self.mine(), self.planned.step.number);
        let empty = Accumulator::new(self.compute.accumulator.parts());
        let mut accumulator = std::mem::replace(&mut self.compute.accumulator, empty);
        let tally = accumulator.gradient(mine, gradient, |rows, gradient, turn| {
            let sender = match (turn, &mut overlap) {
                (Turn::Last(earlier), Some((overlap, buffer))) => {
                    Some(BucketSender { overlap, buffer, earlier, step })
                }
                _ => None,
            };
            self.run(rows, at, gradient, sender)
        });
        self.compute.accumulator = accumulator;
        tally
    }

    /// The gradient of this rank's rows into its partial sums: leaf by leaf where the step has leaves, with the loss
    /// behind each, else at once. What is not finite is refused.
    pub(crate) fn fill_partial_sums(
        &mut self,
        at: &[f32],
        sums: PartialSums,
        memory: &mut [f32],
    ) -> Result<Tally> {
        let count = at.len();
        let PlannedShare { rows, share, leaves, held, .. } = self.planned.clone();
        let tally = match leaves {
            Some(leaves) => leaves.gradient(rows, &share.leaves, sums, memory, |rows, gradient| {
                self.run(rows, at, gradient, None)
            })?,
            None => self.accumulate(at, &mut memory[..count], None)?,
        };
        for slot in 0..held {
            self.check(tally.loss, &sums.slice(memory, slot)[..count], 0)?;
        }
        Ok(tally)
    }

    /// Refuses a gradient, from the element `first` on, or a loss that is not finite.
    pub(crate) fn check(&self, loss: f64, gradient: &[f32], first: usize) -> Result<()> {
        let (rank, step) = (self.rank.member_id(), self.planned.step.number);
        finite::check_gradient(rank, step, loss, gradient, first, self.layout())
    }
}
