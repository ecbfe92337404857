//! Signs of life in an operation: whether a peer has come to it at all, and when it last moved anything.
//!
//! At a deadline this tells the rank that never entered from the one that is only slow.

use super::{Cause, Fault, Tag};
use crate::post::LETTERS;
use std::time::Duration;

/// Buffers within a host, on the way to a peer that takes nothing, are full after this: the system tries once more to press what is left
/// of a write into them, some 0.2 s after they seemed full.
const FILLING: Duration = Duration::from_millis(500);

/// What was seen of one peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sign {
    /// What came of it, by group.
    heard: Vec<Heard>,
    /// When it last took any.
    took: Option<Duration>,
    /// It took something since the last look at the clock.
    takes: bool,
}

/// What came of a peer in one group. Within a group operations begin in the same order everywhere, so that something of
/// a later one is a sign of those before it as well. Letters belong to no operation and have a place of their own.
#[derive(Clone, Debug)]
struct Heard {
    /// The latest operation that anything came of.
    latest: Tag,
    /// When anything last came.
    when: Duration,
    /// Something came since the last look at the clock.
    fresh: bool,
    /// An operation that it is a sign of was asked for since the last look.
    asked: bool,
}

impl Sign {
    /// Something of this operation was asked for, and `came` or not.
    pub fn ask(&mut self, tag: Tag, came: bool) {
        let is_letter = |tag: Tag| tag.operation == LETTERS;
        let same =
            |heard: &&mut Heard| heard.latest.group == tag.group && is_letter(heard.latest) == is_letter(tag);
        match self.heard.iter_mut().find(same) {
            Some(heard) => {
                if came {
                    let older =
                        heard.latest.generation != tag.generation || heard.latest.operation < tag.operation;
                    heard.latest = if older { tag } else { heard.latest };
                    heard.fresh = true;
                }
                heard.asked |=
                    heard.latest.generation == tag.generation && heard.latest.operation >= tag.operation;
            }
            None if came => {
                self.heard.push(Heard { latest: tag, when: Duration::ZERO, fresh: true, asked: true });
            }
            None => {}
        }
    }

    /// It took something.
    pub fn take(&mut self) {
        self.takes = true;
    }

    /// A look at the clock.
    pub fn note(&mut self, now: Duration) {
        for heard in &mut self.heard {
            if std::mem::take(&mut heard.fresh) {
                heard.when = now;
            }
        }
        if std::mem::take(&mut self.takes) {
            self.took = Some(now);
        }
    }

    /// Whatever is asked for from here on is the next look's.
    pub fn forget(&mut self) {
        self.heard.iter_mut().for_each(|heard| heard.asked = false);
    }

    /// How long ago it last moved something, if it has come. That it took something is a sign only some way into the wait:
    /// at its beginning it is buffers that fill, [`FILLING`] at the longest within a host, longer on slow links.
    fn quiet(&self, now: Duration, waited: Duration) -> Option<Duration> {
        let since = |when: Duration| now.saturating_sub(when).min(waited);
        let took = self.took.map(since).filter(|quiet| waited - *quiet > FILLING.max(waited / 4));
        let heard = self.heard.iter().filter(|heard| heard.asked).map(|heard| since(heard.when));
        took.into_iter().chain(heard).min()
    }
}

/// What it means that these have not moved all that was wanted within `waited`: those who never came are named before those
/// who are slow, and of these the one that has been quiet the longest.
pub(crate) fn overdue(signs: &[Sign], mut owed: Vec<usize>, now: Duration, waited: Duration) -> Fault {
    let quiet = |peer: usize| signs.get(peer).and_then(|sign| sign.quiet(now, waited));
    // None is less than any.
    owed.sort_by_key(|&peer| quiet(peer).map(|quiet| waited.saturating_sub(quiet)));
    let cause = match owed.first().and_then(|&peer| quiet(peer)) {
        Some(quiet) => Cause::Slow { waited, quiet },
        None => Cause::Silent { waited },
    };
    Fault { peer: owed.first().copied(), cause, suspects: owed }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    const TAG: Tag = Tag { generation: 1, operation: 5, group: 0, tensor: 0 };

    /// Asked for, with something that came at these times.
    fn asked(tags: &[(Tag, u64)]) -> Sign {
        let mut sign = Sign::default();
        for (tag, when) in tags {
            sign.ask(*tag, true);
            sign.note(at(*when));
            sign.forget();
        }
        sign.ask(TAG, false);
        sign
    }

    fn blamed(signs: &[Sign]) -> Fault {
        overdue(signs, (0..signs.len()).collect(), at(1000), at(900))
    }

    #[test]
    fn who_never_came_is_told_from_who_is_slow() {
        let before = Tag { operation: 4, ..TAG };
        let never = asked(&[(before, 100)]);
        let slow = asked(&[(before, 100), (TAG, 950)]);
        let halted = asked(&[(TAG, 400)]);
        let silent = Cause::Silent { waited: at(900) };
        assert_eq!(
            blamed(&[slow.clone(), never]),
            Fault { peer: Some(1), cause: silent.clone(), suspects: vec![1, 0] }
        );
        let cause = Cause::Slow { waited: at(900), quiet: at(600) };
        assert_eq!(blamed(&[slow.clone(), halted]), Fault { peer: Some(1), cause, suspects: vec![1, 0] });
        assert_eq!(blamed(&[slow]).cause, Cause::Slow { waited: at(900), quiet: at(50) });
        assert_eq!(blamed(&[asked(&[(Tag { group: 3, ..TAG }, 950)])]).cause, silent, "it is elsewhere");
        assert_eq!(blamed(&[]), Fault { peer: None, cause: silent, suspects: vec![] });
    }

    #[test]
    fn of_several_operations_a_later_one_is_a_sign_as_well() {
        let later = Tag { operation: 6, ..TAG };
        assert!(matches!(blamed(&[asked(&[(TAG, 300), (later, 950)])]).cause, Cause::Slow { .. }));
    }

    #[test]
    fn what_came_late_of_an_earlier_operation_hides_no_later_one() {
        let later = Tag { operation: 6, ..TAG };
        let mut sign = asked(&[(later, 300), (TAG, 900)]);
        sign.forget();
        sign.ask(later, false);
        assert!(matches!(blamed(&[sign]).cause, Cause::Slow { .. }), "it came to both");
    }

    #[test]
    fn a_letter_is_no_sign_of_an_operation() {
        let letter = Tag { operation: LETTERS, ..TAG };
        assert_eq!(blamed(&[asked(&[(letter, 950)])]).cause, Cause::Silent { waited: at(900) });
    }

    #[test]
    fn that_buffers_fill_is_no_sign_of_whom_they_are_for() {
        let mut sign = Sign::default();
        for (when, slow) in [(110, false), (700, true)] {
            sign.take();
            sign.note(at(when));
            let cause = blamed(&[sign.clone()]).cause;
            assert_eq!(matches!(cause, Cause::Slow { .. }), slow, "{when}: {cause}");
        }
    }
}
