//! The report of a run, `report.json`. Field names are its format.

use crate::error::Error;
use crate::event::{Metrics, Outcome};
use crate::times::Spread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const FORMAT: u32 = 1;

/// Coverage of the training rows in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    pub epoch: u64,
    /// Training rows of the epoch, or of the steps that ran if it was cut short.
    pub expected: u64,
    /// Rows computed at least once.
    pub once: u64,
    pub missed: u64,
    /// Computations of a row beyond its first.
    pub repeated: u64,
    /// Rows left out by the strategy.
    pub dropped: u64,
    /// Rows computed whose effect the loss of a rank may have erased, where workers have models of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_risk: Option<u64>,
    /// Rows whose gradient was computed twice, by a lost worker and again, so that servers applied parts of both: where several
    /// of them apply updates as they arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed: Option<u64>,
}

/// Statistics of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: usize,
    pub host: String,
    /// Seconds of computation.
    pub compute_s: f64,
    /// Seconds of exchange not overlapped with computation.
    pub exchange_s: f64,
    /// Seconds of exchange overlapped with computation.
    pub hidden_s: f64,
    /// Seconds of waiting for slower ranks.
    pub wait_s: f64,
    /// Its transport: `shm`, `tcp`, `shm+tcp` (shared memory within the host, the network between hosts); `none` for one
    /// worker.
    #[serde(default)]
    pub transport: String,
    /// Training rows it computed.
    #[serde(default)]
    pub rows: u64,
    /// Milliseconds of computation per step.
    #[serde(default)]
    pub step_ms: Spread,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Of strategies that send messages outside of collectives.
    #[serde(default)]
    pub messages: Option<MessageReport>,
    /// Of a server: how old the updates were that it applied.
    #[serde(default)]
    pub staleness: Option<Staleness>,
    /// The step before which it was lost or left; then only its rows and seconds of computation are known.
    #[serde(default)]
    pub gone_at: Option<u64>,
}

/// Messages of one rank or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessageReport {
    pub sent: u64,
    /// Messages that were not sent because the receiver had not taken enough of those before.
    pub skipped: u64,
    /// Messages to a receiver for which another one waited to be sent: that one has newer contents and stands for both.
    #[serde(default)]
    pub combined: u64,
    /// Median seconds from sending a message until the sender knew that it had arrived.
    pub median_delay_s: f64,
    /// The longest time in which a rank did not move its messages, without evaluations.
    pub longest_gap_s: f64,
}

impl MessageReport {
    /// Of all ranks together; `None` if none sent messages. The median is that of the ranks' medians, by messages sent.
    pub fn total(ranks: &[RankReport]) -> Option<MessageReport> {
        let mut all: Vec<MessageReport> = ranks.iter().filter_map(|rank| rank.messages).collect();
        all.sort_by(|one, other| one.median_delay_s.total_cmp(&other.median_delay_s));
        let sent: u64 = all.iter().map(|report| report.sent).sum();
        let mut up_to = 0;
        let median = all.iter().find(|report| {
            up_to += report.sent;
            2 * up_to >= sent
        })?;
        Some(MessageReport {
            sent,
            skipped: all.iter().map(|report| report.skipped).sum(),
            combined: all.iter().map(|report| report.combined).sum(),
            median_delay_s: median.median_delay_s,
            longest_gap_s: all.iter().map(|report| report.longest_gap_s).fold(0.0, f64::max),
        })
    }
}

/// Local steps of strategies whose workers train models of their own, and what it cost to bring these together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalReport {
    /// Local steps of all workers.
    pub steps: f64,
    /// Bytes that were sent, of all kinds, per local step.
    pub bytes_per_step: f64,
    /// Seconds of all workers together in which they computed on models of their own.
    pub exploration_s: f64,
    /// Seconds in which they exchanged or waited for each other, and did not compute.
    pub exploitation_s: f64,
}

impl LocalReport {
    /// Of all ranks, whose local steps have so many rows; `None` if they have computed no row.
    pub fn of(ranks: &[RankReport], rows_per_step: f64) -> Option<LocalReport> {
        let rows: u64 = ranks.iter().map(|rank| rank.rows).sum();
        let steps = rows as f64 / rows_per_step;
        let bytes: u64 = ranks.iter().map(|rank| rank.bytes_sent).sum();
        (steps > 0.0 && steps.is_finite()).then(|| LocalReport {
            steps,
            bytes_per_step: bytes as f64 / steps,
            exploration_s: ranks.iter().map(|rank| rank.compute_s).sum(),
            exploitation_s: ranks.iter().map(|rank| rank.exchange_s + rank.wait_s).sum(),
        })
    }
}

/// How old updates were when they were applied: the number of updates at each age.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staleness {
    /// By the updates that others made since its parameters were sent.
    pub updates: Vec<u64>,
    /// By the clocks that its worker was behind the fastest one.
    pub clocks: Vec<u64>,
}

/// Ages from this one on count as this one.
const MAX_AGE: u64 = 4095;

impl Staleness {
    /// Counts an update.
    pub fn add(&mut self, updates: u64, clocks: u64) {
        for (histogram, age) in [(&mut self.updates, updates), (&mut self.clocks, clocks)] {
            let age = age.min(MAX_AGE) as usize;
            if histogram.len() <= age {
                histogram.resize(age + 1, 0);
            }
            histogram[age] += 1;
        }
    }

    /// Of several servers together.
    pub fn merge(&mut self, other: &Staleness) {
        for (histogram, more) in [(&mut self.updates, &other.updates), (&mut self.clocks, &other.clocks)] {
            histogram.resize(histogram.len().max(more.len()), 0);
            histogram.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
    }

    /// Updates counted.
    pub fn total(&self) -> u64 {
        self.updates.iter().sum()
    }

    /// The mean age in updates.
    pub fn mean(&self) -> f64 {
        let sum: u64 = self.updates.iter().zip(0..).map(|(count, age)| count * age).sum();
        sum as f64 / self.total().max(1) as f64
    }

    /// The median age in updates, and the largest.
    pub fn median_and_max(&self) -> (u64, u64) {
        let mut up_to = 0;
        let median = self.updates.iter().position(|count| {
            up_to += count;
            2 * up_to >= self.total()
        });
        (median.unwrap_or(0) as u64, (self.updates.len() as u64).saturating_sub(1))
    }
}

/// A gradient bucket: a range of tensors that is reduced by one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketReport {
    /// Name of the first tensor.
    pub first: String,
    /// Name of the last tensor.
    pub last: String,
    /// Size; that of the last bucket includes the step summary appended to it.
    pub bytes: u64,
    /// The all-reduce algorithm.
    pub algorithm: String,
}

/// A failure and its recovery.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub step: Option<u64>,
    /// The rank that caused it.
    pub rank: Option<usize>,
    /// The operation in which it happened, or in which other ranks waited.
    pub operation: Option<String>,
    pub cause: String,
    /// Seconds until it was detected.
    pub detect_s: Option<f64>,
    /// Seconds until training continued.
    pub recover_s: Option<f64>,
    /// Steps that were repeated.
    pub steps_redone: u64,
}

/// The number of workers from a step on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorldSize {
    pub step: u64,
    pub workers: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub format: u32,
    pub name: String,
    /// Version of Thalweg.
    pub version: String,
    pub outcome: Outcome,
    /// The resolved job by key.
    pub job: BTreeMap<String, serde_json::Value>,
    /// The settings of the strategy by key.
    pub dials: BTreeMap<String, serde_json::Value>,
    /// The all-reduce algorithm.
    pub algorithm: String,
    /// Gradient buckets in the order in which they were sent; empty if gradients were not sent as messages.
    #[serde(default)]
    pub buckets: Vec<BucketReport>,
    /// The size of the group over time.
    pub world: Vec<WorldSize>,
    /// Final metrics, on the validation rows or, without any, on the training rows.
    #[serde(rename = "final")]
    pub last: Metrics,
    pub epochs: Vec<EpochReport>,
    /// The metrics over rows and time: after every epoch, every `train.evaluate_every` rows, and at the end.
    #[serde(default)]
    pub evaluations: Vec<Evaluation>,
    /// Steps done since the beginning of the job.
    pub steps: u64,
    /// Commit units of this run: steps, or rounds of several.
    #[serde(default)]
    pub units: u64,
    /// The step from which this run continued.
    pub first_step: u64,
    /// The step of the newest checkpoint, written by this run or by the one it continues.
    #[serde(default)]
    pub checkpoint_step: Option<u64>,
    /// Seconds from start to end.
    pub wall_s: f64,
    /// Seconds of training, without start-up.
    pub train_s: f64,
    /// Training rows per second of training.
    pub samples_per_s: f64,
    pub ranks: Vec<RankReport>,
    /// Messages of all ranks, of strategies that send them.
    #[serde(default)]
    pub messages: Option<MessageReport>,
    /// Of strategies whose workers have models of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalReport>,
    /// Of strategies with a server that does not wait for all workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness: Option<Staleness>,
    pub audit: Vec<Audit>,
    pub failures: Vec<Failure>,
    /// The ranks that received the stop request, if the job was interrupted.
    #[serde(default)]
    pub stopped_by: Vec<usize>,
    pub error: Option<Error>,
}

/// Metrics of the published model on the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps done.
    pub step: u64,
    /// Rows trained on since the beginning of the job.
    pub rows: u64,
    /// Seconds of training since the beginning of the job, without evaluations.
    pub train_s: f64,
    /// On the validation rows or, without any, on the training rows.
    pub metrics: Metrics,
}

/// Metrics after an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    pub epoch: u64,
    /// Steps done.
    pub step: u64,
    /// Mean training loss.
    pub loss: f64,
    /// Metrics on the validation rows; empty without any.
    pub validation: Metrics,
    /// Metrics on the training rows, if there are no validation rows.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub training: Metrics,
    /// Of workers with models of their own: the root mean square of their distances from the published model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consensus: Option<f64>,
    /// Of workers with models of their own, or of an ensemble: the same metrics of each model alone, by rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Metrics>,
    /// If they adapt, the local steps between two merges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge_every: Option<u64>,
}

impl EpochReport {
    /// Validation metrics or, without validation rows, training metrics; empty if the epoch did not end.
    pub fn metrics(&self) -> &Metrics {
        if self.validation.is_empty() { &self.training } else { &self.validation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_steps_share_what_was_sent() {
        let rank = |rows, bytes_sent| RankReport {
            rows,
            bytes_sent,
            compute_s: 2.0,
            exchange_s: 0.25,
            wait_s: 0.5,
            ..RankReport::default()
        };
        let local = LocalReport::of(&[rank(320, 4000), rank(160, 800)], 16.0);
        let expected =
            LocalReport { steps: 30.0, bytes_per_step: 160.0, exploration_s: 4.0, exploitation_s: 1.5 };
        assert_eq!(local, Some(expected));
        assert_eq!((LocalReport::of(&[], 16.0), LocalReport::of(&[rank(5, 1)], 0.0)), (None, None));
    }

    #[test]
    fn ages_of_updates_are_counted_and_summed_over_servers() {
        let mut staleness = Staleness::default();
        [0, 1, 2, 2].iter().for_each(|age| staleness.add(*age, 0));
        assert_eq!((staleness.updates.clone(), staleness.clocks.clone()), (vec![1, 1, 2], vec![4]));
        assert_eq!((staleness.total(), staleness.mean(), staleness.median_and_max()), (4, 1.25, (1, 2)));
        let mut other = Staleness::default();
        other.add(u64::MAX, 3);
        other.merge(&staleness);
        assert_eq!((other.updates.len(), other.total(), other.clocks), (4096, 5, vec![4, 0, 0, 1]));
        assert_eq!(Staleness::default().median_and_max(), (0, 0));
    }
}
