//! Members that are not connected to the coordinator: at the rendezvous, and after another rank took its role over.

use super::MembershipPolicy;
use crate::membership::MembershipCommand;
use std::time::Duration;
use thalweg_core::Culprit;

/// The least time for which a coordinator that took the role over waits for the members to connect.
const MIN_RECONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl MembershipPolicy {
    /// Members that have had their time to connect and have not. Before the first group they end the job, as nothing is
    /// lost with it; later the others go on [without them](MembershipPolicy::remove_absent).
    pub fn absent(&self, is_connected: impl Fn(usize) -> bool, now: Duration) -> Vec<usize> {
        let Some(waited) = self.waited(now) else { return Vec::new() };
        let timeout = match self.membership.generation() {
            0 => self.config.limits.timeout,
            _ => self.monitor.deadline().max(MIN_RECONNECT_TIMEOUT),
        };
        let missing = if waited >= timeout { self.membership.missing() } else { Vec::new() };
        missing.into_iter().filter(|id| !is_connected(*id)).collect()
    }

    /// Removes absent members, each with its process. One of them may be the rank with the coordinator's role, whose
    /// program hangs while its coordinator runs: the end of its process gives the role to another rank.
    pub fn remove_absent(&self, absent: &[usize], now: Duration) -> Vec<MembershipCommand> {
        let waited = self.waited(now).unwrap_or_default().as_secs_f64();
        let (detect_s, noticed) = (Some(waited), self.wall_clock(now));
        let cause = format!("did not connect again within {waited:.1} s");
        let culprit = |rank| Culprit { rank, cause: cause.clone(), detect_s, noticed, ..Culprit::default() };
        absent.iter().map(|id| MembershipCommand::Remove(*id, Box::new(culprit(*id)))).collect()
    }

    /// Since the group began to be formed.
    fn waited(&self, now: Duration) -> Option<Duration> {
        self.membership.forming_since().map(|since| now.saturating_sub(since))
    }
}
