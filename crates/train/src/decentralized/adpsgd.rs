//! AD-PSGD: asynchronous decentralized parallel stochastic gradient descent (Lian, Zhang, Zhang and Liu 2018).
//!
//! Every worker has a model of its own and walks rows of its own at its own speed (`work/local_rows.rs`). The graph has two
//! sides: odd workers ask, even ones answer, so that no two wait for each other. In each local step:
//!
//! ```text
//! worker i that asks:       send w_i to a neighbour j on the other side, drawn at random
//! all:                      g_i = gradient of its next rows at w_i
//! worker j that answers:    for every w_i that has arrived:  w_j = (w_i + w_j) / 2;  send w_j to i
//! worker i:                 wait for the answer:  w_i = (w_i + w_j) / 2
//! all:                      w_i = update(w_i, g_i)
//! ```
//!
//! A pair is averaged at once: between its question and the answer a worker does not change its model. The gradient is
//! stale: it was computed before the average. A worker waits for a local step of one other at most.
//!
//! Where all meet, workers that answer do so until all that ask have come; then the mean of all models is published, and
//! each goes on with its own. A lost worker takes its model with it, and the others form the graph anew.

#[cfg(test)]
#[path = "adpsgd_record.rs"]
mod replayed;

#[cfg(test)]
use super::gosgd::recorded;
use super::mixing::MixingMatrix;
use super::model_message;
use crate::context::Context;
use crate::reduction::Description;
use crate::reduction::bucket_plan::BucketPlan;
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use crate::work::local_rows::{LocalRows, RowsComputed};
use std::collections::BTreeMap;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_cluster::{Message, MessageTag, SendOutcome};
use thalweg_core::{Error, JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

/// The generation and the number of the question, and a model; or no model: its sender has come to that meeting.
const QUESTION: MessageTag = MessageTag { number: 1, name: "a neighbour's model to average" };
const ANSWER: MessageTag = MessageTag { number: 2, name: "the average with a neighbour" };

/// Models that a worker may have sent to another which were not received: one, and those of generations that ended.
const WINDOW: usize = 4;

/// Bytes before a model: generation and number.
const HEADER: usize = 16;

pub struct AdPsgd {
    state: State,
    gradient: Vec<f32>,
    /// Neighbours on the other side of the graph.
    neighbours: Vec<usize>,
    /// Questions asked in this generation, and meetings held.
    asked: u64,
    meetings: u64,
    /// The last meeting that members which ask have come to. They may come before this worker does.
    come: BTreeMap<usize, u64>,
    plan: BucketPlan,
}

/// Whether a worker asks, or answers.
fn asks(rank: usize) -> bool {
    rank % 2 == 1
}

fn message(cx: &Context<'_>, number: u64, model: Option<(RowsComputed, &[f32])>) -> Vec<u8> {
    let mut message = u64::from(cx.rank.generation()).to_le_bytes().to_vec();
    message.extend_from_slice(&number.to_le_bytes());
    if let Some((rows, model)) = model {
        message.extend(model_message::before_own(rows, model));
    }
    message
}

/// Generation, number and the rest.
fn parts(message: &Message) -> Result<(u64, u64, &[u8])> {
    match message.bytes.as_chunks::<8>().0 {
        [generation, number, ..] => {
            Ok((u64::from_le_bytes(*generation), u64::from_le_bytes(*number), &message.bytes[HEADER..]))
        }
        _ => Err(super::dpsgd::invalid(message.member, "sent a message without a number".into())),
    }
}

impl AdPsgd {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> AdPsgd {
        let state = State::of_own_parameters(parameters);
        AdPsgd {
            state: state.with_columns(optimizer.slot_names(), Spread::PerMember),
            gradient: vec![0.0; parameters],
            neighbours: Vec::new(),
            asked: 0,
            meetings: 0,
            come: BTreeMap::new(),
            plan: BucketPlan::default(),
        }
    }

    /// The model and the rows in it, as they are sent.
    fn own(&self, cx: &Context<'_>) -> (RowsComputed, &[f32]) {
        let rows = cx.local_rows.as_ref().map(LocalRows::own_rows).unwrap_or_default();
        (rows, self.state.parameters())
    }

    /// Drops what a change of the group has made useless: no answer is expected between two steps, and who asks now may have
    /// answered before.
    fn drop_stale(cx: &mut Context<'_>) -> Result<()> {
        while cx.rank.world().try_receive_any(ANSWER)?.is_some() {}
        while asks(cx.rank.index()) && cx.rank.world().try_receive_any(QUESTION)?.is_some() {}
        Ok(())
    }

    /// Asks a neighbour, drawn at random: the same on every repeat. Returns its rank.
    fn ask(&mut self, cx: &mut Context<'_>) -> Result<Option<usize>> {
        if !asks(cx.rank.index()) || self.neighbours.is_empty() {
            return Ok(None);
        }
        let keys = [cx.rank.member_id() as u64, cx.rank.generation().into(), self.asked];
        let draw = cx.rank.random("neighbour", &keys).below(self.neighbours.len() as u64);
        let neighbour = self.neighbours[draw as usize];
        self.asked += 1;
        let question = message(cx, self.asked, Some(self.own(cx)));
        send(cx, neighbour, QUESTION, question)?;
        Ok(Some(neighbour))
    }

    /// Waits for the answer to the last question, and takes the average.
    fn take_average(&mut self, cx: &mut Context<'_>, neighbour: usize) -> Result<()> {
        loop {
            let answer = cx.rank.world().receive(neighbour, ANSWER)?;
            let (generation, number, model) = parts(&answer)?;
            // One to a question of before a change of the group.
            if (generation, number) == (cx.rank.generation().into(), self.asked) {
                let (rows, average) = model_message::read_own(answer.member, model, self.state.len())?;
                self.state.parameters_mut().copy_from_slice(&average);
                cx.local_rows.iter_mut().for_each(|local| local.note_received(answer.member, rows));
                #[cfg(test)]
                recorded::record(cx.rank.member_id(), || recorded::Recorded::Received(answer.member, 1.0));
                return Ok(());
            }
        }
    }

    /// Averages the model with that of a question, and answers; or learns that its sender has come to a meeting.
    fn answer(&mut self, cx: &mut Context<'_>, question: &Message) -> Result<()> {
        let (generation, number, model) = parts(question)?;
        if generation != u64::from(cx.rank.generation()) {
            return Ok(());
        }
        if model.is_empty() {
            self.come.insert(question.member, number);
            return Ok(());
        }
        let (rows, theirs) = model_message::read_own(question.member, model, self.state.len())?;
        let own = self.state.parameters_mut().iter_mut().zip(&theirs);
        own.for_each(|(own, theirs)| *own = (*own + theirs) / 2.0);
        cx.local_rows.iter_mut().for_each(|local| local.note_received(question.member, rows));
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || recorded::Recorded::Received(question.member, 0.0));
        if let Some(rank) = question.from {
            let answer = message(cx, number, Some(self.own(cx)));
            send(cx, rank, ANSWER, answer)?;
        }
        Ok(())
    }

    /// Answers all questions that have arrived.
    fn answer_all(&mut self, cx: &mut Context<'_>) -> Result<()> {
        while let Some(question) = cx.rank.world().try_receive_any(QUESTION)? {
            self.answer(cx, &question)?;
        }
        Ok(())
    }

    /// Workers that ask say that they have come; the others answer until all neighbours have said so.
    fn come_together(&mut self, cx: &mut Context<'_>) -> Result<()> {
        self.meetings += 1;
        if asks(cx.rank.index()) {
            let come = message(cx, self.meetings, None);
            for neighbour in self.neighbours.clone() {
                send(cx, neighbour, QUESTION, come.clone())?;
            }
            return Ok(());
        }
        loop {
            let has_come = |rank: &usize| self.come.get(&cx.rank.member_id_at(*rank)) == Some(&self.meetings);
            let missing: Vec<usize> =
                self.neighbours.iter().copied().filter(|rank| !has_come(rank)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            let question = cx.rank.world().receive_any_of(&missing, QUESTION)?;
            self.answer(cx, &question)?;
        }
    }
}

fn send(cx: &mut Context<'_>, to: usize, tag: MessageTag, message: Vec<u8>) -> Result<()> {
    match cx.rank.world().send(to, tag, message)? {
        SendOutcome::Queued => Ok(()),
        SendOutcome::Full => {
            let member = cx.rank.member_id_at(to);
            Err(Error::internal(format!("rank {member} has not received earlier messages: {}", tag.name)))
        }
    }
}

impl Strategy for AdPsgd {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        AdPsgd::drop_stale(cx)?;
        let asked = self.ask(cx)?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || recorded::Recorded::Sent(cx.rank.member_id(), 0.0));
        let computed = cx.compute_own_gradient(self.state.parameters(), &mut self.gradient)?;
        match asked {
            Some(neighbour) => self.take_average(cx, neighbour)?,
            None => self.answer_all(cx)?,
        }
        cx.update(cx.own_moment(), &mut self.state, &self.gradient)?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || recorded::Recorded::Updated(cx.compute.consumed().to_vec()));
        Ok(StepSummary::alone(&cx.report(computed.loss, computed.took, 1)))
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        self.come_together(cx)?;
        cx.rank.world().flush_messages()?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || {
            recorded::Recorded::Met(0.0, self.state.parameters().to_vec())
        });
        let share = 1.0 / cx.rank.size() as f32;
        let mut mean: Vec<f32> = self.state.parameters().iter().map(|value| share * value).collect();
        cx.rank.world().all_reduce("parameters", &mut mean)?;
        *self.state.published_mut() = mean;
        Ok(())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        cx.rank.take_undelivered();
        let (own, workers) = (cx.rank.index(), cx.rank.size());
        let all: Vec<usize> = (0..workers).collect();
        let graph = MixingMatrix::of_members(&cx.job.neighbours.graph, workers, &all);
        let others = graph.neighbours(own).map(|(other, _)| other);
        self.neighbours = others.filter(|other| asks(*other) != asks(own)).collect();
        (self.asked, self.meetings) = (0, 0);
        self.come.clear();
        self.state.publish_own();
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || {
            recorded::Recorded::Began(0.0, self.state.parameters().to_vec())
        });
        let hosts = cx.rank.world().host_numbers().to_vec();
        let plan = BucketPlan::whole(cx.job, cx.compute.model.layout(), &hosts);
        self.plan = plan.adopt(cx, self.state.len())?;
        Ok(())
    }

    fn message_window(&self, _: &JobSpec) -> Option<usize> {
        Some(WINDOW * (HEADER + model_message::own_bytes(self.state.len())))
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        self.plan.describe(cx.compute.model.layout(), self.state.len())
    }
}
