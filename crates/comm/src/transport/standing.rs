//! Where the others stand, and what it means that some of them are gone.
//!
//! A stream that ends is either preceded by a farewell or not. Without one the rank is dead, and every transfer of
//! the group ends as soon as nothing more can be read. With one, its [`Departure`] says what to do: a rank that was
//! done is missed only by those who still need it; a rank that lost another passes on whom, so that the one who died
//! is named and not the one who noticed first; a rank that gave up waiting ends the others' waiting too, and each
//! names those it waited for itself.

use super::{Cause, Fault};
use crate::wire::{Departure, HEADER, Header};

/// Where a peer stands, as far as this rank knows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Standing {
    Present,
    Left(Departure),
    Lost(Cause),
}

impl Standing {
    /// The standing of a peer whose stream ended with these bytes.
    pub fn after(last_words: &[u8]) -> Standing {
        let start = last_words.len().checked_sub(HEADER);
        let header = start.and_then(|start| Header::decode(&last_words[start..]).ok());
        match header.and_then(|header| header.departure()) {
            Some(departure) => Standing::Left(departure),
            None => Standing::Lost(Cause::Closed),
        }
    }
}

impl Standing {
    /// The same in a group of so many: a farewell that names somebody who is not there tells of nobody but its sender.
    pub fn among(self, world: usize) -> Standing {
        match self {
            Standing::Left(Departure::Lost(culprit)) if culprit >= world => {
                let words = format!("its farewell names the rank in place {culprit} of {world}");
                Standing::Lost(Cause::Protocol(words))
            }
            standing => standing,
        }
    }
}

/// Whom to blame, if anybody, by a rank that has waited for `owed` and cannot go on without them.
///
/// What was seen goes before what was told; of several that were seen to die, one that another rank lost too. A rank
/// that was done has left nothing out as long as something of it is `unread`. If another gave up, those who are owed are
/// `late`.
pub(crate) fn verdict(
    standings: &[Standing],
    owed: &[usize],
    unread: impl Fn(usize) -> bool,
    late: impl FnOnce(Vec<usize>) -> Fault,
) -> Option<Fault> {
    let mut lost = Vec::new();
    let mut accused = Vec::new();
    let (mut missing, mut stopped, mut gave_up) = (None, Vec::new(), false);
    for (peer, standing) in standings.iter().enumerate() {
        match standing {
            Standing::Present => {}
            Standing::Lost(cause) => lost.push((peer, cause)),
            Standing::Left(Departure::Lost(culprit)) => accused.push((*culprit, peer)),
            Standing::Left(Departure::Aborted) => stopped.push(peer),
            Standing::Left(Departure::GaveUp) => gave_up = true,
            Standing::Left(Departure::Done) if owed.contains(&peer) && !unread(peer) => {
                missing = missing.or(Some(peer))
            }
            Standing::Left(Departure::Done) => {}
        }
    }
    let confirmed = lost.iter().find(|(peer, _)| accused.iter().any(|(culprit, _)| culprit == peer));
    if let Some(&(peer, cause)) = confirmed.or(lost.first()) {
        let suspects = lost.iter().map(|(peer, _)| *peer).collect();
        return Some(Fault { peer: Some(peer), cause: cause.clone(), suspects });
    }
    if let Some(&(culprit, by)) = accused.first() {
        return Some(Fault::of(culprit, Cause::Reported { by }));
    }
    if !stopped.is_empty() {
        return Some(Fault { suspects: stopped, ..Fault::aborted() });
    }
    if gave_up {
        return Some(late(owed.to_vec()));
    }
    missing.map(|peer| Fault::of(peer, Cause::Left))
}

#[cfg(test)]
mod tests {
    use super::Standing::{Left, Lost, Present};
    use super::*;
    use std::time::Duration;

    fn late(owed: Vec<usize>) -> Fault {
        Fault::silent(owed, Duration::from_millis(7))
    }

    fn blamed(standings: &[Standing]) -> Option<Fault> {
        verdict(standings, &[1], |_| false, late)
    }

    #[test]
    fn last_words_tell_a_leaver_from_the_dead() {
        let farewell = Header::farewell(1, Departure::Done).encode();
        assert_eq!(Standing::after(&[&[1, 2, 3], &farewell[..]].concat()), Left(Departure::Done));
        assert_eq!(Standing::after(&farewell[1..]), Lost(Cause::Closed));
        assert_eq!(Standing::after(&[]), Lost(Cause::Closed));
    }

    #[test]
    fn nobody_is_blamed_for_leaving_when_done() {
        assert_eq!(blamed(&[Present, Present, Left(Departure::Done)]), None);
        let left = [Present, Left(Departure::Done)];
        assert_eq!(blamed(&left), Some(Fault::of(1, Cause::Left)));
        assert_eq!(verdict(&left, &[1], |peer| peer == 1, late), None, "it sent what is owed before");
    }

    #[test]
    fn the_dead_are_named_before_those_who_fled() {
        let fled = Left(Departure::Lost(2));
        assert_eq!(blamed(&[Present, fled.clone(), Present]), Some(Fault::of(2, Cause::Reported { by: 1 })));
        assert_eq!(blamed(&[Present, fled.clone(), Lost(Cause::Closed)]), Some(Fault::of(2, Cause::Closed)));
        let torn_away = [Present, Lost(Cause::Closed), Lost(Cause::Closed), fled];
        let fault = blamed(&torn_away).expect("a fault");
        assert_eq!((fault.peer, fault.suspects), (Some(2), vec![1, 2]));
    }

    #[test]
    fn who_waits_names_those_it_waited_for_when_another_gives_up() {
        assert_eq!(blamed(&[Present, Present, Left(Departure::GaveUp)]), Some(late(vec![1])));
        let told = Fault { suspects: vec![1], ..Fault::aborted() };
        assert_eq!(blamed(&[Present, Left(Departure::Aborted)]), Some(told));
    }

    #[test]
    fn a_farewell_that_names_nobody_is_its_senders_fault() {
        let forged = Left(Departure::Lost(u32::MAX as usize - 3)).among(2);
        let fault = blamed(&[Present, forged]).unwrap();
        assert!(fault.peer == Some(1) && matches!(fault.cause, Cause::Protocol(_)), "{fault}");
        assert_eq!(Left(Departure::Lost(0)).among(2), Left(Departure::Lost(0)));
    }
}
