//! Ranks that the others wait for: reported at intervals, and removed in the end.

use super::Coordinator;
use crate::membership_policy::MembershipActions;
use crate::rendezvous::message::{ControlResponse, send};
use crate::rendezvous::{REMINDER, join_validation};
use std::time::Duration;

/// When it is reported that more workers are wanted.
const WANTED_AFTER: Duration = Duration::from_secs(1);

/// Seconds between two reports of a rank that prepares; the first comes earlier.
const PREPARING_INTERVAL: f64 = 30.0;

impl Coordinator {
    /// Reports a rank that prepares once the others have waited long for it.
    pub(super) fn report_preparing(&mut self) {
        match self.policy.monitor.awaited() {
            Some((rank, heartbeat, waited)) if waited >= self.next_preparing_report => {
                self.next_preparing_report = waited + PREPARING_INTERVAL;
                let name = self.policy.diagnosis.name(rank);
                (self.callbacks.warn)(format!(
                    "waiting for {name}: {} for {:.0} s",
                    heartbeat.name, heartbeat.since
                ));
            }
            Some(_) => {}
            None => self.next_preparing_report = REMINDER.as_secs_f64(),
        }
    }

    /// While a group is being formed, reports missing members at intervals, and removes them after the deadline.
    pub(super) fn check_missing(&mut self, now: Duration) {
        let Some(since) = self.policy.membership.forming_since() else { return };
        let waited = now.saturating_sub(since);
        let missing = self.policy.membership.missing();
        let absent = self.policy.absent(|id| self.connected.contains_key(&id), now);
        if !absent.is_empty() {
            if self.policy.membership.generation() > 0 {
                let commands = self.policy.remove_absent(&absent, now);
                return self.execute(commands);
            }
            let error = {
                let (listener, refusals) = (self.listener.as_ref(), &self.refusals);
                let deadline = self.config.membership.limits.timeout;
                let unauthenticated = &self.unauthenticated;
                join_validation::rendezvous_timeout(listener, &absent, refusals, unauthenticated, deadline)
            };
            return self.abort(error);
        }
        // All members are connected and too few: no other is starting, which the user should know soon.
        let head_start = if missing.is_empty() { REMINDER - WANTED_AFTER } else { Duration::ZERO };
        if waited + head_start >= self.next_report {
            self.next_report += REMINDER;
            self.report_missing(&missing, waited.as_secs());
        }
    }

    fn report_missing(&mut self, missing: &[usize], seconds: u64) {
        let connected = self.connected.len();
        let at = join_validation::listen_address(self.listener.as_ref());
        (self.callbacks.warn)(if missing.is_empty() {
            let wanted = self.policy.membership.wanted();
            join_validation::replacement_notice(wanted, seconds, &at, &self.policy.lost)
        } else {
            join_validation::missing_notice(missing, seconds, connected, self.config.expected.len(), &at)
        });
        for peer in self.connected.values_mut().filter(|peer| !peer.has_roster) {
            let _ = send(&mut peer.stream, &ControlResponse::Waiting { missing: missing.to_vec(), seconds });
        }
    }
}
