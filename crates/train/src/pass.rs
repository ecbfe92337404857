//! A worker's part of a step: its rows forward and back through the model.

use crate::accumulate::Turn;
use crate::finite;
use crate::hooks::{PassHooks, WORK};
use crate::overlap::Leaving;
use crate::rider::{Rider, Rows, Word};
use crate::split::Share;
use crate::worker::{Parts, Step, Worker};
use std::time::Duration;
use thalweg_core::Result;
use thalweg_core::spec::strategy::Optimization;

impl Worker<'_> {
    /// `g_i`: the gradients of this worker's share of the step's rows, divided by the rows of the whole step.
    pub fn compute_gradient(&mut self, step: &Step) -> Result<()> {
        let (rank, place) = (self.rank.member_id(), self.rank.index());
        let start = self.rank.now();
        let Parts { data, model, parameters, .. } = &mut self.parts;
        let rows = self.sampler.rows(step.epoch, step.index);
        let Share { rows: mine, leaves } =
            self.place.map_or(Share::default(), |place| self.split.share(rows.len(), place));
        let mine = &rows[mine];
        // A worker on its own takes the mean over its own rows.
        let alone = self.job.strategy.optimization == Optimization::Decentralized;
        let divisor = if alone { mine.len().max(1) } else { rows.len() } as f32;
        let (buffer, parameters) = match &mut self.shared {
            Some(shared) => shared.at_work(parameters),
            None => (&mut self.buffer[..], &parameters[..]),
        };
        let (slots, split) = (self.slots, &self.split);
        let mut own = self.overlap.as_mut().map(|overlap| overlap.begin(self.rank));
        let (batch, accumulator, consumed) = (&mut self.batch, &mut self.accumulator, &mut self.consumed);
        consumed.clear();
        let per_row = model.flops_per_row();
        let parts = self.job.train.accumulate;
        let (overlap, count) = (&mut self.overlap, parameters.len());
        let (tally, met) = self.rank.compute_with_collectives(WORK, per_row * mine.len() as u64, |rank| {
            let mut met = Duration::ZERO;
            let mut compute = |part: &[u64], gradient: &mut [f32], leaving: Option<Leaving<'_>>| {
                let operations = (per_row * consumed.len() as u64, per_row * part.len() as u64);
                data.training.load(part, step.epoch, batch)?;
                consumed.extend_from_slice(&batch.rows);
                let mut hooks =
                    PassHooks { rank: &mut *rank, parts, operations, leaving, met: Duration::ZERO };
                let tally = model.gradient(parameters, batch, 1.0 / divisor, gradient, &mut hooks)?;
                met += hooks.met;
                Ok(tally)
            };
            let tally = match (split.leaves(), &mut own, &mut *overlap) {
                (Some(tree), ..) => tree
                    .gradient(rows, &leaves, slots, buffer, |part, gradient| compute(part, gradient, None))?,
                (None, Some(own), Some(overlap)) => {
                    accumulator.gradient(mine, own, |part, gradient, turn| {
                        let (overlap, buffer) = (&mut *overlap, &mut buffer[..count]);
                        let leaving = match turn {
                            Turn::Last(earlier) => {
                                Some(Leaving { overlap, buffer, earlier, step: step.number })
                            }
                            Turn::Early => None,
                        };
                        compute(part, gradient, leaving)
                    })?
                }
                _ => accumulator.gradient(mine, &mut buffer[..count], |part, gradient, _| {
                    compute(part, gradient, None)
                })?,
            };
            Ok((tally, met))
        })?;
        let met = match (&mut self.overlap, own) {
            (Some(overlap), Some(own)) => {
                overlap.complete((rank, step.number, tally.loss), &own, &mut buffer[..count])?;
                met + overlap.give_back(own)
            }
            _ => {
                for slot in 0..split.held(place) {
                    let gradient = &slots.slice(buffer, slot)[..count];
                    finite::check_gradient(rank, step.number, tally.loss, gradient, 0, model.layout())?;
                }
                met
            }
        };
        let mut took = (self.rank.now() - start).saturating_sub(met);
        if let Some(slowdown) = &self.slowdown {
            let chance = self.rank.random("jitter", &[step.number, rank as u64]).uniform();
            let rest = slowdown.rest(mine.len(), took, chance);
            self.rank.compute_with_collectives(WORK, 0, |rank| {
                rank.slow_down(rest);
                Ok(())
            })?;
            took = (self.rank.now() - start).saturating_sub(met);
        }
        if self.slow_steps > 0 {
            self.slow_steps -= 1;
            let rest = took * 2;
            self.rank.compute_with_collectives(WORK, 0, |rank| {
                rank.slow_down(rest);
                Ok(())
            })?;
            took = (self.rank.now() - start).saturating_sub(met);
        }
        self.rank.book_step(mine.len(), took);
        let tail = &mut slots.slice_mut(buffer, 0)[count..];
        let word = Word {
            // The loss of leaves is summed with them, and is there already.
            loss: if split.leaves().is_some() { f64::from(tail[0]) } else { tally.loss },
            compute_ms: took.as_secs_f32() * 1e3,
            rows: Rows::of(consumed),
            ..Word::of_wishes(self.rank)
        };
        Rider::write(word, place, tail);
        Ok(())
    }
}
