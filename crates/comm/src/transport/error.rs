//! The error of a transport operation, and which rank caused a failure.
//!
//! A rank sees only its own connections. It reports a [`TransportError`]: the rank it blames, the cause, and all
//! suspects. [`culprit`] takes the reports of several ranks of a group and distinguishes the rank that caused the
//! failure from the ranks that only waited for it.

use crate::wire::{CloseReason, Header, contains_frame};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Which peer an operation lost or waited for, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportError {
    /// The rank this rank blames; `None` after an abort from outside, or if it cannot be known.
    pub peer: Option<usize>,
    pub cause: Cause,
    /// All ranks that were waited for or found lost at that moment, `peer` among them.
    pub suspects: Vec<usize>,
}

/// How an operation failed. The texts are part of reports and, as the constants of this module, of the coordinator's
/// decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The connection ended without a close frame: the process died or failed by itself.
    Closed,
    /// The peer left in good order although this rank still needed something from it.
    Left,
    /// The operating system reports a broken connection; its message.
    Io(String),
    /// No frame of the operation arrived before the deadline (or before another rank timed out): the peer never
    /// entered it.
    Silent { waited: Duration },
    /// The peer entered the operation but did not complete it in time.
    Slow {
        waited: Duration,
        /// Time since its last progress.
        quiet: Duration,
    },
    /// The peer sent a frame that does not belong here: expected and received.
    Protocol(String),
    /// The peer is in another operation than this rank, by operation number or by tensor: expected and received.
    OtherOperation(String),
    /// The peer sent a frame with a wrong checksum.
    Corrupt,
    /// Another rank reported its loss.
    Reported { by: usize },
    /// This rank, or the rank whose close frame it received, was told to stop.
    Aborted,
}

impl Cause {
    /// The cause for a frame other than the expected one.
    pub(crate) fn unexpected(expected: &Header, got: &Header) -> Cause {
        let text = format!("expected {expected}; got {got}");
        let other_operation = got.kind == expected.kind
            && got.tag != expected.tag
            && got.tag.generation == expected.tag.generation;
        if other_operation { Cause::OtherOperation(text) } else { Cause::Protocol(text) }
    }

    /// The cause for a frame whose payload has a wrong checksum. Damage on the way leaves no other frame in it: then its
    /// length is false.
    pub(crate) fn wrong_checksum(header: &Header, payload: &[u8]) -> Cause {
        match contains_frame(payload, header.tag.generation) {
            true => Cause::false_length(header),
            false => Cause::Corrupt,
        }
    }

    /// The cause for a frame in whose payload another frame of the peer begins.
    pub(crate) fn false_length(header: &Header) -> Cause {
        Cause::Protocol(format!("its frame has a false length, another frame begins in it: {header}"))
    }

    /// Whether nothing more is known than that a deadline passed.
    pub fn is_late(&self) -> bool {
        matches!(self, Cause::Silent { .. } | Cause::Slow { .. })
    }
}

impl TransportError {
    /// An error that blames one rank.
    pub fn new(peer: usize, cause: Cause) -> TransportError {
        TransportError { peer: Some(peer), cause, suspects: vec![peer] }
    }

    /// No frame arrived from the `pending` ranks within `waited`.
    pub fn silent(pending: Vec<usize>, waited: Duration) -> TransportError {
        TransportError { peer: pending.first().copied(), cause: Cause::Silent { waited }, suspects: pending }
    }

    /// Turns [`Cause::Silent`] into [`Cause::Slow`], for peers known to have been present `after` the start of the
    /// wait.
    pub(crate) fn slow_since(self, after: Duration) -> TransportError {
        match self.cause {
            Cause::Silent { waited } => {
                let cause = Cause::Slow { waited, quiet: waited.saturating_sub(after) };
                TransportError { cause, ..self }
            }
            _ => self,
        }
    }

    /// The reason to send the peers of a rank that fails with this error.
    pub(crate) fn close_reason(&self) -> CloseReason {
        match (&self.cause, self.peer) {
            (cause, _) if cause.is_late() => CloseReason::TimedOut,
            (_, Some(peer)) => CloseReason::Lost(peer),
            (_, None) => CloseReason::Aborted,
        }
    }

    pub fn aborted() -> TransportError {
        TransportError { peer: None, cause: Cause::Aborted, suspects: Vec::new() }
    }
}

/// How the texts of causes begin that the coordinator decides by: it gets them as text, in the reports of ranks.
pub const NEVER_ENTERED: &str = "never entered the operation";
pub const IS_SLOW: &str = "is slow";
pub const REPORTED_LOST: &str = "was reported lost by rank ";
pub const BROKE_PROTOCOL: &str = "broke the protocol";
pub const OTHER_OPERATION: &str = "is in another operation";
pub const LEFT_EARLY: &str = "left the group while";
pub const WRONG_CHECKSUM: &str = "sent a frame with a wrong checksum";

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Closed => write!(f, "closed its connection without a close frame"),
            Cause::Left => write!(f, "{LEFT_EARLY} it was still needed"),
            Cause::Io(message) => write!(f, "cannot be reached: {message}"),
            Cause::Silent { waited } => {
                write!(f, "{NEVER_ENTERED}: no frame of it arrived in {:.1} s", waited.as_secs_f64())
            }
            Cause::Slow { waited, quiet } => {
                let (waited, quiet) = (waited.as_secs_f64(), quiet.as_secs_f64());
                write!(f, "{IS_SLOW}: not done after {waited:.1} s, last progress {quiet:.1} s ago")
            }
            Cause::Protocol(what) => write!(f, "{BROKE_PROTOCOL}: {what}"),
            Cause::OtherOperation(what) => write!(f, "{OTHER_OPERATION}: {what}"),
            Cause::Corrupt => write!(f, "{WRONG_CHECKSUM}"),
            Cause::Reported { by } => write!(f, "{REPORTED_LOST}{by}"),
            Cause::Aborted => write!(f, "stopped on request"),
        }
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "rank {peer} {}", self.cause),
            None if self.cause.is_late() => {
                write!(f, "the operation timed out, and this rank cannot know which ranks are late")
            }
            None => write!(f, "{}", self.cause),
        }
    }
}

impl std::error::Error for TransportError {}

/// The rank that caused a failure, given what the ranks of one group report about it.
///
/// A rank that is suspected and does not report itself is the cause: the ranks that wait for a dead or stopped rank
/// form a chain, and the chain ends at the rank without a report. If all suspects report, the cause is a rank that
/// sent an invalid frame; else one that was reported lost by a rank without a report; else one that entered late and
/// so waited far less than the others. Otherwise a link failed and no rank: `None`.
pub fn culprit(reports: &[(usize, TransportError)]) -> Option<usize> {
    let has_reported = |rank: usize| reports.iter().any(|(reporter, _)| *reporter == rank);
    let mut weights: BTreeMap<usize, u32> = BTreeMap::new();
    for (_, error) in reports {
        for &rank in error.suspects.iter().filter(|&&rank| !has_reported(rank)) {
            *weights.entry(rank).or_default() += weight(&error.cause);
        }
    }
    let heaviest = weights.values().max().copied();
    if let Some(heaviest) = heaviest {
        return weights.into_iter().find(|(_, weight)| *weight == heaviest).map(|(rank, _)| rank);
    }
    proven(reports).or_else(|| reported_lost(reports, has_reported)).or_else(|| latest(reports))
}

/// Weight of a report as evidence: a closed connection is observed, a timeout only inferred.
fn weight(cause: &Cause) -> u32 {
    match cause {
        Cause::Silent { .. } | Cause::Slow { .. } | Cause::Aborted => 1,
        _ => 1000,
    }
}

/// A live rank that sent an invalid frame.
fn proven(reports: &[(usize, TransportError)]) -> Option<usize> {
    let proof = |cause: &Cause| {
        matches!(cause, Cause::Protocol(_) | Cause::OtherOperation(_) | Cause::Corrupt | Cause::Left)
    };
    reports.iter().find(|(_, error)| proof(&error.cause)).and_then(|(_, error)| error.peer)
}

/// A rank that was reported lost by a rank that has no report itself.
fn reported_lost(reports: &[(usize, TransportError)], has_reported: impl Fn(usize) -> bool) -> Option<usize> {
    let second_hand =
        |error: &TransportError| matches!(error.cause, Cause::Reported { by } if !has_reported(by));
    reports.iter().find(|(_, error)| second_hand(error)).and_then(|(_, error)| error.peer)
}

/// The reporter that waited less than half as long as every other.
fn latest(reports: &[(usize, TransportError)]) -> Option<usize> {
    let mut waits: Vec<(Duration, usize)> = reports
        .iter()
        .filter_map(|(reporter, error)| match error.cause {
            Cause::Silent { waited } | Cause::Slow { waited, .. } => Some((waited, *reporter)),
            _ => None,
        })
        .collect();
    waits.sort();
    match waits[..] {
        [(shortest, rank), (next, _), ..] if shortest < next / 2 => Some(rank),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(reporter: usize, on: usize, milliseconds: u64) -> (usize, TransportError) {
        (reporter, TransportError::silent(vec![on], Duration::from_millis(milliseconds)))
    }

    #[test]
    fn the_end_of_the_chain_is_the_culprit() {
        assert_eq!(culprit(&[waiting(1, 0, 500), waiting(0, 3, 500), waiting(3, 2, 500)]), Some(2));
    }

    #[test]
    fn a_late_rank_waited_least() {
        let chain = [waiting(1, 0, 500), waiting(0, 3, 500), waiting(3, 2, 500), waiting(2, 1, 3)];
        assert_eq!(culprit(&chain), Some(2));
    }

    #[test]
    fn a_rank_that_closed_after_a_loss_is_not_the_culprit() {
        let seen = TransportError { peer: Some(0), cause: Cause::Closed, suspects: vec![0, 2] };
        assert_eq!(culprit(&[(1, seen), (0, TransportError::new(2, Cause::Closed))]), Some(2));
    }

    #[test]
    fn two_ranks_that_wait_for_each_other_have_a_broken_link() {
        assert_eq!(culprit(&[waiting(0, 1, 500), waiting(1, 0, 501)]), None);
        assert_eq!(culprit(&[]), None);
    }

    #[test]
    fn an_invalid_frame_is_proof() {
        let reports = [
            (0, TransportError::new(1, Cause::Corrupt)),
            (1, TransportError::new(1, Cause::Reported { by: 0 })),
        ];
        assert_eq!(culprit(&reports), Some(1));
        assert_eq!(culprit(&reports[1..]), Some(1), "the reporting rank has no report itself");
    }
}
