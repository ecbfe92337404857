//! What went wrong between ranks, and whose fault it is.
//!
//! A rank sees only its own connections. What it reports is a [`Fault`]: the rank it blames, the reason, and all
//! ranks that may be behind it. Whoever hears several ranks of a group asks [`culprit`], which tells the rank that
//! started it from those that only waited for it.

use crate::wire::Header;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Whom a transfer lost or waited for, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank this rank blames; `None` if the order to stop came from outside, or if it cannot know.
    pub peer: Option<usize>,
    /// How it failed.
    pub cause: Cause,
    /// All ranks that were waited for or found lost at that moment, `peer` among them.
    pub suspects: Vec<usize>,
}

/// How a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The connection ended without a farewell: the process died or gave up with an error of its own.
    Closed,
    /// It left in good order although this rank still needed something from it.
    Left,
    /// The operating system reports a broken connection, in its words.
    Io(String),
    /// Nothing of the operation came until the deadline (or until another rank gave up first): it never came to it.
    Silent {
        /// How long this rank had waited.
        waited: Duration,
    },
    /// It came, but not all that was wanted of it did until then.
    Slow {
        /// How long this rank had waited.
        waited: Duration,
        /// How long ago something last moved.
        quiet: Duration,
    },
    /// It sent a frame that does not belong here: expected and got.
    Protocol(String),
    /// It is in another operation than this rank, by number or by tensor: expected and got.
    Elsewhere(String),
    /// It sent a frame whose checksum is wrong.
    Corrupt,
    /// Another rank lost it and said so.
    Reported {
        /// The rank that said so.
        by: usize,
    },
    /// This rank, or one that told it, was ordered to stop.
    Aborted,
}

impl Cause {
    /// A frame came that was not the one.
    pub(crate) fn unexpected(expected: &Header, got: &Header) -> Cause {
        let words = format!("expected {expected}; got {got}");
        let elsewhere = got.kind == expected.kind
            && got.tag != expected.tag
            && got.tag.generation == expected.tag.generation;
        if elsewhere { Cause::Elsewhere(words) } else { Cause::Protocol(words) }
    }

    /// Whether no more is known than that something did not come in time.
    pub fn is_late(&self) -> bool {
        matches!(self, Cause::Silent { .. } | Cause::Slow { .. })
    }
}

impl Fault {
    /// A fault of one rank.
    pub fn of(peer: usize, cause: Cause) -> Fault {
        Fault { peer: Some(peer), cause, suspects: vec![peer] }
    }

    /// Nothing came from `owed` within `waited`.
    pub fn silent(owed: Vec<usize>, waited: Duration) -> Fault {
        Fault { peer: owed.first().copied(), cause: Cause::Silent { waited }, suspects: owed }
    }

    /// The same, where it is known that those who are late were still there when `met` of the wait had passed.
    pub(crate) fn after_entering(self, met: Duration) -> Fault {
        match self.cause {
            Cause::Silent { waited } => {
                Fault { cause: Cause::Slow { waited, quiet: waited.saturating_sub(met) }, ..self }
            }
            _ => self,
        }
    }

    /// The order to stop.
    pub fn aborted() -> Fault {
        Fault { peer: None, cause: Cause::Aborted, suspects: Vec::new() }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Closed => write!(f, "closed its connection without a farewell"),
            Cause::Left => write!(f, "left the group while it was still needed"),
            Cause::Io(words) => write!(f, "cannot be reached: {words}"),
            Cause::Silent { waited } => {
                write!(
                    f,
                    "never came to it: nothing of this operation arrived in {:.1} s",
                    waited.as_secs_f64()
                )
            }
            Cause::Slow { waited, quiet } => {
                let (waited, quiet) = (waited.as_secs_f64(), quiet.as_secs_f64());
                write!(f, "is slow: not done after {waited:.1} s, it last moved something {quiet:.1} s ago")
            }
            Cause::Protocol(what) => write!(f, "broke the protocol: {what}"),
            Cause::Elsewhere(what) => write!(f, "is in another operation: {what}"),
            Cause::Corrupt => write!(f, "sent a frame with a wrong checksum"),
            Cause::Reported { by } => write!(f, "was lost, says rank {by}"),
            Cause::Aborted => write!(f, "stopped on request"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "rank {peer} {}", self.cause),
            None if self.cause.is_late() => {
                write!(f, "not all came in time, and who did not is not known here")
            }
            None => write!(f, "{}", self.cause),
        }
    }
}

impl std::error::Error for Fault {}

/// The rank that started it, given what the ranks of one group report about the same failure.
///
/// A rank that is named but does not speak itself is behind it: the bystanders of a dead or stopped rank wait for
/// each other in a chain, and the chain ends at the one that reports nothing. If all of them speak, one of them sent
/// what it must not, or so somebody said who speaks no more; or the one that came late waited far less than the others.
/// If no one did, it is a link and not a rank: `None`.
pub fn culprit(reports: &[(usize, Fault)]) -> Option<usize> {
    let speaks = |rank: usize| reports.iter().any(|(reporter, _)| *reporter == rank);
    let mut weights: BTreeMap<usize, u32> = BTreeMap::new();
    for (_, fault) in reports {
        for &rank in fault.suspects.iter().filter(|&&rank| !speaks(rank)) {
            *weights.entry(rank).or_default() += weight(&fault.cause);
        }
    }
    let heaviest = weights.values().max().copied();
    if let Some(heaviest) = heaviest {
        return weights.into_iter().find(|(_, weight)| *weight == heaviest).map(|(rank, _)| rank);
    }
    proven(reports).or_else(|| accused(reports, speaks)).or_else(|| latest(reports))
}

/// How much a report says about its suspects: a closed connection is seen, a silence only suffered.
fn weight(cause: &Cause) -> u32 {
    match cause {
        Cause::Silent { .. } | Cause::Slow { .. } | Cause::Aborted => 1,
        _ => 1000,
    }
}

/// A rank that is alive but sent what it must not.
fn proven(reports: &[(usize, Fault)]) -> Option<usize> {
    let proof = |cause: &Cause| {
        matches!(cause, Cause::Protocol(_) | Cause::Elsewhere(_) | Cause::Corrupt | Cause::Left)
    };
    reports.iter().find(|(_, fault)| proof(&fault.cause)).and_then(|(_, fault)| fault.peer)
}

/// A rank that another accused before it fell silent itself.
fn accused(reports: &[(usize, Fault)], speaks: impl Fn(usize) -> bool) -> Option<usize> {
    let told = |fault: &Fault| matches!(fault.cause, Cause::Reported { by } if !speaks(by));
    reports.iter().find(|(_, fault)| told(fault)).and_then(|(_, fault)| fault.peer)
}

/// The reporter that waited less than half as long as every other.
fn latest(reports: &[(usize, Fault)]) -> Option<usize> {
    let mut waits: Vec<(Duration, usize)> = reports
        .iter()
        .filter_map(|(reporter, fault)| match fault.cause {
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

    fn waiting(reporter: usize, on: usize, milliseconds: u64) -> (usize, Fault) {
        (reporter, Fault::silent(vec![on], Duration::from_millis(milliseconds)))
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
    fn a_rank_that_fled_is_not_the_one_that_died() {
        let seen = Fault { peer: Some(0), cause: Cause::Closed, suspects: vec![0, 2] };
        assert_eq!(culprit(&[(1, seen), (0, Fault::of(2, Cause::Closed))]), Some(2));
    }

    #[test]
    fn two_ranks_that_wait_for_each_other_blame_their_link() {
        assert_eq!(culprit(&[waiting(0, 1, 500), waiting(1, 0, 501)]), None);
        assert_eq!(culprit(&[]), None);
    }

    #[test]
    fn what_was_sent_is_proof() {
        let reports = [(0, Fault::of(1, Cause::Corrupt)), (1, Fault::of(1, Cause::Reported { by: 0 }))];
        assert_eq!(culprit(&reports), Some(1));
        assert_eq!(culprit(&reports[1..]), Some(1), "its accuser speaks no more");
    }
}
