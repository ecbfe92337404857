//! GoSGD: stochastic gradient descent with sum-weight gossip (Blot et al. 2016; Langer et al., Figure 17).
//!
//! Every worker `i` has parameters `w_i` and a weight `a_i`; the weights of all, with those in messages in flight, always
//! add up to 1. In each local step:
//!
//! ```text
//! for every message (w_j, a_j) that has arrived:
//!     w_i = a_i / (a_i + a_j) * w_i  +  a_j / (a_i + a_j) * w_j
//!     a_i = a_i + a_j
//! w_i = update(w_i, gradient of its share of the step's rows)
//! with probability p:
//!     a_i = a_i / 2
//!     send (w_i, a_i) to another worker, drawn at random
//! ```
//!
//! A worker that has sent its parameters lately weighs less, as the others have them already. At the end of an epoch, for a
//! checkpoint and after the last step the workers synchronize and publish their weighted mean; then each goes on with its
//! own parameters.

#[cfg(test)]
#[path = "gosgd_weights.rs"]
mod weights;

use crate::context::Context;
use crate::reduction::Description;
use crate::reduction::bucket_plan::BucketPlan;
use crate::state::{Spread, State};
use crate::step_report::{self, StepReport, StepSummary};
use crate::strategy::Strategy;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_cluster::{MessageTag, SendOutcome};
use thalweg_core::{Culprit, Error, Kind, Result};
use thalweg_graph::optimizer::Optimizer;

const PARAMETERS: MessageTag = MessageTag { number: 1, name: "parameters" };

/// Messages that a worker may have sent to another and that were not merged yet: more would only be outdated.
const MAX_UNMERGED: usize = 4;

/// Bytes of the weight before the parameters.
const WEIGHT: usize = 8;

pub struct GoSgd {
    state: State,
    weight: f64,
    gradient: Vec<f32>,
    /// The mean of all workers, where they synchronized last.
    mean: Vec<f32>,
    plan: BucketPlan,
}

impl GoSgd {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> GoSgd {
        let state = State::of_parameters(parameters);
        let state = state.with_columns(optimizer.slot_names(), Spread::PerMember);
        GoSgd {
            state,
            weight: 0.0,
            gradient: vec![0.0; parameters],
            mean: Vec::new(),
            plan: BucketPlan::default(),
        }
    }

    /// Merges every message that has arrived.
    fn receive_all(&mut self, cx: &mut Context<'_>) -> Result<()> {
        while let Some((parameters, weight)) = self.receive(cx)? {
            let share = (weight / (self.weight + weight)) as f32;
            for (own, theirs) in self.state.parameters_mut().iter_mut().zip(&parameters) {
                *own += share * (theirs - *own);
            }
            self.weight += weight;
        }
        Ok(())
    }

    /// The next `(w_j, a_j)` that has arrived.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<Option<(Vec<f32>, f64)>> {
        let Some(message) = cx.rank.world().try_receive_any(PARAMETERS)? else { return Ok(None) };
        let from = message.member;
        let invalid = |cause: String| {
            let culprit = Culprit { rank: from, cause: cause.clone(), ..Culprit::default() };
            Error::new(Kind::RankFailed, format!("rank {from} {cause}")).blame(culprit)
        };
        let (weight, values) = match message.bytes.split_first_chunk::<WEIGHT>() {
            Some(parts) if parts.1.len() == 4 * self.state.len() => parts,
            _ => return Err(invalid(format!("sent a message of {} bytes", message.bytes.len()))),
        };
        let weight = f64::from_le_bytes(*weight);
        let values: Vec<f32> = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if !(weight > 0.0 && weight <= 1.0) || values.iter().any(|value| !value.is_finite()) {
            return Err(invalid(format!("sent parameters that are not finite, or the weight {weight}")));
        }
        #[cfg(test)]
        weights::received(cx.rank.index(), from, weight);
        Ok(Some((values, weight)))
    }

    /// With the job's probability another worker, drawn at random: the same on every repeat.
    fn draw_receiver(&self, cx: &Context<'_>) -> Option<usize> {
        let (rank, workers) = (cx.rank.index(), cx.work.workers());
        let mut random = cx.rank.random("gossip", &[rank as u64, cx.work.next()]);
        let sends = f64::from(random.uniform()) < cx.job.gossip.probability;
        // All others are equally likely: a distance of 1 to n - 1 around the circle.
        (sends && workers > 1).then(|| (rank + 1 + random.below(workers as u64 - 1) as usize) % workers)
    }

    /// Sends `w_i` with half of the weight, unless the receiver has too many messages pending.
    fn send(&mut self, cx: &mut Context<'_>, to: usize) -> Result<()> {
        let half = self.weight / 2.0;
        let mut message = Vec::with_capacity(WEIGHT + 4 * self.state.len());
        message.extend_from_slice(&half.to_le_bytes());
        self.state.parameters().iter().for_each(|value| message.extend_from_slice(&value.to_le_bytes()));
        if cx.rank.world().send(to, PARAMETERS, message)? == SendOutcome::Queued {
            #[cfg(test)]
            weights::sent(cx.rank.index(), to, half);
            self.weight = half;
        }
        Ok(())
    }

    /// Whether the workers synchronize after the next step.
    fn synchronizes(&self, cx: &Context<'_>) -> bool {
        let (next, every) = (cx.work.next() + 1, cx.job.fault.checkpoint_every);
        next.is_multiple_of(cx.work.steps_per_epoch())
            || every > 0 && next.is_multiple_of(every)
            || next >= cx.work.end()
    }

    /// Waits for all messages in flight and publishes the weighted mean of all workers.
    fn synchronize(&mut self, cx: &mut Context<'_>, report: &StepReport) -> Result<StepSummary> {
        // Others may be many steps behind: the step deadline does not apply.
        cx.rank.begin_preparation("synchronization of all workers");
        cx.rank.world().flush_messages()?;
        cx.rank.world().barrier("messages")?;
        self.receive_all(cx)?;
        #[cfg(test)]
        weights::synchronized(cx.rank.index(), self.weight);
        let weights = cx.rank.world().all_gather("weights", &self.weight.to_le_bytes())?;
        let total: f64 =
            weights.iter().filter_map(|bytes| Some(f64::from_le_bytes(*bytes.first_chunk()?))).sum();
        if (total - 1.0).abs() > 1e-9 {
            return Err(Error::internal(format!("the weights of all workers add up to {total}, not to 1")));
        }
        let weight = self.weight as f32;
        self.mean.clear();
        self.mean.extend(self.state.parameters().iter().map(|value| weight * value));
        cx.all_reduce_with_report("parameters", &mut self.mean, report)
    }
}

impl Strategy for GoSgd {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        self.receive_all(cx)?;
        cx.compute.clear_consumed();
        let step = cx.work.next();
        let computed = cx.compute_local_gradient(step, self.state.parameters(), &mut self.gradient)?;
        cx.update(cx.moment(step), &mut self.state, &self.gradient)?;
        if let Some(receiver) = self.draw_receiver(cx) {
            self.send(cx, receiver)?;
        }
        let report = cx.report(computed.loss, computed.took, 1);
        if self.synchronizes(cx) {
            return self.synchronize(cx, &report);
        }
        Ok(StepSummary::alone(&report, cx.work.workers(), cx.rank.index(), cx.rank.size()))
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        self.weight = 1.0 / cx.work.workers() as f64;
        self.mean = self.state.parameters().to_vec();
        let hosts = cx.rank.world().host_numbers().to_vec();
        let length = self.state.len() + step_report::len(cx.rank.size());
        self.plan = BucketPlan::whole(cx.job, cx.compute.model.layout(), &hosts).adopt(cx, length)?;
        cx.rank.open_messages(MAX_UNMERGED * (WEIGHT + 4 * self.state.len()));
        Ok(())
    }

    fn published(&self) -> &[f32] {
        &self.mean
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn describe(&self, cx: &Context<'_>) -> Description {
        let length = self.state.len() + step_report::len(cx.rank.size());
        self.plan.describe(cx.compute.model.layout(), length)
    }
}
