//! Two members that cannot both be right: whom the group goes on without. Pure.
//!
//! It is about connections that cannot be made and frames that do not belong where they came. A connection that breaks is no
//! such case: it is made again.

use std::collections::BTreeSet;
use thalweg_core::{Culprit, Error, Kind};

/// How the words begin in which a rank says that another broke the protocol; see `thalweg_comm::transport::Cause`.
const BREACHES: [&str; 3] = ["broke the protocol", "is in another operation", "left the group while"];

/// The same of bytes that are no frame: a bad cable sends such, too.
const DAMAGED: &str = "broke the protocol: the bytes";

/// The same of one that did not come, or not with all that was wanted, until the witness or another gave up.
const LATE: [&str; 2] = ["never came to it", "is slow"];

/// Whether a witness only says that another is late.
pub fn is_late(error: &Error) -> bool {
    error.culprit.as_deref().is_some_and(|culprit| LATE.iter().any(|words| culprit.cause.starts_with(words)))
}

/// What is said of a member by whose word the others gave up, though none of them had waited.
pub fn hasty(rank: usize, error: &Error) -> Error {
    let cause = "says that it has waited in vain, and no other rank has waited for long".to_string();
    let accused = error.culprit.as_deref().cloned().unwrap_or_default();
    Error::new(error.kind, format!("rank {rank} {cause}")).blame(Culprit {
        rank,
        host: None,
        cause,
        ..accused
    })
}

/// Whether a witness got a whole frame that does not belong where it came, as only a member that breaks the protocol sends it.
pub fn is_breach(error: &Error) -> bool {
    let breach = |culprit: &Culprit| {
        BREACHES.iter().any(|words| culprit.cause.starts_with(words)) && !culprit.cause.starts_with(DAMAGED)
    };
    error.culprit.as_deref().is_some_and(breach)
}

/// Whether what a witness says is such a case.
pub fn is_one(error: &Error) -> bool {
    let breach = |culprit: &Culprit| BREACHES.iter().any(|words| culprit.cause.starts_with(words));
    error.kind == Kind::Rendezvous || error.culprit.as_deref().is_some_and(breach)
}

/// What is said of the member that is dropped for it.
pub fn culprit(rank: usize, error: &Error) -> Culprit {
    let accused = error.culprit.as_deref().cloned().unwrap_or_default();
    let cause = match error.kind {
        Kind::Rendezvous => format!("cannot be connected with all others: {}", error.message),
        _ if accused.rank == rank => accused.cause,
        _ => format!("broke the protocol, or says so of others: {}", error.message),
    };
    let operation = accused.operation.or_else(|| Some("forming of the group".into()));
    let host = accused.host.filter(|_| accused.rank == rank);
    Culprit { rank, host, cause, operation, ..accused }
}

/// The member that is dropped at once, given who is at odds with whom (the witness first), how many belong to the group and
/// who has just come to it. Nothing if it is not clear who it is: then they try again.
///
/// A newcomer that is part of it goes: those who worked together before can do so again. So does one that all others miss.
pub fn dropped(pairs: &[(usize, usize)], members: usize, joined: &BTreeSet<usize>) -> Option<usize> {
    let parties = pairs.iter().flat_map(|(witness, missed)| [*missed, *witness]);
    let newcomer = parties.clone().find(|party| joined.contains(party));
    newcomer.or_else(|| {
        let witnesses = |missed: usize| -> BTreeSet<usize> {
            pairs.iter().filter(|(_, other)| *other == missed).map(|(witness, _)| *witness).collect()
        };
        let all = |missed: &usize| members > 2 && witnesses(*missed).len() + 1 >= members;
        pairs.iter().map(|(_, missed)| *missed).find(all)
    })
}

/// Who goes when the connections of a rank broke too often: the one that is accused, unless it is newcomers alone, and not it,
/// that say so.
pub fn weaker(accused: usize, witnesses: &BTreeSet<usize>, newcomers: &BTreeSet<usize>) -> usize {
    let new = |rank: &usize| newcomers.contains(rank);
    match witnesses.first() {
        Some(witness) if !new(&accused) && witnesses.iter().all(new) => *witness,
        _ => accused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_goes_whoever_complains() {
        let joined = BTreeSet::from([4]);
        assert_eq!(dropped(&[(2, 4)], 5, &joined), Some(4), "it did not connect");
        assert_eq!(dropped(&[(4, 2)], 5, &joined), Some(4), "it cannot reach one of them");
        assert_eq!(dropped(&[(2, 4), (4, 2)], 5, &joined), Some(4));
    }

    #[test]
    fn one_that_all_others_miss_goes_and_a_single_link_is_tried_again() {
        let nobody = BTreeSet::new();
        assert_eq!(dropped(&[(0, 1), (2, 1), (3, 1)], 4, &nobody), Some(1));
        assert_eq!(dropped(&[(0, 1), (0, 1), (0, 1)], 4, &nobody), None, "one witness, three times");
        assert_eq!(dropped(&[(0, 1), (1, 0)], 4, &nobody), None);
        assert_eq!(dropped(&[(0, 1)], 2, &nobody), None);
        assert_eq!(dropped(&[], 4, &nobody), None);
    }

    #[test]
    fn newcomers_alone_do_not_talk_a_member_out_of_its_group() {
        let newcomers = BTreeSet::from([4, 5]);
        assert_eq!(weaker(0, &BTreeSet::from([4]), &newcomers), 4);
        assert_eq!(weaker(0, &BTreeSet::from([1, 4]), &newcomers), 0);
        assert_eq!(weaker(5, &BTreeSet::from([4]), &newcomers), 5);
        assert_eq!(weaker(0, &BTreeSet::new(), &newcomers), 0);
    }
}
