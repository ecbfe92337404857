//! Failure diagnosis: why a job ended, from the evidence of all ranks. Pure; used by the launcher and by the coordinator.
//!
//! Evidence in decreasing order of weight: a rank's report of its own failure, the exit status of its process, its
//! silence, a closed connection, reports of other ranks. Weak evidence waits a moment for stronger.

mod explain;
mod second_hand;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_core::event::Heartbeat;
use thalweg_core::{Culprit, Error, Kind};

/// An observation about a rank. Heartbeats are the last ones known of the rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// The rank reports that it ends, and why.
    Failed { rank: usize, error: Error, heartbeat: Heartbeat },
    /// An operation of the rank with others failed, for a reason it does not know yet.
    Lost { rank: usize, error: Error, heartbeat: Heartbeat },
    /// Its process ended without a report: `how` is `was killed by signal 9 (SIGKILL)`.
    Exited { rank: usize, how: String, heartbeat: Heartbeat },
    /// Its heartbeats are missing for too long.
    Silent { rank: usize, seconds: f64, heartbeat: Heartbeat },
    /// It sends heartbeats, but holds up the others for too long.
    Stuck { rank: usize, heartbeat: Heartbeat },
    /// Its connection closed without a goodbye.
    Vanished { rank: usize, heartbeat: Heartbeat },
}

/// How long weak evidence waits for stronger.
pub const EVIDENCE_TIMEOUT: Duration = Duration::from_millis(300);

/// How long the launcher, which gets the coordinator's diagnosis from its ranks, waits for it if it has nothing but
/// reports of lost peers.
pub const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(1);

/// Collects evidence and names the culprit.
pub struct Diagnosis {
    /// Host and process of each rank, as far as known: `box (pid 17)`.
    locations: Vec<Option<String>>,
    heartbeats: Vec<Heartbeat>,
    evidence: Vec<(Duration, Evidence)>,
    /// From which rank a witness got its report of a lost rank: (witness, accused) to source.
    sources: BTreeMap<(usize, usize), usize>,
    /// How long a report of a lost peer waits for stronger evidence.
    timeout: Duration,
}

impl Diagnosis {
    /// For `world` ranks; a report of a lost peer waits up to `timeout` for stronger evidence.
    pub fn new(world: usize, timeout: Duration) -> Diagnosis {
        let heartbeats = vec![Heartbeat::default(); world];
        let (evidence, sources) = (Vec::new(), BTreeMap::new());
        Diagnosis { locations: vec![None; world], heartbeats, evidence, sources, timeout }
    }

    /// Sets host and process of a rank: `box (pid 17)`.
    pub fn set_location(&mut self, rank: usize, location: String) {
        if rank >= self.locations.len() {
            // It joined later.
            self.locations.resize(rank + 1, None);
            self.heartbeats.resize(rank + 1, Heartbeat::default());
        }
        self.locations[rank] = Some(location);
    }

    /// `rank 3 on box (pid 17)`.
    pub fn name(&self, rank: usize) -> String {
        let location = self.locations.get(rank).and_then(Option::as_ref);
        let on = location.map_or(String::new(), |location| format!(" on {location}"));
        format!("rank {rank}{on}")
    }

    pub fn on_heartbeat(&mut self, rank: usize, heartbeat: Heartbeat) {
        if let Some(last) = self.heartbeats.get_mut(rank) {
            *last = heartbeat;
        }
    }

    pub fn add(&mut self, now: Duration, evidence: Evidence) {
        self.evidence.push((now, evidence));
    }

    /// Drops the evidence, which is about a generation that is over.
    pub fn clear(&mut self) {
        self.evidence.clear();
        self.sources.clear();
    }

    /// Whether a rank has reported its own failure, without blaming another.
    pub fn has_self_report(&self) -> bool {
        self.evidence.iter().any(|(_, evidence)| self.weight(evidence).0 == 0)
    }

    /// Whether there is more than closed connections and reports of other ranks.
    pub fn has_direct_evidence(&self) -> bool {
        self.evidence.iter().any(|(_, evidence)| self.weight(evidence).0 <= 2)
    }

    /// The error that ends the job, once the evidence is strong enough or old enough.
    pub fn conclude(&self, now: Duration) -> Option<Error> {
        let (since, _) = self.evidence.first()?;
        let best = self
            .evidence
            .iter()
            .map(|(_, evidence)| evidence)
            .min_by_key(|evidence| self.weight(evidence))?;
        let timeout = if matches!(best, Evidence::Lost { .. }) { self.timeout } else { EVIDENCE_TIMEOUT };
        let timed_out = now.saturating_sub(*since) >= timeout;
        // Even the strongest evidence waits until the others have reported what they waited in, or for the timeout.
        let monitored = matches!(best, Evidence::Silent { .. } | Evidence::Stuck { .. });
        let is_witness = |evidence: &Evidence| match evidence {
            Evidence::Failed { error, rank, .. } => blames_other(*rank, error),
            evidence => matches!(evidence, Evidence::Lost { .. }),
        };
        let witnesses = monitored || self.evidence.iter().any(|(_, evidence)| is_witness(evidence));
        let complete = witnesses || self.weight(best).0 == 0 || self.locations.len() == 1;
        (timed_out || (self.has_direct_evidence() && complete)).then(|| {
            let mut error = self.explain(best);
            if let Some(culprit) = &mut error.culprit {
                culprit.detect_s = Some(match best {
                    Evidence::Silent { seconds, .. } => *seconds,
                    Evidence::Stuck { heartbeat, .. } => heartbeat.since,
                    _ => now.saturating_sub(*since).as_secs_f64(),
                });
            }
            error
        })
    }

    /// Sort key of evidence: the smallest is the strongest, ties go to the lower rank.
    ///
    /// Of vanished ranks, the first that had not reported a loss itself: the launcher of a lost rank ends its other ranks,
    /// too. Of reports of lost peers, one whose culprit has reported no loss, because the others only waited in a chain;
    /// then one that accuses the rank with most witnesses, because a rank alone in another operation accuses another,
    /// too; then a first-hand report.
    fn weight(&self, evidence: &Evidence) -> (u8, bool, Reverse<usize>, bool, usize) {
        let none = Reverse(0);
        match evidence {
            Evidence::Failed { rank, error, .. } if !blames_other(*rank, error) => {
                (0, false, none, false, *rank)
            }
            Evidence::Exited { rank, .. } => (1, false, none, false, *rank),
            Evidence::Silent { rank, .. } | Evidence::Stuck { rank, .. } => (2, false, none, false, *rank),
            Evidence::Vanished { rank, .. } => (3, self.has_reported(*rank), none, false, 0),
            Evidence::Failed { rank, .. } => (4, false, none, false, *rank),
            Evidence::Lost { rank, error, .. } => {
                let accused = error.culprit.as_ref().map(|culprit| culprit.rank);
                let excused = accused.is_none_or(|accused| self.has_reported(accused));
                let accusations = Reverse(self.count_accusations(accused));
                (5, excused, accusations, second_hand::is_second_hand(error), *rank)
            }
        }
    }

    fn count_accusations(&self, accused: Option<usize>) -> usize {
        let accuses = |error: &Error| error.culprit.as_ref().map(|culprit| culprit.rank) == accused;
        let lost = |(_, evidence): &&(Duration, Evidence)| matches!(evidence, Evidence::Lost { error, .. } if accuses(error));
        self.evidence.iter().filter(lost).count()
    }

    /// Whether a rank has reported that it lost another, or that it failed.
    fn has_reported(&self, witness: usize) -> bool {
        self.evidence.iter().any(|(_, evidence)| {
            matches!(evidence, Evidence::Lost { rank, .. } | Evidence::Failed { rank, .. } if *rank == witness)
        })
    }
}

/// Whether a rank only reports the failure of another.
pub fn blames_other(rank: usize, error: &Error) -> bool {
    match &error.culprit {
        Some(culprit) => culprit.rank != rank,
        None => matches!(error.kind, Kind::RankFailed | Kind::Interrupted),
    }
}

/// Names a rank as the culprit of its own error; errors about other ranks stay as they are.
pub fn blame_self(mut error: Error, rank: usize, world: usize, host: &str, heartbeat: &Heartbeat) -> Error {
    if error.culprit.is_some() || error.kind == Kind::RankFailed || error.kind == Kind::Rendezvous {
        return error;
    }
    error.culprit = Some(Box::new(Culprit {
        rank,
        host: Some(host.into()),
        step: Some(heartbeat.step),
        operation: Some(heartbeat.name.clone()),
        cause: error.message.clone(),
        detect_s: None,
        noticed: None,
    }));
    if world > 1 {
        error.message = format!("rank {rank}: {}", error.message);
    }
    error
}
