//! The error of a failed operation: which rank is blamed, in which step and operation, and what to do about it.

use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::transport::{Cause, TransportError};
use thalweg_core::{Culprit, Error, Kind};

/// How long a rank that lost a peer waits for the reason.
const REASON_TIMEOUT: Duration = Duration::from_millis(800);

impl Rank {
    /// The coordinator's reason if it sends one, else this rank's own view.
    pub(crate) fn explain(&self, error: &TransportError, operation: &str) -> Error {
        let aborted = error.cause == Cause::Aborted;
        let seen = match error.suspects.first() {
            Some(&peer) if aborted && self.is_elastic() => {
                // An abort comes with its reason, to all ranks; without one, the rank that passed it on reported it falsely.
                if let Some(reason) = self.await_reason(self.parts.step_deadline / 2) {
                    return reason;
                }
                let cause = Cause::Protocol("it reported an abort that did not happen".into());
                self.describe(&TransportError::new(peer, cause), operation)
            }
            _ => self.describe(error, operation),
        };
        if !aborted || seen.culprit.is_some() {
            let source = match error.cause {
                Cause::Reported { by } => Some(self.member_id_at(by)),
                _ => None,
            };
            self.parts.rank_status.report_witness_from(&seen, source);
        }
        // In an elastic job the coordinator decides, however long that takes.
        let timeout =
            if self.is_elastic() { self.parts.step_deadline + REASON_TIMEOUT } else { REASON_TIMEOUT };
        self.parts.rank_status.await_end_reason(self.parts.generation, timeout).unwrap_or(seen)
    }

    /// Waits for the coordinator's reason by this rank's clock: in virtual time it arrives while the rank sleeps.
    fn await_reason(&self, timeout: Duration) -> Option<Error> {
        if !self.parts.clock.is_virtual() {
            return self.parts.rank_status.await_end_reason(self.parts.generation, timeout);
        }
        let end = self.now() + timeout;
        loop {
            let reason = self.parts.rank_status.end_reason(self.parts.generation);
            if reason.is_some() || self.now() >= end {
                return reason;
            }
            self.sleep(Duration::from_millis(1));
        }
    }

    fn describe(&self, error: &TransportError, operation: &str) -> Error {
        let Some(peer) = error.peer else {
            return Error::new(Kind::RankFailed, format!("{operation} ended at step {}: {error}", self.step));
        };
        // Transport errors name ranks; messages to the user name member ids.
        let cause = match &error.cause {
            Cause::Reported { by } => Cause::Reported { by: self.member_id_at(*by) },
            cause => cause.clone(),
        };
        let host = self.parts.hosts.name(peer).cloned();
        let rank = self.member_id_at(peer);
        let on = host.as_ref().map_or(String::new(), |host| format!(" on {host}"));
        let message = format!("rank {rank}{on} was lost at step {} in {operation}: it {cause}", self.step);
        let error = Error::new(Kind::RankFailed, message).blame(Culprit {
            rank,
            host,
            step: Some(self.step),
            operation: Some(operation.into()),
            cause: cause.to_string(),
            detect_s: None,
            noticed: None,
        });
        match advice(&cause, if self.training { "fault.step_deadline" } else { "fault.prepare_deadline" }) {
            Some(advice) => error.hint(advice),
            None => error,
        }
    }
}

/// The hint for causes that have one; `key` is the setting of the deadline.
fn advice(cause: &Cause, key: &str) -> Option<String> {
    match cause {
        Cause::Silent { .. } => Some(format!(
            "see what that rank does: it is elsewhere in its program, stopped or out of reach; {key} sets how long the others wait"
        )),
        Cause::Slow { .. } => Some(format!(
            "raise {key} if it is to take so long, or see what holds that rank up: its link, or other work on its machine"
        )),
        Cause::OtherOperation(_) => Some(
            "all ranks must run the same operations in the same order: look for one that only some of them enter".into(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::threads::simulated_links;
    use thalweg_comm::transport::sim::Network;

    const DEADLINE: Duration = Duration::from_secs(4);

    /// The error of rank 0 in an all-reduce of two ranks over a link with this bandwidth, if the other enters it or not.
    fn error_of_rank_0(bandwidth: f64, enters: bool) -> Error {
        let network = Network { bandwidth, ..Network::ordinary(2, 1) };
        let mut ended = simulated_links::run(network, &[], DEADLINE, |rank| {
            rank.begin_step(3);
            rank.world().barrier("the start")?;
            if rank.index() == 1 && !enters {
                rank.sleep(10 * DEADLINE);
            }
            rank.world().all_reduce("gradients", &mut vec![1.0f32; 4 << 20])
        });
        ended.swap_remove(0).unwrap_err()
    }

    #[test]
    fn a_slow_link_is_distinguished_from_a_rank_that_never_entered() {
        let slow = error_of_rank_0(256e3, true);
        let message = "rank 1 on memory was lost at step 3 in all-reduce of gradients: it is slow: not done after 6.0 s";
        assert!(slow.message.starts_with(message), "{slow}");
        assert!(slow.hint.is_some_and(|hint| hint.contains("raise fault.step_deadline")));
        let silent = error_of_rank_0(1e9, false);
        assert!(silent.message.contains("it never entered the operation"), "{silent}");
        assert!(silent.hint.is_some_and(|hint| hint.contains("see what that rank does")));
    }
}
