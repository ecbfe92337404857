//! Conflicting reports: which of two members the group goes on without. Pure.
//!
//! Conflicts are about connections that cannot be made and frames that are not expected. A connection that breaks is no
//! conflict: it is made again.
//!
//! Ranks send their errors as text, so causes are recognized by how it begins; the texts are constants of `thalweg_comm`.

use std::collections::BTreeSet;
use thalweg_comm::transport::error;
use thalweg_comm::wire::NOT_A_FRAME;
use thalweg_core::{Culprit, Error, Kind};

/// Causes that say that a peer broke the protocol; see `thalweg_comm::transport::Cause`.
const VIOLATIONS: [&str; 4] =
    [error::BROKE_PROTOCOL, error::OTHER_OPERATION, error::LEFT_EARLY, error::WRONG_CHECKSUM];

/// Causes that say that a peer did not enter or complete an operation before the witness or another rank timed out.
const LATE: [&str; 2] = [error::NEVER_ENTERED, error::IS_SLOW];

fn cause_starts_with(error: &Error, texts: &[&str]) -> bool {
    error.culprit.as_deref().is_some_and(|culprit| texts.iter().any(|text| culprit.cause.starts_with(text)))
}

/// Whether the bytes were no frame at all, or not those of its checksum: a damaged link causes that, too.
fn is_damaged(error: &Error) -> bool {
    let no_frame = format!("{}: {NOT_A_FRAME}", error::BROKE_PROTOCOL);
    cause_starts_with(error, &[&no_frame, error::WRONG_CHECKSUM])
}

/// Whether a witness only reports that another rank is late.
pub fn is_late(error: &Error) -> bool {
    cause_starts_with(error, &LATE)
}

/// The error about a member whose timeout ended the operation for all, although no other rank had waited for long.
pub fn premature_timeout(rank: usize, error: &Error) -> Error {
    let cause = "reported a timeout although no other rank had waited for long".to_string();
    let accused = error.culprit.as_deref().cloned().unwrap_or_default();
    Error::new(error.kind, format!("rank {rank} {cause}")).blame(Culprit {
        rank,
        host: None,
        cause,
        ..accused
    })
}

/// Whether a witness received an intact frame that only a member that breaks the protocol sends.
pub fn is_protocol_violation(error: &Error) -> bool {
    cause_starts_with(error, &VIOLATIONS) && !is_damaged(error)
}

/// Whether the witness and the accused cannot both be right.
pub fn is_conflict(error: &Error) -> bool {
    error.kind == Kind::Rendezvous || cause_starts_with(error, &VIOLATIONS)
}

/// The culprit, if this member is dropped because of the error.
pub fn culprit(rank: usize, error: &Error) -> Culprit {
    let accused = error.culprit.as_deref().cloned().unwrap_or_default();
    let cause = match error.kind {
        Kind::Rendezvous => format!("cannot be connected with all others: {}", error.message),
        _ if accused.rank == rank => accused.cause,
        _ => format!("broke the protocol, or reports so of others: {}", error.message),
    };
    let operation = accused.operation.or_else(|| Some("forming of the group".into()));
    let host = accused.host.filter(|_| accused.rank == rank);
    Culprit { rank, host, cause, operation, ..accused }
}

/// The member to drop at once, given the conflicts (witness, accused), the size of the group and its newest members. `None`
/// if that is not clear: then the group is formed again.
///
/// A newcomer that takes part in a conflict goes, because the others worked together before. So does a member that all
/// others accuse.
pub fn member_to_drop(
    conflicts: &[(usize, usize)],
    members: usize,
    joined: &BTreeSet<usize>,
) -> Option<usize> {
    let parties = conflicts.iter().flat_map(|(witness, accused)| [*accused, *witness]);
    let newcomer = parties.clone().find(|party| joined.contains(party));
    newcomer.or_else(|| {
        let witnesses = |accused: usize| -> BTreeSet<usize> {
            conflicts.iter().filter(|(_, other)| *other == accused).map(|(witness, _)| *witness).collect()
        };
        let all = |accused: &usize| members > 2 && witnesses(*accused).len() + 1 >= members;
        conflicts.iter().map(|(_, accused)| *accused).find(all)
    })
}

/// How much the reports of a member count against those of another, from little to much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// It joined after the start of the job.
    Newcomer,
    /// Another member was removed on its report alone.
    SoleWitness,
    Full,
}

/// The member to remove when the connections of `accused` failed too often: the accused, unless all its witnesses are less
/// trusted.
pub fn less_trusted(accused: usize, witnesses: &BTreeSet<usize>, trust: impl Fn(usize) -> Trust) -> usize {
    match witnesses.first() {
        Some(witness) if witnesses.iter().all(|witness| trust(*witness) < trust(accused)) => *witness,
        _ => accused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_comm::transport::Cause;
    use thalweg_comm::wire::HeaderError;

    #[test]
    fn causes_of_the_transport_are_recognized() {
        let error = |cause: Cause| {
            let culprit = Culprit { rank: 1, cause: cause.to_string(), ..Culprit::default() };
            Error::new(Kind::RankFailed, "failed").blame(culprit)
        };
        let waited = std::time::Duration::from_secs(1);
        let kinds = |cause: Cause| {
            let error = error(cause);
            (is_protocol_violation(&error), is_conflict(&error), is_late(&error))
        };
        assert_eq!(kinds(Cause::OtherOperation("7".into())), (true, true, false));
        assert_eq!(kinds(Cause::Left), (true, true, false));
        assert_eq!(kinds(Cause::Protocol(HeaderError::Oversized(7).to_string())), (true, true, false));
        assert_eq!(kinds(Cause::Protocol(HeaderError::Magic(7).to_string())), (false, true, false));
        assert_eq!(kinds(Cause::Corrupt), (false, true, false));
        assert_eq!(kinds(Cause::Silent { waited }), (false, false, true));
        assert_eq!(kinds(Cause::Slow { waited, quiet: waited }), (false, false, true));
        assert_eq!(kinds(Cause::Closed), (false, false, false));
    }

    #[test]
    fn a_newcomer_is_dropped_on_either_side_of_a_conflict() {
        let joined = BTreeSet::from([4]);
        assert_eq!(member_to_drop(&[(2, 4)], 5, &joined), Some(4), "it did not connect");
        assert_eq!(member_to_drop(&[(4, 2)], 5, &joined), Some(4), "it cannot reach one of them");
        assert_eq!(member_to_drop(&[(2, 4), (4, 2)], 5, &joined), Some(4));
    }

    #[test]
    fn a_member_that_all_others_accuse_is_dropped_and_a_single_link_is_tried_again() {
        let none = BTreeSet::new();
        assert_eq!(member_to_drop(&[(0, 1), (2, 1), (3, 1)], 4, &none), Some(1));
        assert_eq!(member_to_drop(&[(0, 1), (0, 1), (0, 1)], 4, &none), None, "one witness, three times");
        assert_eq!(member_to_drop(&[(0, 1), (1, 0)], 4, &none), None);
        assert_eq!(member_to_drop(&[(0, 1)], 2, &none), None);
        assert_eq!(member_to_drop(&[], 4, &none), None);
    }

    #[test]
    fn less_trusted_witnesses_alone_do_not_remove_a_member() {
        let trust = |rank: usize| match rank {
            0 | 1 => Trust::Full,
            2 => Trust::SoleWitness,
            _ => Trust::Newcomer,
        };
        assert_eq!(less_trusted(0, &BTreeSet::from([4]), trust), 4);
        assert_eq!(less_trusted(0, &BTreeSet::from([2]), trust), 2);
        assert_eq!(less_trusted(2, &BTreeSet::from([4]), trust), 4, "a newcomer against one that was right");
        assert_eq!(less_trusted(4, &BTreeSet::from([2]), trust), 4);
        assert_eq!(less_trusted(0, &BTreeSet::from([1, 4]), trust), 0);
        assert_eq!(less_trusted(5, &BTreeSet::from([4]), trust), 5);
        assert_eq!(less_trusted(0, &BTreeSet::new(), trust), 0);
    }
}
