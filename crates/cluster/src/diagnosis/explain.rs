//! The error that describes a piece of evidence: culprit, cause, step, and which ranks waited for it in which operation.

use super::{Diagnosis, Evidence};
use thalweg_core::event::{Heartbeat, Phase};
use thalweg_core::{Culprit, Error, Kind};

/// The hint for a rank that does not get done with its data.
const PREPARING: &str = "look at the disk or network file system it reads from; fault.prepare_deadline sets how long the others wait";

impl Diagnosis {
    /// The error for a single piece of evidence.
    pub fn explain(&self, best: &Evidence) -> Error {
        let (rank, cause, heartbeat) = match best {
            Evidence::Failed { error, heartbeat, .. } | Evidence::Lost { error, heartbeat, .. } => {
                return self.complete(error.clone(), heartbeat);
            }
            Evidence::Exited { rank, how, heartbeat } => (*rank, how.clone(), heartbeat),
            Evidence::Silent { rank, seconds, heartbeat } => (
                *rank,
                format!("has been silent for {seconds:.1} s (stopped, swapped out or unreachable)"),
                heartbeat,
            ),
            Evidence::Stuck { rank, heartbeat } => (
                *rank,
                format!(
                    "has been busy with {} for {:.1} s while the others waited",
                    heartbeat.name, heartbeat.since
                ),
                heartbeat,
            ),
            Evidence::Vanished { rank, heartbeat } => {
                (*rank, "vanished: its connection closed without a goodbye".into(), heartbeat)
            }
        };
        let location = self.locations.get(rank).cloned().flatten();
        let waiting = self.waiting_ranks(rank);
        // The culprit's last heartbeat may be outdated; the waiting ranks know the step they waited in.
        let step = waiting.as_ref().map_or(0, |(_, wait)| wait.step).max(heartbeat.step);
        let preparing = matches!(best, Evidence::Stuck { .. }) && heartbeat.phase == Phase::Preparing;
        let at = match (heartbeat.phase, step) {
            (_, 0) if preparing => String::new(),
            (Phase::Starting | Phase::Preparing, 0) => " while it was starting".to_string(),
            _ => format!(" at step {step}"),
        };
        let mut message = format!("{} {cause}{at}", self.name(rank));
        if let Some((ranks, wait)) = &waiting {
            message += &format!("; {} waited for it in {}", crate::rendezvous::ranks(ranks), wait.name);
        }
        // A rank that is silent before the rendezvous is complete did not arrive.
        let arriving = matches!(best, Evidence::Silent { .. }) && heartbeat.phase == Phase::Starting;
        let kind = if arriving { Kind::Rendezvous } else { Kind::RankFailed };
        let error = Error::new(kind, message).blame(Culprit {
            rank,
            host: location.map(|location| location.split(' ').next().unwrap_or("").to_string()),
            step: Some(step),
            operation: Some(waiting.map_or(heartbeat, |(_, wait)| wait).name.clone()),
            cause,
            detect_s: None,
            noticed: None,
        });
        if preparing { error.hint(PREPARING) } else { error }
    }

    /// Adds the operation of the accused rank to a witness's error, if it was the same operation by another name: a rank
    /// only knows its own.
    fn complete(&self, mut error: Error, heartbeat: &Heartbeat) -> Error {
        let Some(accused) = error.culprit.as_ref().map(|culprit| culprit.rank) else { return error };
        let reported = self.evidence.iter().find_map(|(_, evidence)| match evidence {
            Evidence::Failed { rank, heartbeat, .. } | Evidence::Lost { rank, heartbeat, .. }
                if *rank == accused =>
            {
                Some(heartbeat)
            }
            _ => None,
        });
        let theirs = reported.or_else(|| self.heartbeats.get(accused));
        let operation = |heartbeat: &Heartbeat| (heartbeat.phase == Phase::Exchanging, heartbeat.operation);
        if let Some(theirs) =
            theirs.filter(|theirs| operation(theirs) == operation(heartbeat) && theirs.name != heartbeat.name)
        {
            error.message += &format!("; rank {accused} was in {}", theirs.name);
        }
        error
    }

    /// The ranks that waited for the culprit, and in which operation, by their reports or last heartbeats. A heartbeat may
    /// show an operation that is over, so the latest operation is taken.
    fn waiting_ranks(&self, culprit: usize) -> Option<(Vec<usize>, &Heartbeat)> {
        let reported = self.evidence.iter().filter_map(|(_, evidence)| match evidence {
            Evidence::Failed { rank, heartbeat, .. } | Evidence::Lost { rank, heartbeat, .. } => {
                Some((*rank, heartbeat))
            }
            _ => None,
        });
        let waiting: Vec<(usize, &Heartbeat)> = reported
            .chain(self.heartbeats.iter().enumerate())
            .filter(|(rank, heartbeat)| *rank != culprit && heartbeat.phase == Phase::Exchanging)
            .collect();
        let (_, latest) = waiting.iter().max_by_key(|(_, heartbeat)| heartbeat.operation)?;
        let mut ranks: Vec<usize> = waiting.iter().map(|(rank, _)| *rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        Some((ranks, latest))
    }
}
