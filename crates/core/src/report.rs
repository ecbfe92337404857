//! What a job leaves behind: `report.json`.

use crate::error::Error;
use crate::event::{Metrics, Outcome};
use crate::times::Spread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the report's format.
pub const FORMAT: u32 = 1;

/// How often the training rows of an epoch were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Counted from 0.
    pub epoch: u64,
    /// Training rows there are (of the steps that were run, if the epoch was cut short).
    pub expected: u64,
    /// Rows seen at least once.
    pub once: u64,
    /// Rows never seen.
    pub missed: u64,
    /// Times a row was seen again.
    pub repeated: u64,
    /// Rows left out by a strategy's own rule.
    pub dropped: u64,
}

/// One rank's account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// Its number.
    pub rank: usize,
    /// Its machine.
    pub host: String,
    /// Seconds of computation.
    pub compute_s: f64,
    /// Seconds of exchange that were not hidden behind computation.
    pub exchange_s: f64,
    /// Seconds of exchange that were hidden behind computation.
    pub hidden_s: f64,
    /// Seconds of waiting for slower ranks.
    pub wait_s: f64,
    /// What carried its bytes: `shm`, `tcp`, `shm+tcp` (shared memory inside its host, the network between); `none` for
    /// one worker.
    #[serde(default)]
    pub transport: String,
    /// Training rows it computed.
    #[serde(default)]
    pub rows: u64,
    /// Milliseconds that its computation of a step took.
    #[serde(default)]
    pub step_ms: Spread,
    /// Bytes sent to other ranks.
    pub bytes_sent: u64,
    /// Bytes received from other ranks.
    pub bytes_received: u64,
    /// The step before which it was lost or left, if it did: then only its rows and seconds of computation are known.
    #[serde(default)]
    pub gone_at: Option<u64>,
}

/// A piece of the gradient that travels on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Its first tensor.
    pub first: String,
    /// Its last tensor.
    pub last: String,
    /// Its bytes; those of the last one include what rides along.
    pub bytes: u64,
    /// The schedule by which it is summed.
    pub algorithm: String,
}

/// A failure and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The step at which it happened.
    pub step: Option<u64>,
    /// The rank it is blamed on.
    pub rank: Option<usize>,
    /// The operation it happened in, or in which the others waited.
    pub operation: Option<String>,
    /// Why.
    pub cause: String,
    /// Seconds until it was noticed.
    pub detect_s: Option<f64>,
    /// Seconds until training went on.
    pub recover_s: Option<f64>,
    /// Steps that were done again.
    pub steps_redone: u64,
}

/// The members of the group from a step on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct World {
    /// From this step on.
    pub step: u64,
    /// So many workers.
    pub workers: usize,
}

/// The report of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of this format.
    pub format: u32,
    /// The run's name.
    pub name: String,
    /// The version of Thalweg.
    pub version: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The resolved job, key by key.
    pub job: BTreeMap<String, serde_json::Value>,
    /// The dials of the strategy, key by key.
    pub dials: BTreeMap<String, serde_json::Value>,
    /// The schedule the exchange used.
    pub algorithm: String,
    /// The pieces in which gradients travelled as messages, in the order in which they left; empty if they did not.
    #[serde(default)]
    pub buckets: Vec<Bucket>,
    /// The group over time.
    pub world: Vec<World>,
    /// Metrics on the validation rows at the end; on the training rows if there are no others.
    #[serde(rename = "final")]
    pub last: Metrics,
    /// Metrics after each epoch.
    pub epochs: Vec<EpochReport>,
    /// Steps done since the beginning of the job.
    pub steps: u64,
    /// The step this run went on from.
    pub first_step: u64,
    /// The step of the newest checkpoint that was written, by this run or by the one it goes on from.
    #[serde(default)]
    pub checkpoint_step: Option<u64>,
    /// Seconds from start to end.
    pub wall_s: f64,
    /// Seconds of training, without start-up.
    pub train_s: f64,
    /// Training rows per second of training.
    pub samples_per_s: f64,
    /// What each rank did.
    pub ranks: Vec<RankReport>,
    /// How often each row was seen, epoch by epoch.
    pub audit: Vec<Audit>,
    /// What failed.
    pub failures: Vec<Failure>,
    /// The ranks that were asked to stop, if the job was interrupted; the others followed them.
    #[serde(default)]
    pub stopped_by: Vec<usize>,
    /// The error that ended the job.
    pub error: Option<Error>,
}

/// Metrics after an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Counted from 0.
    pub epoch: u64,
    /// Steps done.
    pub step: u64,
    /// Mean training loss.
    pub loss: f64,
    /// On the validation rows; empty if there are none.
    pub validation: Metrics,
    /// On the training rows, if there are no validation rows.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub training: Metrics,
}

impl EpochReport {
    /// The metrics, on whichever rows they were taken; empty if the epoch did not end.
    pub fn metrics(&self) -> &Metrics {
        if self.validation.is_empty() { &self.training } else { &self.validation }
    }
}
