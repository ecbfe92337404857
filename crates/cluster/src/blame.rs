//! What a rank makes of a fault: whom it blames, in which step and operation, and what to do about it.

use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::transport::{Cause, Fault};
use thalweg_core::{Culprit, Error, Kind};

/// How long a rank that lost a neighbour waits to hear why.
const REASON: Duration = Duration::from_millis(800);

impl Rank {
    /// The reason, if somebody knows it; else what this rank saw.
    pub(crate) fn explain(&self, fault: &Fault, kind: &str, name: &str) -> Error {
        let told_to_stop = fault.cause == Cause::Aborted;
        let seen = match fault.suspects.first() {
            Some(&place) if told_to_stop && self.is_elastic() => {
                // An order to stop comes with its reason, to all; without one, the rank that passed it on made it up.
                if let Some(reason) = self.await_reason(self.parts.step_deadline / 2) {
                    return reason;
                }
                let cause = Cause::Protocol("it says that it was told to stop, and it was not".into());
                self.describe(&Fault::of(place, cause), format!("{kind} of {name}"))
            }
            _ => self.describe(fault, format!("{kind} of {name}")),
        };
        if !told_to_stop || seen.culprit.is_some() {
            let source = match fault.cause {
                Cause::Reported { by } => Some(self.number_at(by)),
                _ => None,
            };
            self.parts.beacon.testify_for(&seen, source);
        }
        // Where the others go on, the coordinator has the last word, however long it takes to be sure.
        let patience = if self.is_elastic() { self.parts.step_deadline + REASON } else { REASON };
        self.parts.beacon.await_ending(self.parts.generation, patience).unwrap_or(seen)
    }

    /// Waits a little for what the coordinator says, by this rank's own clock: in virtual time it comes while this one waits.
    fn await_reason(&self, patience: Duration) -> Option<Error> {
        if !self.parts.clock.is_virtual() {
            return self.parts.beacon.await_ending(self.parts.generation, patience);
        }
        let end = self.now() + patience;
        loop {
            let ending = self.parts.beacon.ending(self.parts.generation);
            if ending.is_some() || self.now() >= end {
                return ending;
            }
            self.sleep(Duration::from_millis(1));
        }
    }

    fn describe(&self, fault: &Fault, operation: String) -> Error {
        let Some(place) = fault.peer else {
            return Error::new(Kind::RankFailed, format!("{operation} ended at step {}: {fault}", self.step));
        };
        // The fault's own words speak of places, not of ranks.
        let cause = match &fault.cause {
            Cause::Reported { by } => Cause::Reported { by: self.number_at(*by) },
            cause => cause.clone(),
        };
        let host = self.parts.hosts.name(place).cloned();
        let rank = self.number_at(place);
        let on = host.as_ref().map_or(String::new(), |host| format!(" on {host}"));
        let message = format!("rank {rank}{on} was lost at step {} in {operation}: it {cause}", self.step);
        let error = Error::new(Kind::RankFailed, message).blame(Culprit {
            rank,
            host,
            step: Some(self.step),
            operation: Some(operation),
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

/// What to do about it, where the cause alone says so; the key sets how long was waited.
fn advice(cause: &Cause, key: &str) -> Option<String> {
    match cause {
        Cause::Silent { .. } => Some(format!(
            "see what that rank does: it is elsewhere in its program, stopped or out of reach; {key} sets how long the others wait"
        )),
        Cause::Slow { .. } => Some(format!(
            "raise {key} if it is to take so long, or see what holds that rank up: its link, or other work on its machine"
        )),
        Cause::Elsewhere(_) => Some(
            "all ranks must run the same operations in the same order: look for one that only some of them come to".into(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::threads;
    use thalweg_comm::transport::sim::Network;

    const DEADLINE: Duration = Duration::from_secs(4);

    /// What rank 0 says of an all-reduce between two over a link that carries so many bytes a second, if the other comes to
    /// it or not.
    fn told(bandwidth: f64, comes: bool) -> Error {
        let network = Network { bandwidth, ..Network::ordinary(2, 1) };
        let (mut ended, _) = threads::simulate(network, &[], DEADLINE, |rank| {
            rank.begin_step(3);
            rank.barrier("the start")?;
            if rank.index() == 1 && !comes {
                rank.sleep(10 * DEADLINE);
            }
            rank.all_reduce("gradients", &mut vec![1.0f32; 4 << 20])
        });
        ended.swap_remove(0).result.unwrap_err()
    }

    #[test]
    fn a_slow_link_is_told_from_a_rank_that_never_came() {
        let slow = told(256e3, true);
        let words = "rank 1 on memory was lost at step 3 in all-reduce of gradients: it is slow: not done after 6.0 s";
        assert!(slow.message.starts_with(words), "{slow}");
        assert!(slow.hint.is_some_and(|hint| hint.contains("raise fault.step_deadline")));
        let silent = told(1e9, false);
        assert!(silent.message.contains("it never came to it"), "{silent}");
        assert!(silent.hint.is_some_and(|hint| hint.contains("see what that rank does")));
    }
}
