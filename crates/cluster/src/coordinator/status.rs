//! The status of the job, on request: connected ranks, step, and time since the last progress.

use super::Coordinator;
use crate::rendezvous::message::Status;
use std::time::Duration;
use thalweg_core::event::Phase;

/// Time beyond the deadlines that a group may take to recover from a loss.
const RECOVERY: Duration = Duration::from_secs(3);

/// When any rank made progress last.
#[derive(Default)]
pub(super) struct LastProgress {
    seen: (u64, u64),
    since: Duration,
}

impl LastProgress {
    /// `seen` is the latest step, and the sum of all progress counters.
    fn update(&mut self, now: Duration, seen: (u64, u64)) {
        if seen != self.seen {
            (self.seen, self.since) = (seen, now);
        }
    }

    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }
}

impl Coordinator {
    pub(super) fn note_progress(&mut self) {
        let own = self.callbacks.rank_status.heartbeat();
        let others = self.connected.keys().filter_map(|id| self.policy.monitor.last_heartbeat(*id));
        let seen = others.fold((own.step, own.progress), |(step, counted), heartbeat| {
            (step.max(heartbeat.step), counted.wrapping_add(heartbeat.progress))
        });
        let now = self.now();
        self.progress.update(now, seen);
    }

    fn is_preparing(&self, id: usize) -> bool {
        self.policy.monitor.last_heartbeat(id).is_some_and(|heartbeat| heartbeat.phase == Phase::Preparing)
    }

    pub(super) fn status(&self) -> Status {
        let (now, own) = (self.now(), self.callbacks.rank_status.heartbeat());
        let membership = &self.policy.membership;
        let config = &self.config.membership;
        let forming = !membership.is_working();
        let deadline = match own.phase {
            _ if membership.generation() == 0 => config.limits.timeout,
            Phase::Starting | Phase::Preparing => config.prepare_deadline,
            // Rank 0 may wait for one that prepares.
            _ if self.connected.keys().any(|id| self.is_preparing(*id)) => config.prepare_deadline,
            _ => config.step_deadline * 2 + RECOVERY,
        };
        Status {
            generation: membership.generation(),
            joined: self.connected.len(),
            expected: self.connected.len() + if forming { membership.missing().len() } else { 0 },
            step: self.progress.seen.0,
            phase: own.phase,
            doing: own.name,
            progress_s: self.progress.age(now).as_secs_f64(),
            deadline_s: deadline.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_count_as_progress() {
        let mut progress = LastProgress::default();
        let at = Duration::from_secs;
        progress.update(at(1), (0, 5));
        progress.update(at(9), (0, 5));
        assert_eq!(progress.age(at(9)), at(8));
        progress.update(at(10), (0, 6));
        assert_eq!(progress.age(at(12)), at(2));
        progress.update(at(13), (1, 6));
        assert_eq!(progress.age(at(13)), at(0));
    }
}
