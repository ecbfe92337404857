//! The event stream of a job. Progress display, logs, metrics and the final report are views of it.
//!
//! Serde names are part of the format of `events.jsonl`: a renamed variant or field keeps its old name there.

use crate::error::{Culprit, Error};
use crate::model::Tally;
use crate::report::{Audit, BucketReport, RankReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Seconds since 1970.
    pub time: f64,
    /// The rank that emitted the event; None for the launcher.
    pub rank: Option<usize>,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Info,
    /// Something is wrong, but the job continues.
    Warning,
}

/// The current activity of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// In rendezvous.
    #[default]
    Starting,
    /// Reading or writing files.
    Preparing,
    Computing,
    /// In a collective or point-to-point operation.
    Exchanging,
    /// Finished, leaving the group.
    Leaving,
}

/// The periodic status of a rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The current step, counted from 0 over the whole job.
    pub step: u64,
    pub phase: Phase,
    /// Number of the current or the last operation.
    pub operation: u64,
    /// Name of the current activity: `all-reduce of gradients`.
    pub name: String,
    /// Seconds since that activity began.
    pub since: f64,
    /// Monotonic count of work done: bytes moved, operators computed, rows read. Constant while the rank waits, though
    /// heartbeats go on.
    #[serde(default)]
    pub progress: u64,
    /// Polls made while waiting for other ranks. Constant in a rank that is suspended, for example by a debugger.
    #[serde(default, rename = "looks")]
    pub polls: u64,
    /// In an operation with others that has lasted for a while, the ranks it waits for; `None` if the rank cannot tell.
    #[serde(default)]
    pub waits_for: Option<WaitsFor>,
}

/// The ranks that another rank waits for, by member id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// It goes on when all of them have done their part.
    All(Vec<usize>),
    /// It goes on when any of them has done its part.
    Any(Vec<usize>),
}

impl WaitsFor {
    pub fn ranks(&self) -> &[usize] {
        match self {
            WaitsFor::All(ranks) | WaitsFor::Any(ranks) => ranks,
        }
    }
}

/// Metrics over a set of rows, by name (`loss`, `accuracy`, `rmse`, `mae`).
pub type Metrics = BTreeMap<String, f64>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// The launcher starts the ranks.
    Launched {
        /// Name of the run folder.
        name: String,
        workers: usize,
        /// Name of the preset.
        strategy: String,
    },
    /// Rank 0 listens for other ranks.
    Listening {
        address: String,
    },
    /// Rendezvous is complete.
    Joined {
        /// Host name by rank.
        hosts: Vec<String>,
        generation: u32,
    },
    /// A new generation begins: with other members, or with the same members over new connections.
    Regrouped {
        generation: u32,
        /// The step from which training continues.
        step: u64,
        /// Member ids.
        members: Vec<usize>,
        /// Lost members and the causes.
        lost: Vec<Culprit>,
        joined: Vec<usize>,
        /// Members that left after announcing it.
        left: Vec<usize>,
        /// Seconds without training.
        recover_s: f64,
        /// Steps that are repeated.
        steps_redone: u64,
    },
    /// Joined ranks have received the state of the job while the others trained.
    CaughtUp {
        ranks: Vec<usize>,
        /// The first step in which they compute rows.
        step: u64,
        /// Steps in which they took part without rows.
        steps: u64,
        /// Size of the state.
        bytes: u64,
        /// Seconds since admission.
        took_s: f64,
    },
    /// The emitting rank was the coordinator and leaves; its launcher appoints another.
    Resigned {
        /// Members that leave at this step boundary.
        left: Vec<usize>,
    },
    /// The emitting rank is about to inject a fault into itself, asked for by the job or by `thalweg chaos`.
    #[serde(rename = "struck")]
    FaultInjected {
        step: u64,
        /// The name of the fault kind in the job.
        kind: String,
    },
    /// Some ranks wait for others; repeated every second.
    Waiting {
        /// The late ranks.
        ranks: Vec<usize>,
        /// The operation in which the others wait: `all-reduce of gradients`.
        operation: String,
        step: u64,
        waited_s: f64,
    },
    /// The wait reported last is over.
    #[serde(rename = "going_on")]
    WaitEnded {
        ranks: Vec<usize>,
        /// Seconds of waiting, as reported last.
        waited_s: f64,
    },
    Notice {
        level: Level,
        message: String,
    },
    /// Training begins.
    Started {
        rows: u64,
        validation_rows: u64,
        /// Numbers per row.
        width: usize,
        /// Characters per row of a text; 0 for other data.
        #[serde(default)]
        window: usize,
        /// Class names; empty for regression.
        classes: Vec<String>,
        parameters: usize,
        /// The layers in one line.
        model: String,
        epochs: u64,
        steps_per_epoch: u64,
        /// The step from which training continues; 0 unless resumed.
        first_step: u64,
        /// The all-reduce algorithm.
        algorithm: String,
        /// The gradient buckets, in the order in which they are sent.
        #[serde(default)]
        buckets: Vec<BucketReport>,
    },
    /// Progress over the steps since the last such event.
    Step {
        epoch: u64,
        /// The last finished step, counted from 0 over the whole job.
        step: u64,
        steps_per_epoch: u64,
        /// Mean training loss of these rows.
        loss: f64,
        /// Rows per second over all ranks.
        samples_per_s: f64,
        /// The rank with the longest recent computation time.
        slowest: usize,
        /// Its milliseconds of computation per step.
        slowest_ms: f64,
        /// The same for the median rank.
        median_ms: f64,
        /// The same for the fastest rank.
        fastest_ms: f64,
    },
    /// An epoch is done and validated.
    Epoch {
        epoch: u64,
        /// Steps done since the beginning of the job.
        step: u64,
        /// Mean training loss.
        loss: f64,
        validation: Metrics,
        audit: Audit,
        /// With models of their own, how far the workers are apart: the root mean square, over the workers, of the distance
        /// between their parameters and those published.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        consensus: Option<f64>,
        /// With models of their own, or of an ensemble: the validation of each worker's model or member, by rank.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        members: Vec<Metrics>,
        /// With `strategy.merge.adaptive_every`: the local steps between two merges of the epoch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        merge_every: Option<u64>,
    },
    /// The published model was evaluated: after an epoch, every `train.evaluate_every` rows, and at the end.
    Evaluated {
        /// Steps done since the beginning of the job.
        step: u64,
        /// Rows trained on since then.
        rows: u64,
        /// Seconds of training since then, without evaluations.
        train_s: f64,
        /// On the validation rows or, without any, on the training rows.
        metrics: Metrics,
    },
    /// A stop was requested: the job stops after this step, with a checkpoint.
    Stopping {
        /// The ranks that received the request; empty if a launcher emits this for its own workers.
        ranks: Vec<usize>,
        /// Their hosts without repetition.
        hosts: Vec<String>,
    },
    /// A checkpoint is on disk.
    Checkpoint {
        step: u64,
        path: String,
        /// Whether it was requested with SIGUSR1.
        #[serde(default)]
        asked: bool,
        /// Seconds for which training was blocked: waiting for the checkpoint writer, and copying the state.
        #[serde(default)]
        pause_s: f64,
        /// Seconds from the end of the copy until it was on disk; training continues meanwhile.
        #[serde(default)]
        write_s: f64,
    },
    /// The final statistics of a rank.
    Account {
        account: RankReport,
    },
    /// The model is on disk.
    Saved {
        path: String,
    },
    /// The coordinator gives up a rank that is alive but makes no progress; its launcher kills it.
    GaveUp {
        culprit: usize,
        cause: String,
    },
    /// Not written to disk.
    #[serde(rename = "pulse")]
    Heartbeat(Heartbeat),
    /// A collective operation failed; the diagnosis of the cause follows.
    Lost {
        /// The error as seen by this rank.
        error: Error,
        #[serde(rename = "pulse")]
        heartbeat: Heartbeat,
    },
    /// The rank ends with an error.
    Failed {
        error: Error,
        #[serde(rename = "pulse")]
        heartbeat: Heartbeat,
    },
    /// The rank has finished.
    Done {
        outcome: Outcome,
        /// Metrics on the validation rows.
        #[serde(rename = "final")]
        last: Metrics,
        /// Steps done since the beginning of the job.
        steps: u64,
        /// Commit units of this run: steps, or rounds of several.
        #[serde(default)]
        units: u64,
        /// Rows trained on in this run, over all ranks.
        rows: u64,
        /// Seconds of training in this run, without start-up.
        train_s: f64,
    },
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Completed,
    TargetReached,
    /// All epochs are done without reaching the target.
    TargetMissed,
    /// Stopped on request, with a checkpoint.
    Interrupted,
    Failed,
}

impl Tally {
    /// The metrics of the task, in the units of the data.
    pub fn metrics(&self, schema: &crate::Schema) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.insert("loss".into(), self.mean_loss());
        let rows = self.rows.max(1) as f64;
        match schema.task {
            // Over all numbers of a row, in scaled units.
            _ if schema.reconstruct => {
                metrics.insert("mae".into(), self.absolute / rows);
                metrics.insert("rmse".into(), (self.squared / rows).sqrt());
            }
            crate::Task::Classification => {
                metrics.insert("accuracy".into(), self.accuracy());
            }
            crate::Task::Regression => {
                let unit = 1.0 / f64::from(schema.target.factor);
                metrics.insert("mae".into(), self.absolute / rows * unit);
                metrics.insert("rmse".into(), (self.squared / rows).sqrt() * unit);
            }
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_from_a_line_of_json() {
        let account = RankReport { rank: 1, host: "a".into(), compute_s: 0.5, ..RankReport::default() };
        let waits = Heartbeat { waits_for: Some(WaitsFor::Any(vec![2, 3])), ..Heartbeat::default() };
        let failed = Event::Failed { error: Error::data("bad row"), heartbeat: waits };
        let notice = Event::Notice { level: Level::Warning, message: "low\nmemory".into() };
        let gave_up = Event::GaveUp { culprit: 2, cause: "has been without progress".into() };
        for event in
            [Event::Account { account }, Event::Heartbeat(Heartbeat::default()), failed, notice, gave_up]
        {
            let record = Record { time: 1.5, rank: Some(1), event };
            let line = serde_json::to_string(&record).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record, "{line}");
        }
    }

    #[test]
    fn renamed_variants_and_fields_keep_their_names_in_files() {
        let heartbeat =
            serde_json::to_value(Event::Heartbeat(Heartbeat { polls: 3, ..Heartbeat::default() })).unwrap();
        assert_eq!((&heartbeat["event"], &heartbeat["looks"]), (&"pulse".into(), &3.into()));
        let failed = Event::Failed { error: Error::data("bad row"), heartbeat: Heartbeat::default() };
        assert!(serde_json::to_value(failed).unwrap()["pulse"].is_object());
        let injected = Event::FaultInjected { step: 1, kind: "kill".into() };
        assert_eq!(serde_json::to_value(injected).unwrap()["event"], "struck");
        let ended = Event::WaitEnded { ranks: vec![1], waited_s: 2.0 };
        assert_eq!(serde_json::to_value(ended).unwrap()["event"], "going_on");
    }
}
