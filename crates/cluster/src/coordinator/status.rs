//! How the job goes, for whoever asks: who is here, at which step, and when something moved last.

use super::Chair;
use crate::rendezvous::message::Status;
use std::time::Duration;
use thalweg_core::event::Phase;

/// What a group may take beyond its deadlines to get going again after a loss.
const RECOVERY: Duration = Duration::from_secs(3);

/// When anything moved last.
#[derive(Default)]
pub(super) struct Progress {
    seen: (u64, u64),
    since: Duration,
}

impl Progress {
    /// Takes in the furthest step and all that was counted up to now.
    fn follow(&mut self, now: Duration, seen: (u64, u64)) {
        if seen != self.seen {
            (self.seen, self.since) = (seen, now);
        }
    }

    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }
}

impl Chair {
    /// Looks whether anything has moved.
    pub(super) fn note_progress(&mut self) {
        let own = self.voice.beacon.pulse();
        let others = self.guests.keys().filter_map(|number| self.judgement.watch.last(*number));
        let seen = others.fold((own.step, own.progress), |(step, counted), pulse| {
            (step.max(pulse.step), counted.wrapping_add(pulse.progress))
        });
        let now = self.now();
        self.progress.follow(now, seen);
    }

    fn prepares(&self, number: usize) -> bool {
        self.judgement.watch.last(number).is_some_and(|pulse| pulse.phase == Phase::Preparing)
    }

    pub(super) fn status(&self) -> Status {
        let (now, own) = (self.now(), self.voice.beacon.pulse());
        let membership = &self.judgement.membership;
        let rules = &self.charge.rules;
        let forming = !membership.is_working();
        let deadline = match own.phase {
            _ if membership.generation() == 0 => rules.limits.patience,
            Phase::Starting | Phase::Preparing => rules.prepare_deadline,
            // Rank 0 may wait for one that prepares.
            _ if self.guests.keys().any(|number| self.prepares(*number)) => rules.prepare_deadline,
            _ => rules.step_deadline * 2 + RECOVERY,
        };
        Status {
            generation: membership.generation(),
            joined: self.guests.len(),
            expected: self.guests.len() + if forming { membership.missing().len() } else { 0 },
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
    fn only_what_moves_is_progress() {
        let mut progress = Progress::default();
        let at = Duration::from_secs;
        progress.follow(at(1), (0, 5));
        progress.follow(at(9), (0, 5));
        assert_eq!(progress.age(at(9)), at(8));
        progress.follow(at(10), (0, 6));
        assert_eq!(progress.age(at(12)), at(2));
        progress.follow(at(13), (1, 6));
        assert_eq!(progress.age(at(13)), at(0));
    }
}
