//! Gossip learning: models that walk from worker to worker (Ormandi, Hegedus and Jelasity 2013; Verbraeken et al. 2020,
//! section 3.4).
//!
//! Every worker `i` has a model at hand `w_i`, the last visitor `v_i` as it came, and a cache of the models that were trained
//! here. It walks rows of its own at its own speed (`work/local_rows.rs`). In each local step:
//!
//! ```text
//! if w_i has left: for every model w that has arrived:
//!     w_i = (w + v_i) / 2                             a visitor is merged with the one before it
//!     v_i = w
//! w_i = update(w_i, gradient of its next rows)
//! with probability p, w_i leaves:
//!     put it into the cache, in place of the oldest
//!     send it to another worker, drawn at random
//! ```
//!
//! A worker that no visitor has reached trains on the copy of the model that has left. A visitor waits until the model at
//! hand has left, so everything that is learned here walks on. At first all models are equal, and the last visitor is the
//! initial model. Optimizer slots stay with their worker.
//!
//! The last visitor and the cache are columns of the state, so that a checkpoint has them; a column of zeros is an empty
//! place. The newest model that has left is at hand, too, until that changes: it is put into the cache then.
//!
//! Where all meet, the models in the caches and at hand are published: an ensemble (`thalweg_graph::Ensemble`), or their
//! mean.
//!
//! A model that is at hand or waits at a lost worker dies with it; its copy from before is in the cache of the worker that
//! it came from. A model on its way there turns back, and walks on to another worker. A new worker begins with the model of
//! another one, and an empty cache.

#[cfg(test)]
#[path = "gossip_learning_record.rs"]
mod replayed;

use super::gosgd::draw_receiver;
#[cfg(test)]
use super::gosgd::recorded;
use super::model_message;
use crate::context::Context;
use crate::reduction::Description;
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use crate::work::local_rows::{LocalRows, RowsComputed};
use std::collections::VecDeque;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_cluster::{MessageTag, SendOutcome};
use thalweg_core::event::{Event, Level};
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::spec::gossip::MOST_MODELS;
use thalweg_core::{Error, JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

const VISITOR: MessageTag = MessageTag { number: 1, name: "a model that walks on" };

/// Models that a worker may have sent to another and that were not taken in: with more, the model at hand stays.
const MAX_WAITING: usize = 2;

/// The last visitor of a worker, as it came.
const LAST_VISITOR: &str = "last_visitor";
/// The models that left a worker before the one at hand, the newest first.
pub(crate) const EARLIER: [&str; MOST_MODELS - 1] =
    ["earlier_1", "earlier_2", "earlier_3", "earlier_4", "earlier_5", "earlier_6", "earlier_7"];

pub struct GossipLearning {
    /// The model at hand, optimizer slots, the last visitor as it came, and the cache, its newest first.
    state: State,
    gradient: Vec<f32>,
    /// Whether the model at hand is a copy of one that has left.
    has_left: bool,
    /// Models that were on their way to workers that are lost.
    returned: VecDeque<Vec<u8>>,
    /// Models of each worker that are published, and workers of the job.
    capacity: usize,
    workers: usize,
}

impl GossipLearning {
    pub fn new(job: &JobSpec, optimizer: &Optimizer, parameters: usize) -> GossipLearning {
        let capacity = job.gossip.cache.clamp(1, MOST_MODELS);
        let state = State::of_own_parameters(parameters)
            .with_columns(optimizer.slot_names(), Spread::PerMember)
            .with_columns(&[LAST_VISITOR], Spread::PerMember)
            .with_columns(&EARLIER[..capacity - 1], Spread::PerMember);
        GossipLearning {
            state,
            gradient: vec![0.0; parameters],
            has_left: false,
            returned: VecDeque::new(),
            capacity,
            workers: job.engine.workers,
        }
    }

    /// The models of this worker that are published: the one at hand, and those that left before.
    fn own_models(&self) -> impl Iterator<Item = &[f32]> {
        let columns = self.state.columns();
        let earlier = columns[columns.len() - (self.capacity - 1)..].iter().map(|column| &column.values[..]);
        let is_filled = |model: &&[f32]| model.iter().any(|value| *value != 0.0);
        std::iter::once(self.state.parameters()).chain(earlier.filter(is_filled))
    }

    /// The model at hand is about to change: if it has left, it is put into the cache, in place of the oldest.
    fn keep_in_cache(&mut self) {
        if !std::mem::replace(&mut self.has_left, false) {
            return;
        }
        let columns = self.state.columns_mut();
        let (others, earlier) = columns.split_at_mut(columns.len() - (self.capacity - 1));
        for place in (1..earlier.len()).rev() {
            let (newer, older) = earlier.split_at_mut(place);
            std::mem::swap(&mut newer[place - 1].values, &mut older[0].values);
        }
        if let Some(newest) = earlier.first_mut() {
            newest.values.copy_from_slice(&others[0].values);
        }
    }

    /// Sends models on that were on their way to workers that are lost.
    fn send_returned(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let (own, workers) = (cx.rank.index(), cx.rank.size());
        while workers > 1
            && let Some(message) = self.returned.front()
        {
            let keys = [cx.rank.member_id() as u64, cx.rank.generation().into(), self.returned.len() as u64];
            let distance = cx.rank.random("returned", &keys).below(workers as u64 - 1) as usize;
            let to = (own + 1 + distance) % workers;
            if cx.rank.world().send(to, VISITOR, message.clone())? == SendOutcome::Full {
                break;
            }
            self.returned.pop_front();
        }
        Ok(())
    }

    /// Once the model at hand has left, all visitors that have arrived come in.
    fn receive_visitors(&mut self, cx: &mut Context<'_>) -> Result<()> {
        if !self.has_left {
            return Ok(());
        }
        while let Some(message) = cx.rank.world().try_receive_any(VISITOR)? {
            let (rows, visitor) = model_message::read_own(message.member, &message.bytes, self.state.len())?;
            self.keep_in_cache();
            let (own, last) = self.state.parameters_and(LAST_VISITOR);
            for ((own, last), visitor) in own.iter_mut().zip(last).zip(visitor) {
                *own = (visitor + *last) / 2.0;
                *last = visitor;
            }
            cx.local_rows.iter_mut().for_each(|local| local.note_received(message.member, rows));
            #[cfg(test)]
            recorded::record(cx.rank.member_id(), || recorded::Recorded::Received(message.member, 0.0));
        }
        Ok(())
    }

    /// With the job's probability the model at hand, after so many rows, leaves for another worker. The update before counts
    /// in any case: if this fails, so does the next operation.
    fn send_on(&mut self, cx: &mut Context<'_>, rows: RowsComputed) {
        let Some(to) = draw_receiver(cx, rows) else { return };
        let message = model_message::before_own(rows, self.state.parameters());
        match cx.rank.world().send(to, VISITOR, message) {
            Ok(SendOutcome::Queued) => {
                #[cfg(test)]
                recorded::record(cx.rank.member_id(), || {
                    recorded::Recorded::Sent(cx.rank.member_id_at(to), 0.0)
                });
                self.has_left = true;
            }
            _ => cx.rank.count_skipped_message(),
        }
    }
}

/// The mean of models with `length` parameters each, one after the other.
fn mean(models: &[f32], length: usize) -> Vec<f32> {
    let count = (models.len() / length.max(1)).max(1) as f32;
    let mut mean = vec![0.0; length];
    for model in models.chunks_exact(length.max(1)) {
        mean.iter_mut().zip(model).for_each(|(mean, value)| *mean += value / count);
    }
    mean
}

impl Strategy for GossipLearning {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        self.send_returned(cx)?;
        self.receive_visitors(cx)?;
        let computed = cx.compute_own_gradient(self.state.parameters(), &mut self.gradient)?;
        self.keep_in_cache();
        cx.update(cx.own_moment(), &mut self.state, &self.gradient)?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || recorded::Recorded::Updated(cx.compute.consumed().to_vec()));
        let rows = cx.local_rows.as_ref().map(LocalRows::own_rows).unwrap_or_default();
        self.send_on(cx, RowsComputed { count: rows.count + computed.rows as u64, ..rows });
        Ok(StepSummary::alone(&cx.report(computed.loss, computed.took, 1)))
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        // Who leaves has sent what it was to send.
        cx.rank.world().flush_messages()?;
        let own: Vec<u8> = self.own_models().flatten().flat_map(|value| value.to_le_bytes()).collect();
        let all = cx.rank.world().all_gather("models in caches", &own)?;
        let values = all.iter().flat_map(|bytes| bytes.as_chunks().0);
        let models: Vec<f32> = values.map(|bytes| f32::from_le_bytes(*bytes)).collect();
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || recorded::Recorded::Met(0.0, models.clone()));
        *self.state.published_mut() = match cx.job.ensemble.combine {
            Combine::Merge => mean(&models, self.state.len()),
            Combine::Average | Combine::Vote | Combine::Stack => models,
        };
        Ok(())
    }

    fn change(&mut self, cx: &mut Context<'_>, change: &MembershipChange) -> Result<()> {
        let undelivered = cx.rank.take_undelivered().into_iter();
        self.returned.extend(undelivered.map(|undelivered| undelivered.bytes));
        let counts = cx
            .rank
            .world()
            .all_gather("models that turn back", &(self.returned.len() as u64).to_le_bytes())?;
        let count = |bytes: &Vec<u8>| Some(u64::from_le_bytes(*bytes.first_chunk()?));
        let returned: Option<u64> = counts.iter().map(count).sum();
        let returned = returned.ok_or_else(|| Error::internal("a count of other length"))?;
        let gone = change.lost.len() + change.left.len();
        if gone > 0 && cx.rank.index() == 0 {
            let message = format!(
                "{gone} of the models that walk are gone with their workers; {returned} that were on their way there walk on to others"
            );
            cx.rank.emit(Event::Notice { level: Level::Info, message });
        }
        self.state.publish_own();
        let began = change.resume_position().is_some();
        let is_new = began && change.positions[cx.rank.index()].position.is_none();
        if is_new || self.state.column(LAST_VISITOR).iter().all(|value| *value == 0.0) {
            let columns = self.state.columns_mut();
            let (others, kept) = columns.split_at_mut(columns.len() - self.capacity);
            kept[0].values.copy_from_slice(&others[0].values);
            kept[1..].iter_mut().for_each(|earlier| earlier.values.fill(0.0));
        }
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || {
            recorded::Recorded::Began(0.0, self.state.parameters().to_vec())
        });
        Ok(())
    }

    fn message_window(&self, _: &JobSpec) -> Option<usize> {
        Some(MAX_WAITING * model_message::own_bytes(self.state.len()))
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn working_columns(&self) -> usize {
        // What all publish.
        self.capacity * self.workers
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}
