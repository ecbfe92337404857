//! Workers of one host, with gradients, sums and parameters in memory that all of them see.
//!
//! Each worker writes its gradient where the others can read it. Where the update of an element needs nothing but that
//! element, parameters and the optimizer's state are shared as well: each worker sums its share of the gradient and updates
//! that share of them at once. It is the replicated update, bit by bit,
//! with one worker's work divided by all. What a step starts from is left as it was until the next one: parameters and
//! state lie there twice, and the step goes from one to the other. So a worker that dies in the middle takes nothing with
//! it: the others find all of it as it was before the step or, if one of them has seen its end, after it. Rules that look at whole tensors (LARS, LAMB) and clipping by the norm need all
//! of the sum first: there every worker updates parameters of its own, from a sum that is shared.

use crate::finite;
use crate::worker::{Parts, Worker};
use std::ops::Range;
use std::time::Duration;
use thalweg_cluster::{PartialSums, Rank, ReductionTree, SharedArena};
use thalweg_core::event::{Event, Level};
use thalweg_core::model::TensorRole;
use thalweg_core::spec::bucket::BucketSize;
use thalweg_core::spec::strategy::{Algorithm, Exchange, TransportChoice};
use thalweg_core::{Error, JobSpec, Kind, Layout, Result};
use thalweg_graph::optimizer::GradientTransform;

/// The first column of the commons: sums. Behind it, if they are shared, parameters and slots, twice.
const SUMS: usize = 0;

/// What is shared.
pub(crate) struct Shared {
    commons: SharedArena,
    /// Parameters and slots, if they are: all but clipping by the norm and rules over whole tensors.
    kept: Option<usize>,
    /// Which of the two counts.
    current: usize,
    /// The step at which it does.
    step: u64,
}

impl Shared {
    /// Takes the memory, if the job may be done in it and all ranks have it: slots for gradients and what rides along.
    pub(crate) fn open(
        rank: &mut Rank,
        job: &JobSpec,
        parts: &Parts,
        correction: &GradientTransform,
        slots: PartialSums,
        step: u64,
    ) -> Result<Option<Shared>> {
        let exchange = &job.exchange;
        // Named algorithms and buckets of a size are about messages.
        let suits = exchange.kind == Exchange::Allreduce
            && exchange.algorithm == Algorithm::Auto
            && matches!(exchange.bucket, BucketSize::Auto | BucketSize::Whole);
        if !suits || exchange.transport == TransportChoice::Tcp || !rank.agree_on_shared_memory()? {
            return Ok(None);
        }
        let kept = parts.optimizer.is_elementwise(correction).then(|| 1 + parts.optimizer.slots().len());
        let mut commons = match rank.open_arena("arenas", slots, 1 + 2 * kept.unwrap_or(0))? {
            Ok(commons) => commons,
            Err(words) if exchange.transport == TransportChoice::Shm => {
                return Err(Error::new(
                    Kind::RankFailed,
                    format!("no memory to share for gradients: {words}"),
                )
                .hint("strategy.exchange.transport = \"auto\" would send them as messages"));
            }
            Err(words) => {
                if rank.index() == 0 {
                    let message =
                        format!("no memory to share for gradients, they travel as messages: {words}");
                    rank.emit(Event::Notice { level: Level::Warning, message });
                }
                return Ok(None);
            }
        };
        if let Some(kept) = kept {
            let columns = all_of(parts);
            rank.write_shards("parameters", &mut commons, slots.length, |range, shared| {
                let range = within(&range, parts.parameters.len());
                for (values, shared) in columns.iter().zip(&mut shared[1..=kept]) {
                    shared[..range.len()].copy_from_slice(&values[range.clone()]);
                }
            })?;
        }
        Ok(Some(Shared { commons, kept, current: 0, step }))
    }

    /// Whether parameters are shared, too.
    pub(crate) fn updates(&self) -> bool {
        self.kept.is_some()
    }

    /// Where this worker writes its gradients, and the parameters it reads: shared ones, or its own.
    pub(crate) fn at_work<'a>(&'a mut self, own: &'a [f32]) -> (&'a mut [f32], &'a [f32]) {
        let column = self.kept.map(|kept| 1 + self.current * kept);
        let (arena, shared) = self.commons.arena_and_column(column.unwrap_or(SUMS));
        (arena, if column.is_some() { &shared[..own.len()] } else { own })
    }

    /// The sums of the last exchange.
    pub(crate) fn sums(&self) -> &[f32] {
        self.commons.column(SUMS)
    }

    /// The parameters that count: shared ones, or the worker's own.
    pub(crate) fn parameters<'a>(&'a self, own: &'a [f32]) -> &'a [f32] {
        match self.kept {
            Some(kept) => &self.commons.column(1 + self.current * kept)[..own.len()],
            None => own,
        }
    }

    /// A slot of the optimizer that counts: a shared one, or the worker's own.
    pub(crate) fn slot<'a>(&'a self, index: usize, own: &'a [f32]) -> &'a [f32] {
        match self.kept {
            Some(kept) => &self.commons.column(2 + index + self.current * kept)[..own.len()],
            None => own,
        }
    }

    /// Adds up all gradients, in the order of ranks or as the brackets say, and does `work` on this rank's share.
    pub(crate) fn sum_and<T>(
        &mut self,
        rank: &mut Rank,
        brackets: Option<&ReductionTree>,
        work: impl FnOnce(Range<usize>, &mut [&mut [f32]]) -> T,
    ) -> Result<(T, Duration)> {
        let length = self.commons.length();
        match brackets {
            Some(brackets) => rank.tree_sum_and_apply("gradients", &mut self.commons, brackets, work),
            None => rank.sum_and_apply("gradients", &mut self.commons, length, work),
        }
    }

    /// Copies parameters and state, as they were after that many steps, into what the worker has of its own. After a
    /// failure too: the memory is there as long as anybody has it, and nobody writes to it any more.
    pub(crate) fn bring_home(&self, step: u64, parts: &mut Parts) -> Result<()> {
        let Some(kept) = self.kept else { return Ok(()) };
        let Some(ahead) = step.checked_sub(self.step).filter(|ahead| *ahead <= 1) else {
            return Err(Error::internal(format!("shared memory holds step {}, not {step}", self.step)));
        };
        let first = 1 + (self.current ^ ahead as usize) * kept;
        let Parts { parameters, optimizer, .. } = parts;
        let slots = optimizer.slots_mut().into_iter().map(|(_, slot)| slot);
        for (column, values) in std::iter::once(&mut parameters[..]).chain(slots).enumerate() {
            self.commons.read_after_failure(first + column, values);
        }
        Ok(())
    }
}

/// Parameters and slots, in the order of the columns.
fn all_of(parts: &Parts) -> Vec<&[f32]> {
    let slots = parts.optimizer.slots().into_iter().map(|(_, values)| values);
    std::iter::once(&parts.parameters[..]).chain(slots).collect()
}

impl Worker<'_> {
    /// `w`: the update rule's answer to the sum of all `g_i`. Where memory is shared, every worker does a share of it.
    pub fn sum_and_update(&mut self) -> Result<()> {
        let Some(shared) = self.shared.as_mut().filter(|shared| shared.updates()) else {
            self.all_reduce_gradient()?;
            return self.update();
        };
        let (number, step) = (self.rank.member_id(), self.next);
        let Parts { parameters, optimizer, model, .. } = &mut self.parts;
        let (rate, correction, layout) = (self.schedule.rate(step), &self.correction, model.layout());
        let (kept, current) = (shared.kept.unwrap_or(0), shared.current);
        let (updated, took) = shared.sum_and(self.rank, self.split.brackets(), |range, columns| {
            let range = within(&range, parameters.len());
            let Some((sums, columns)) = columns.split_first_mut() else {
                return Err(Error::internal("there is no column for sums"));
            };
            let gradient = &sums[..range.len()];
            finite::check_share(number, step, gradient, range.start, layout)?;
            let (one, other) = columns.split_at_mut(kept);
            let (from, to) = if current == 0 { (one, other) } else { (other, one) };
            let from =
                [0, 1, 2].map(|column| from.get(column).map_or(&[][..], |values| &values[..range.len()]));
            let mut written = to.iter_mut().map(|values| &mut values[..range.len()]);
            let written = [0, 1, 2].map(|_| written.next().unwrap_or_default());
            optimizer.update_out_of_place(rate, correction, range.clone(), from, written, gradient);
            if let Some(values) = to.first_mut() {
                move_statistics(layout, &range, &mut values[..range.len()], gradient);
            }
            Ok(())
        })?;
        // All have met: the step counts, for all.
        (shared.current, shared.step) = (1 - current, step + 1);
        updated?;
        self.take_riders(took)
    }

    /// Parameters and optimizer state, wherever they are, come onto the scribe's page, if this worker has one.
    pub(crate) fn show_state(&mut self) {
        let Some(scribe) = &mut self.scribe else { return };
        let Parts { parameters, optimizer, .. } = &self.parts;
        let page = scribe.page();
        page.slots.resize_with(optimizer.slots().len(), Default::default);
        // The next update waits for this worker too: nobody writes meanwhile.
        let shared = self.shared.as_ref();
        shared
            .map_or(&parameters[..], |shared| shared.parameters(parameters))
            .clone_into(&mut page.parameters);
        for (index, (name, slot)) in optimizer.slots().into_iter().enumerate() {
            let (title, values) = &mut page.slots[index];
            name.clone_into(title);
            shared.map_or(slot, |shared| shared.slot(index, slot)).clone_into(values);
        }
    }
}

/// Running statistics are not learned: what arrives as their gradient is how far they are to move. `values` and
/// `gradient` are those of `range`.
pub(crate) fn move_statistics(layout: &Layout, range: &Range<usize>, values: &mut [f32], gradient: &[f32]) {
    for tensor in layout.tensors().iter().filter(|tensor| tensor.role == TensorRole::Statistic) {
        let start = tensor.range().start.clamp(range.start, range.end) - range.start;
        let end = tensor.range().end.clamp(range.start, range.end) - range.start;
        for (value, way) in values[start..end].iter_mut().zip(&gradient[start..end]) {
            *value -= way;
        }
    }
}

/// The part of a share that is parameters: riders are behind them.
fn within(range: &Range<usize>, parameters: usize) -> Range<usize> {
    range.start.min(parameters)..range.end.min(parameters)
}
