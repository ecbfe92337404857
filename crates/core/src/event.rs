//! The one stream of events: progress, logs, metrics and the final report are views of it.

use crate::error::{Culprit, Error};
use crate::model::Tally;
use crate::report::{Audit, Bucket, RankReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Something that happened, when and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Seconds since 1970.
    pub time: f64,
    /// The rank that says so; nothing for the launcher.
    pub rank: Option<usize>,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// How much attention a notice deserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Good to know.
    Info,
    /// Something is not as it should be; the job goes on.
    Warning,
}

/// What a rank is doing right now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Looking for the others.
    #[default]
    Starting,
    /// Reading data, writing files.
    Preparing,
    /// On its own work.
    Computing,
    /// In an operation with others.
    Exchanging,
    /// Done with everything.
    Leaving,
}

/// A rank's sign of life: what it does and since when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pulse {
    /// The step it works on, counted from 0 over the whole job.
    pub step: u64,
    /// What it is doing.
    pub phase: Phase,
    /// Number of the operation it is in, or was in last.
    pub operation: u64,
    /// Its name: `all-reduce of gradients`.
    pub name: String,
    /// Seconds since it began.
    pub since: f64,
    /// Work done so far, in units that only grow: bytes moved, operators computed, rows read. It stands still while the
    /// rank waits, whatever its heartbeat says.
    #[serde(default)]
    pub progress: u64,
    /// How often it has looked, in a wait for others, whether it can go on. It stands still in a rank that is held.
    #[serde(default)]
    pub looks: u64,
}

/// Metrics over a set of rows, by name (`loss`, `accuracy`, `rmse`, `mae`).
pub type Metrics = BTreeMap<String, f64>;

/// The things that happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// The launcher starts the ranks.
    Launched {
        /// Its name: the run folder's.
        name: String,
        /// Ranks to come.
        workers: usize,
        /// The preset.
        strategy: String,
    },
    /// Rank 0 listens for the others here.
    Listening {
        /// Address and port.
        address: String,
    },
    /// All ranks have found each other.
    Joined {
        /// Host of each rank.
        hosts: Vec<String>,
        /// Generation of the group.
        generation: u32,
    },
    /// The group goes on with other members, or with the same ones over new connections.
    Regrouped {
        /// Generation of the group.
        generation: u32,
        /// The step training goes on from.
        step: u64,
        /// The members, by their numbers.
        members: Vec<usize>,
        /// Who was lost, and how.
        lost: Vec<Culprit>,
        /// Who came.
        joined: Vec<usize>,
        /// Who left in good order.
        left: Vec<usize>,
        /// Seconds without training.
        recover_s: f64,
        /// Steps that are done again.
        steps_redone: u64,
    },
    /// Those who came have taken the job's state from the others while these trained.
    CaughtUp {
        /// Who.
        ranks: Vec<usize>,
        /// The first step in which they have rows.
        step: u64,
        /// Steps in which they took part without.
        steps: u64,
        /// Bytes of the state.
        bytes: u64,
        /// Seconds from when they were let in.
        took_s: f64,
    },
    /// The rank that says so had the coordinator's role and leaves; its launcher gives the role to another.
    Resigned {
        /// Who leaves at this boundary.
        left: Vec<usize>,
    },
    /// A fault that the job, or somebody who tries it out, asked for: this is about to happen to the rank that says so.
    Struck {
        /// The step it has begun.
        step: u64,
        /// What happens, by its name in the job.
        kind: String,
    },
    /// Some ranks have waited for others for a while; told again every second.
    Waiting {
        /// The ranks that are waited for.
        ranks: Vec<usize>,
        /// The operation the others wait in: `all-reduce of gradients`.
        operation: String,
        /// The step of that operation.
        step: u64,
        /// Seconds so far.
        waited_s: f64,
    },
    /// The wait that was told last is over.
    GoingOn {
        /// The ranks that were waited for.
        ranks: Vec<usize>,
        /// Seconds it took, as told last.
        waited_s: f64,
    },
    /// Something worth saying.
    Notice {
        /// How much attention it deserves.
        level: Level,
        /// A sentence.
        message: String,
    },
    /// Training begins.
    Started {
        /// Training rows.
        rows: u64,
        /// Validation rows.
        validation_rows: u64,
        /// Numbers per row.
        width: usize,
        /// Characters a row of a text shows; 0 for rows that are no text.
        #[serde(default)]
        window: usize,
        /// Names of the classes; empty for regression.
        classes: Vec<String>,
        /// Numbers to learn.
        parameters: usize,
        /// The layers, one line.
        model: String,
        /// Epochs asked for.
        epochs: u64,
        /// Steps of an epoch.
        steps_per_epoch: u64,
        /// The step training goes on from; 0 unless resumed.
        first_step: u64,
        /// The schedule the exchange uses.
        algorithm: String,
        /// The pieces in which the gradient travels as messages, in the order in which they leave.
        #[serde(default)]
        buckets: Vec<Bucket>,
    },
    /// Some steps are done.
    Step {
        /// Counted from 0.
        epoch: u64,
        /// The last finished step, counted from 0 over the whole job.
        step: u64,
        /// Steps of an epoch.
        steps_per_epoch: u64,
        /// Mean training loss of the rows since the last such event.
        loss: f64,
        /// Rows per second since the last such event, over all ranks.
        samples_per_s: f64,
        /// Whose computation took longest lately.
        slowest: usize,
        /// Milliseconds of computation per step of that rank.
        slowest_ms: f64,
        /// Of the rank in the middle.
        median_ms: f64,
        /// Of the fastest.
        fastest_ms: f64,
    },
    /// An epoch is done and validated.
    Epoch {
        /// Counted from 0.
        epoch: u64,
        /// Steps done since the beginning of the job.
        step: u64,
        /// Mean training loss.
        loss: f64,
        /// On the validation rows.
        validation: Metrics,
        /// How often each row was seen.
        audit: Audit,
    },
    /// Somebody wants the job to stop: it does after this step, with a checkpoint.
    Stopping {
        /// The ranks that were asked; none when a launcher says it, which asks its own.
        ranks: Vec<usize>,
        /// Their hosts, each once.
        hosts: Vec<String>,
    },
    /// A checkpoint is on disk.
    Checkpoint {
        /// Steps done.
        step: u64,
        /// The file.
        path: String,
        /// Whether it was asked for with SIGUSR1.
        #[serde(default)]
        asked: bool,
        /// Seconds for which training stood still: until the turn came, and while the state was copied.
        #[serde(default)]
        pause_s: f64,
        /// Seconds until it was on disk, from the copy on, while training went on.
        #[serde(default)]
        write_s: f64,
    },
    /// A rank's own account, at its end.
    Account {
        /// Times and bytes.
        account: RankReport,
    },
    /// The model is on disk.
    Saved {
        /// The file.
        path: String,
    },
    /// The coordinator gives up a rank that is alive but makes no progress: whoever started it ends it.
    GaveUp {
        /// The rank that is given up.
        culprit: usize,
        /// Why.
        cause: String,
    },
    /// A rank's sign of life (not written to disk).
    Pulse(Pulse),
    /// An operation with others failed; whose fault it is remains to be seen.
    Lost {
        /// What the rank saw.
        error: Error,
        /// What it was doing.
        pulse: Pulse,
    },
    /// A rank gives up.
    Failed {
        /// Why.
        error: Error,
        /// What it was doing.
        pulse: Pulse,
    },
    /// A rank is done with its work.
    Done {
        /// How it ended.
        outcome: Outcome,
        /// On the validation rows.
        #[serde(rename = "final")]
        last: Metrics,
        /// Steps done since the beginning of the job.
        steps: u64,
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
    /// All epochs are done.
    Completed,
    /// The target was reached.
    TargetReached,
    /// All epochs are done, the target was not reached.
    TargetMissed,
    /// The user stopped it; a checkpoint is there.
    Interrupted,
    /// It could not go on.
    Failed,
}

impl Tally {
    /// The metrics of a task, in the data's own units.
    pub fn metrics(&self, schema: &crate::Schema) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.insert("loss".into(), self.mean_loss());
        let rows = self.rows.max(1) as f64;
        match schema.task {
            // Over all numbers of a row, in the units the model sees.
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
    fn every_shape_of_record_survives_a_line_of_json() {
        let account = RankReport { rank: 1, host: "a".into(), compute_s: 0.5, ..RankReport::default() };
        let failed = Event::Failed { error: Error::data("bad row"), pulse: Pulse::default() };
        let notice = Event::Notice { level: Level::Warning, message: "low\nmemory".into() };
        let gave_up = Event::GaveUp { culprit: 2, cause: "has been without progress".into() };
        for event in [Event::Account { account }, Event::Pulse(Pulse::default()), failed, notice, gave_up] {
            let record = Record { time: 1.5, rank: Some(1), event };
            let line = serde_json::to_string(&record).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record, "{line}");
        }
    }
}
