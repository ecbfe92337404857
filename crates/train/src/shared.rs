//! Workers of one host, with gradients, sums and parameters in memory that all of them see.
//!
//! Each worker writes its gradient where the others can read it. Where the update of an element needs nothing but that
//! element, the parameters are shared as well: each worker sums its share of the gradient, updates that share of the
//! parameters at once, and keeps the optimizer's state of that share alone. It is the replicated update, bit by bit,
//! with one worker's work divided by all. Rules that look at whole tensors (LARS, LAMB) and clipping by the norm need all
//! of the sum first: there every worker updates parameters of its own, from a sum that is shared.

use crate::finite;
use crate::scribe::Scribe;
use crate::worker::{Parts, Worker};
use std::ops::Range;
use thalweg_cluster::{Commons, Rank};
use thalweg_core::event::{Event, Level};
use thalweg_core::model::Role;
use thalweg_core::spec::strategy::{Algorithm, Carrier, Exchange};
use thalweg_core::{Error, JobSpec, Kind, Layout, Result};
use thalweg_graph::optimizer::Correction;

/// The columns of the commons: sums, and the parameters if they are shared.
const SUMS: usize = 0;
const PARAMETERS: usize = 1;

/// What is shared.
pub(crate) struct Shared {
    commons: Commons,
    /// Whether parameters are, too: all but clipping by the norm and rules over whole tensors.
    pub(crate) updates: bool,
}

impl Shared {
    /// Takes the memory, if the job may be done in it and all ranks have it: gradients of `length` elements, what rides
    /// along included.
    pub(crate) fn open(
        rank: &mut Rank,
        job: &JobSpec,
        parts: &Parts,
        correction: &Correction,
        length: usize,
    ) -> Result<Option<Shared>> {
        let exchange = &job.exchange;
        let suits = exchange.kind == Exchange::Allreduce && exchange.algorithm == Algorithm::Auto;
        if !suits || exchange.transport == Carrier::Tcp || !rank.shares_memory() {
            return Ok(None);
        }
        let updates = parts.optimizer.is_elementwise(correction);
        let mut commons = match rank.open_commons("arenas", length, if updates { 2 } else { 1 })? {
            Ok(commons) => commons,
            Err(words) if exchange.transport == Carrier::Shm => {
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
        if updates {
            let values = &parts.parameters;
            rank.write_shares("parameters", &mut commons, length, |range, columns| {
                let range = within(&range, values.len());
                columns[PARAMETERS][..range.len()].copy_from_slice(&values[range]);
            })?;
        }
        Ok(Some(Shared { commons, updates }))
    }

    /// Where this worker writes its gradient, and the parameters it reads: shared ones, or its own.
    pub(crate) fn at_work<'a>(&'a mut self, own: &'a [f32]) -> (&'a mut [f32], &'a [f32]) {
        let updates = self.updates;
        let (arena, shared) = self.commons.arena_beside(if updates { PARAMETERS } else { SUMS });
        (arena, if updates { &shared[..own.len()] } else { own })
    }

    /// The sums of the last exchange.
    pub(crate) fn sums(&self) -> &[f32] {
        self.commons.column(SUMS)
    }

    /// The parameters that count: shared ones, or the worker's own.
    pub(crate) fn parameters<'a>(&'a self, own: &'a [f32]) -> &'a [f32] {
        if self.updates { &self.commons.column(PARAMETERS)[..own.len()] } else { own }
    }

    /// Adds up all gradients.
    pub(crate) fn sum(&mut self, rank: &mut Rank) -> Result<std::time::Duration> {
        let length = self.commons.length();
        Ok(rank.sum_and("gradients", &mut self.commons, length, |_, _| ())?.1)
    }
}

impl Worker<'_> {
    /// `w`: the update rule's answer to the sum of all `g_i`. Where memory is shared, every worker does a share of it.
    pub fn sum_and_update(&mut self) -> Result<()> {
        let Some(shared) = self.shared.as_mut().filter(|shared| shared.updates) else {
            self.all_reduce_gradient()?;
            return self.update();
        };
        let (index, step) = (self.rank.index(), self.next);
        let Parts { parameters, optimizer, model, .. } = &mut self.parts;
        let (rate, correction, layout) = (self.schedule.rate(step), &self.correction, model.layout());
        let length = shared.commons.length();
        let (updated, took) =
            self.rank.sum_and("gradients", &mut shared.commons, length, |range, columns| {
                let range = within(&range, parameters.len());
                let [sums, values] = columns else { return Err(Error::internal("there are two columns")) };
                let (gradient, values) = (&sums[..range.len()], &mut values[..range.len()]);
                finite::check_share(index, step, gradient, range.start, layout)?;
                optimizer.update_share(rate, correction, range.clone(), values, gradient);
                move_statistics(layout, &range, values, gradient);
                Ok(())
            })?;
        updated?;
        self.take_riders(took)
    }

    /// Parameters and optimizer state, wherever they are, come onto the scribe's page. Every worker must call it: where
    /// memory is shared, each shows the state that it alone keeps, that of its share.
    pub(crate) fn show_state(&mut self) -> Result<()> {
        let Parts { parameters, optimizer, .. } = &self.parts;
        let mut page = self.scribe.as_mut().map(Scribe::page);
        if let Some(page) = &mut page {
            page.slots.resize_with(optimizer.slots().len(), Default::default);
        }
        for (index, (name, slot)) in optimizer.slots().into_iter().enumerate() {
            let mut whole = slot;
            if let Some(shared) = self.shared.as_mut().filter(|shared| shared.updates) {
                let length = shared.commons.length();
                self.rank.write_shares(
                    "optimizer state",
                    &mut shared.commons,
                    length,
                    |range, columns| {
                        let range = within(&range, slot.len());
                        columns[SUMS][..range.len()].copy_from_slice(&slot[range]);
                    },
                )?;
                whole = &shared.commons.column(SUMS)[..slot.len()];
            }
            if let Some(page) = &mut page {
                let (title, values) = &mut page.slots[index];
                name.clone_into(title);
                whole.clone_into(values);
            }
        }
        if let Some(page) = page {
            // The next update waits for this worker too: nobody writes meanwhile.
            let shown = self.shared.as_ref().map_or(&parameters[..], |shared| shared.parameters(parameters));
            shown.clone_into(&mut page.parameters);
        }
        Ok(())
    }
}

/// Running statistics are not learned: what arrives as their gradient is how far they are to move. `values` and
/// `gradient` are those of `range`.
pub(crate) fn move_statistics(layout: &Layout, range: &Range<usize>, values: &mut [f32], gradient: &[f32]) {
    for tensor in layout.tensors().iter().filter(|tensor| tensor.role == Role::Statistic) {
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
