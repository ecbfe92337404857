//! GoSGD: stochastic gradient descent with sum-weight gossip (Blot et al. 2016; Langer et al., Figure 17).
//!
//! Every worker `i` has parameters `w_i`, optimizer slots and a weight `a_i`, at first 1/n. It walks rows of its own at its
//! own speed (`work/local_rows.rs`), and in each local step:
//!
//! ```text
//! for every message (w_j, a_j) that has arrived:
//!     w_i = a_i / (a_i + a_j) * w_i  +  a_j / (a_i + a_j) * w_j
//!     a_i = a_i + a_j
//! tell every worker that has asked: ready
//! w_i = update(w_i, gradient of its next rows)
//! for every worker j that is ready:
//!     a_i = a_i / 2
//!     send (w_i, a_i) to j
//! with probability p:
//!     ask another worker, drawn at random, unless it has been asked and is not ready yet
//! ```
//!
//! In the paper a drawn worker is sent the parameters at once. That assumes that it runs: the weight of a message that is
//! not merged is trained by no worker, and its parameters are old when it is. With more workers than cores, steps of 0.02 ms
//! and time slices of several milliseconds the weights flow to the workers that stand still, and what the others learn
//! meanwhile counts for little. So parameters and weight leave when the receiver is about to merge them. One that is drawn
//! again before it is ready gets one message for all of its draws, with the newest parameters and half of the weight: with
//! more of it the weights would flow to where they are not trained again.
//!
//! A worker that has sent its parameters lately weighs less, as the others have them already. Optimizer slots are not
//! sent: momenta are those of the worker's own gradients. When the workers meet, they publish their weighted mean; each
//! goes on with its own parameters.
//!
//! A lost worker takes its weight with it. As only ratios of weights count, the others keep theirs: all weights, with
//! those in flight, add up to 1 less what was lost. A new worker gets the parameters and slots of another one and half of
//! its weight.

#[cfg(test)]
#[path = "gosgd_record.rs"]
pub(crate) mod recorded;

use crate::context::Context;
use crate::reduction::Description;
use crate::reduction::bucket_plan::BucketPlan;
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use crate::work::local_rows::{LocalRows, RowsComputed};
use std::collections::BTreeSet;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_cluster::{MessageTag, SendOutcome};
use thalweg_core::event::{Event, Level};
use thalweg_core::{Culprit, Error, JobSpec, Kind, Result};
use thalweg_graph::optimizer::Optimizer;

const PARAMETERS: MessageTag = MessageTag { number: 1, name: "parameters" };

/// Empty: a worker wants to send its parameters.
const REQUEST: MessageTag = MessageTag { number: 2, name: "requests to send parameters" };

/// Empty: the answer to a request.
const READY: MessageTag = MessageTag { number: 3, name: "readiness for parameters" };

/// Parameters that a worker may have sent to another and that were not merged yet: one message, and one of before a change
/// of the group.
const MAX_UNMERGED: usize = 2;

/// Window for requests and answers.
const SIGNALS: usize = 1024;

/// Bytes before the parameters: the weight, how many rows the sender has computed, and since when.
const HEADER: usize = 24;

/// Weights of equal sums differ by rounding.
const ROUNDING: f64 = 1e-9;

pub struct GoSgd {
    state: State,
    /// 0 on a new worker.
    weight: f64,
    /// The sum of all weights, as far as this worker knows.
    sum: f64,
    /// Whether weight may have been lost since the workers met.
    has_changed: bool,
    /// The members that this worker has asked and that are not ready yet, and those that have asked this worker.
    asked: BTreeSet<usize>,
    asking: BTreeSet<usize>,
    gradient: Vec<f32>,
    plan: BucketPlan,
}

/// `(w_j, a_j)` of the worker `j`.
struct Received {
    member: usize,
    rows: RowsComputed,
    weight: f64,
    parameters: Vec<f32>,
}

impl GoSgd {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> GoSgd {
        let state = State::of_own_parameters(parameters);
        let state = state.with_columns(optimizer.slot_names(), Spread::PerMember);
        GoSgd {
            state,
            weight: 0.0,
            sum: 0.0,
            has_changed: false,
            asked: BTreeSet::new(),
            asking: BTreeSet::new(),
            gradient: vec![0.0; parameters],
            plan: BucketPlan::default(),
        }
    }

    /// Merges every message that has arrived.
    fn receive_all(&mut self, cx: &mut Context<'_>) -> Result<()> {
        while let Some(Received { member, rows, weight, parameters }) = self.receive(cx)? {
            let share = (weight / (self.weight + weight)) as f32;
            for (own, theirs) in self.state.parameters_mut().iter_mut().zip(&parameters) {
                *own += share * (theirs - *own);
            }
            self.weight += weight;
            #[cfg(test)]
            recorded::record(cx.rank.member_id(), || recorded::Recorded::Received(member, weight));
            cx.local_rows.iter_mut().for_each(|local| local.note_received(member, rows));
        }
        Ok(())
    }

    /// The next message that has arrived.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<Option<Received>> {
        let Some(message) = cx.rank.world().try_receive_any(PARAMETERS)? else { return Ok(None) };
        let member = message.member;
        let invalid = |cause: String| {
            let culprit = Culprit { rank: member, cause: cause.clone(), ..Culprit::default() };
            Error::new(Kind::RankFailed, format!("rank {member} {cause}")).blame(culprit)
        };
        let (header, values) = match message.bytes.split_first_chunk::<HEADER>() {
            Some(parts) if parts.1.len() == 4 * self.state.len() => parts,
            _ => return Err(invalid(format!("sent a message of {} bytes", message.bytes.len()))),
        };
        let [weight, count, since] = [0, 8, 16].map(|at| std::array::from_fn(|index| header[at + index]));
        let weight = f64::from_le_bytes(weight);
        let rows = RowsComputed { count: u64::from_le_bytes(count), since: u64::from_le_bytes(since) };
        let parameters: Vec<f32> =
            values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if !(weight > 0.0 && weight <= 1.0) || parameters.iter().any(|value| !value.is_finite()) {
            return Err(invalid(format!("sent parameters that are not finite, or the weight {weight}")));
        }
        Ok(Some(Received { member, rows, weight, parameters }))
    }

    /// Asks a worker for its readiness. If it was asked before, the message that it gets then is that of this draw, too.
    fn ask(&mut self, cx: &mut Context<'_>, receiver: usize) {
        let member = cx.rank.member_id_at(receiver);
        if self.asked.contains(&member) {
            return cx.rank.count_combined_message();
        }
        match cx.rank.world().send(receiver, REQUEST, Vec::new()) {
            Ok(SendOutcome::Queued) => drop(self.asked.insert(member)),
            Ok(SendOutcome::Full) => cx.rank.count_skipped_message(),
            // The next operation fails, too.
            Err(_) => {}
        }
    }

    /// Answers all workers that have asked.
    fn answer(&mut self, cx: &mut Context<'_>) -> Result<()> {
        while let Some(request) = cx.rank.world().try_receive_any(REQUEST)? {
            self.asking.insert(request.member);
        }
        for (rank, member) in cx.rank.member_ids().into_iter().enumerate() {
            if self.asking.contains(&member)
                && cx.rank.world().send(rank, READY, Vec::new())? == SendOutcome::Queued
            {
                self.asking.remove(&member);
            }
        }
        Ok(())
    }

    /// Sends the parameters after so many rows to the workers that are ready. The update before counts in any case: if this
    /// fails, so does the next operation.
    fn send_to_ready(&mut self, cx: &mut Context<'_>, rows: RowsComputed) {
        while let Ok(Some(answer)) = cx.rank.world().try_receive_any(READY) {
            if let (Some(rank), true) = (answer.from, self.asked.remove(&answer.member)) {
                self.send(cx, rank, rows);
            }
        }
    }

    /// Sends `w_i`, the parameters after so many rows, with half of the weight.
    fn send(&mut self, cx: &mut Context<'_>, to: usize, rows: RowsComputed) {
        let half = self.weight / 2.0;
        let mut message = Vec::with_capacity(HEADER + 4 * self.state.len());
        message.extend_from_slice(&half.to_le_bytes());
        message.extend_from_slice(&rows.count.to_le_bytes());
        message.extend_from_slice(&rows.since.to_le_bytes());
        self.state.parameters().iter().for_each(|value| message.extend_from_slice(&value.to_le_bytes()));
        if let Ok(SendOutcome::Queued) = cx.rank.world().send(to, PARAMETERS, message) {
            #[cfg(test)]
            recorded::record(cx.rank.member_id(), || {
                recorded::Recorded::Sent(cx.rank.member_id_at(to), half)
            });
            self.weight = half;
        }
    }

    /// All workers have met: what their weights add up to, and what was lost.
    fn check_sum(&mut self, cx: &Context<'_>, sum: f64) -> Result<()> {
        let lost = self.sum - sum;
        if lost.abs() > ROUNDING && (lost < 0.0 || !self.has_changed) {
            let before = self.sum;
            return Err(Error::internal(format!(
                "the weights of all workers add up to {sum}, and without a loss to {before}"
            )));
        }
        if lost > ROUNDING && cx.rank.index() == 0 {
            let message = format!(
                "workers that are gone took {lost:.6} of the weights; those of the others add up to {sum:.6}"
            );
            cx.rank.emit(Event::Notice { level: Level::Info, message });
        }
        (self.sum, self.has_changed) = (sum, false);
        Ok(())
    }
}

/// With the job's probability another worker, drawn at random: the same on every repeat.
pub(super) fn draw_receiver(cx: &Context<'_>, rows: RowsComputed) -> Option<usize> {
    let (rank, workers) = (cx.rank.index(), cx.rank.size());
    let mut random = cx.rank.random("gossip", &[cx.rank.member_id() as u64, rows.since, rows.count]);
    let sends = f64::from(random.uniform()) < cx.job.gossip.probability;
    // All others are equally likely: a distance of 1 to n - 1 around the circle.
    (sends && workers > 1).then(|| (rank + 1 + random.below(workers as u64 - 1) as usize) % workers)
}

/// The weights of all workers, and their sum, after a change. A worker without a weight is new and gets half of that of
/// another one; the others give in turn.
fn share_weights(mut weights: Vec<f64>, sums: &[f64]) -> (Vec<f64>, f64) {
    let givers: Vec<usize> = (0..weights.len()).filter(|rank| weights[*rank] > 0.0).collect();
    if givers.is_empty() {
        let equal = 1.0 / weights.len() as f64;
        return (vec![equal; weights.len()], 1.0);
    }
    let new: Vec<usize> = (0..weights.len()).filter(|rank| !givers.contains(rank)).collect();
    for (number, new) in new.into_iter().enumerate() {
        let giver = givers[number % givers.len()];
        weights[giver] /= 2.0;
        weights[new] = weights[giver];
    }
    // Those that were interrupted at a meeting do not know what was lost before.
    let sum = givers.iter().map(|rank| sums[*rank]).fold(f64::MAX, f64::min);
    (weights, sum)
}

/// A few numbers of every worker.
fn gather<const N: usize>(cx: &mut Context<'_>, name: &str, mine: [f64; N]) -> Result<Vec<[f64; N]>> {
    let bytes: Vec<u8> = mine.iter().flat_map(|value| value.to_le_bytes()).collect();
    let all = cx.rank.world().all_gather(name, &bytes)?;
    let numbers = |bytes: &Vec<u8>| {
        let chunks: &[[u8; 8]; N] = bytes.as_chunks().0.try_into().ok()?;
        Some(chunks.map(f64::from_le_bytes))
    };
    let all: Option<Vec<[f64; N]>> = all.iter().map(numbers).collect();
    all.ok_or_else(|| Error::internal(format!("{name} of other lengths")))
}

impl Strategy for GoSgd {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        self.receive_all(cx)?;
        self.answer(cx)?;
        let computed = cx.compute_own_gradient(self.state.parameters(), &mut self.gradient)?;
        cx.update(cx.own_moment(), &mut self.state, &self.gradient)?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || recorded::Recorded::Updated(cx.compute.consumed().to_vec()));
        let rows = cx.local_rows.as_ref().map(LocalRows::own_rows).unwrap_or_default();
        let rows = RowsComputed { count: rows.count + computed.rows as u64, ..rows };
        self.send_to_ready(cx, rows);
        if let Some(receiver) = draw_receiver(cx, rows) {
            self.ask(cx, receiver);
        }
        Ok(StepSummary::alone(&cx.report(computed.loss, computed.took, 1)))
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        cx.rank.world().flush_messages()?;
        cx.rank.world().barrier("messages")?;
        self.receive_all(cx)?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || {
            recorded::Recorded::Met(self.weight, self.state.parameters().to_vec())
        });
        let sum = gather(cx, "weights", [self.weight])?.iter().map(|[weight]| weight).sum();
        self.check_sum(cx, sum)?;
        let weight = (self.weight / sum) as f32;
        let mut mean: Vec<f32> = self.state.parameters().iter().map(|value| weight * value).collect();
        cx.rank.world().all_reduce("parameters", &mut mean)?;
        *self.state.published_mut() = mean;
        Ok(())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        let all = gather(cx, "weights", [self.weight, self.sum])?;
        let (weights, sums): (Vec<f64>, Vec<f64>) =
            all.into_iter().map(|[weight, sum]| (weight, sum)).unzip();
        let (weights, sum) = share_weights(weights, &sums);
        self.has_changed = true;
        // What was sent to workers that are lost is lost with them. An answer may be lost before it was sent: all are asked
        // anew, and an answer to nothing has no effect.
        cx.rank.take_undelivered();
        (self.asked, self.asking) = Default::default();
        (self.weight, self.sum) = (weights[cx.rank.index()], sum);
        self.state.publish_own();
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || {
            recorded::Recorded::Began(self.weight, self.state.parameters().to_vec())
        });
        let hosts = cx.rank.world().host_numbers().to_vec();
        let plan = BucketPlan::whole(cx.job, cx.compute.model.layout(), &hosts);
        self.plan = plan.adopt(cx, self.state.len())?;
        Ok(())
    }

    fn message_window(&self, _: &JobSpec) -> Option<usize> {
        Some(MAX_UNMERGED * (HEADER + 4 * self.state.len()) + SIGNALS)
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
