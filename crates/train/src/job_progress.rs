//! What the job has done so far, besides parameters and rows: the same on every rank, and told to new members.

use crate::contributions::Contributions;
use crate::work::merge_interval::MergeInterval;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::event::{Metrics, Outcome};
use thalweg_core::{Error, JobSpec, Result};

/// The progress of the job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct JobProgress {
    /// Epochs that are closed: validated, and their rows audited.
    pub(crate) closed: u64,
    /// Meetings that workers at their own speed have held.
    pub(crate) meetings: u64,
    /// Sum of losses and rows of the current epoch.
    pub(crate) epoch_loss: (f64, u64),
    /// Of local rounds that adapt.
    pub(crate) interval: MergeInterval,
    /// Rows of the current epoch whose effect losses may have erased.
    pub(crate) at_risk: u64,
    /// With leases and several servers: rows of the current epoch whose parts of the gradient come from two computations.
    pub(crate) mixed: u64,
    /// By member id: rows that were in no model but its own when the generation began, or in the last unit, where workers have
    /// their own.
    pub(crate) unspread: BTreeMap<usize, u64>,
    /// With leases: rows of the job at the last meeting.
    pub(crate) leased_rows: u64,
    /// Rows of this run.
    pub(crate) rows: u64,
    /// Commit units of this run.
    pub(crate) units: u64,
    /// The newest validation, and the step it was made after.
    pub(crate) last: Metrics,
    pub(crate) validated_at: Option<u64>,
    /// Why the job ends before its last step, if it does.
    pub(crate) ended: Option<Outcome>,
    pub(crate) contributions: Contributions,
    pub(crate) time: TrainingTime,
    /// Training time of earlier runs, up to the checkpoint that this one continues.
    pub(crate) trained_before: Duration,
}

impl JobProgress {
    /// What was in no model but those of members that are gone may be lost.
    pub(crate) fn lose_models(&mut self, change: &MembershipChange) {
        let lost = change.lost.iter().map(|culprit| culprit.rank);
        for member in lost.chain(change.left.iter().copied()) {
            self.at_risk += self.unspread.remove(&member).unwrap_or(0);
        }
    }

    /// Whether the target is reached; None without a target.
    pub(crate) fn target_reached(&self, job: &JobSpec) -> Option<bool> {
        let target = &job.target;
        let accuracy = target.accuracy.map(|least| self.last.get("accuracy").is_some_and(|is| *is >= least));
        let loss = target.loss.map(|most| self.last.get("loss").is_some_and(|is| *is <= most));
        match (accuracy, loss) {
            (None, None) => None,
            (accuracy, loss) => Some(accuracy.unwrap_or(true) && loss.unwrap_or(true)),
        }
    }
}

/// Time spent on steps, without validation and files.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TrainingTime {
    /// Before `since`.
    before: Duration,
    /// By this rank's clock.
    since: Duration,
    /// Time since then that does not count.
    excluded: Duration,
    /// The total that was reported last.
    reported: Duration,
}

impl TrainingTime {
    pub(crate) fn starting(now: Duration) -> TrainingTime {
        TrainingTime { since: now, ..TrainingTime::default() }
    }

    pub(crate) fn exclude(&mut self, time: Duration) {
        self.excluded += time;
    }

    /// The same with a time that other ranks measured: the total does not fall below what was reported.
    pub(crate) fn exclude_of_others(&mut self, time: Duration, now: Duration) {
        self.excluded += time.min(self.total(now).saturating_sub(self.reported));
    }

    /// The total, to be reported.
    pub(crate) fn report(&mut self, now: Duration) -> Duration {
        self.reported = self.total(now);
        self.reported
    }

    pub(crate) fn total(&self, now: Duration) -> Duration {
        self.before + now.saturating_sub(self.since + self.excluded)
    }

    /// Continues by the clock of this rank from a total of another.
    pub(crate) fn continued(total: Duration, now: Duration) -> TrainingTime {
        TrainingTime { before: total, since: now, excluded: Duration::ZERO, reported: Duration::ZERO }
    }
}

/// What a member needs to know besides the state of the strategy.
#[derive(Serialize, Deserialize)]
pub(crate) struct Transferred {
    pub(crate) next: u64,
    pub(crate) end: u64,
    pub(crate) consumed: Vec<u8>,
    pub(crate) slots_start: u64,
    pub(crate) data_digest: String,
    pub(crate) model_digest: Vec<u8>,
    /// Total training time by the sender's clock.
    pub(crate) trained: Duration,
    pub(crate) progress: JobProgress,
    /// The end of the last epoch, as JSON, if the rank that was to report it may not have.
    pub(crate) unreported: Option<String>,
}

impl Transferred {
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(|error| Error::internal(error.to_string()))
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Transferred> {
        postcard::from_bytes(bytes).map_err(|error| Error::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_reported_never_falls() {
        let at = Duration::from_secs;
        let mut time = TrainingTime::starting(at(10));
        time.exclude(at(1));
        assert_eq!(time.report(at(15)), at(4));
        time.exclude_of_others(at(2), at(18));
        assert_eq!(time.report(at(18)), at(5));
        time.exclude_of_others(at(9), at(20));
        assert_eq!(time.report(at(20)), at(5));
    }
}
