//! A coordinator whose process was suspended: the others wait for it no longer than for any rank.
//!
//! With a launcher another rank has taken the role by then. Without one no other can: ranks that saw it silent for the
//! deadline have ended, and a job that went on without them would report a false success.

use super::Coordinator;
use crate::membership_policy::MembershipActions;
use crate::rendezvous::message::Control;
use std::time::{Duration, Instant};
use thalweg_core::{Culprit, Error, Kind};

/// A gap between two ticks that is no ordinary delay.
const GAP: Duration = Duration::from_secs(1);

/// Ranks that timed out during the suspension have reported that by then.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

impl Coordinator {
    /// Restarts the timers after a large gap since the last tick: this process or machine was suspended.
    pub(super) fn detect_suspension(&mut self, gap: Duration) {
        if self.suspended.is_some_and(|(when, _)| when.elapsed() > REPORT_TIMEOUT) {
            self.suspended = None;
        }
        if gap <= GAP {
            return;
        }
        let now = self.now();
        self.policy.monitor.restart_timers(now);
        let deadline = self.config.membership.step_deadline;
        // The others time out a little before the deadline.
        if self.config.launcher.is_none() && gap >= deadline - deadline.min(Duration::from_secs(2)) / 10 {
            self.suspended = Some((Instant::now(), gap));
        }
    }

    /// Whether a rank reports that it timed out on this one during its suspension.
    pub(super) fn is_timed_out_by(&self, id: usize, message: &Control) -> bool {
        let blames =
            |error: &Error| error.culprit.as_ref().is_some_and(|culprit| culprit.rank == self.config.own);
        let timed_out = matches!(message, Control::Failed(error, _) if blames(error));
        self.suspended.is_some() && id != self.config.own && timed_out
    }

    /// The others timed out on this rank: the job ends for the remaining ones.
    pub(super) fn abort_after_suspension(&mut self) {
        let (rank, (_, gap)) = (self.config.own, self.suspended.unwrap_or((self.start, Duration::ZERO)));
        let deadline = self.config.membership.step_deadline.as_secs_f64();
        let cause = format!("was stopped for {:.1} s, and the others did not wait for it", gap.as_secs_f64());
        let message = format!("rank {rank}, the coordinator, {cause}: fault.step_deadline is {deadline} s");
        let culprit = Culprit { rank, cause, ..Culprit::default() };
        let error = Error::new(Kind::RankFailed, message).blame(culprit);
        self.abort(error.hint("`thalweg resume` goes on from the last checkpoint"));
    }
}
