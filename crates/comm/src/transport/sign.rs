//! Signs of life in an operation: whether a peer has come to it at all, and when it last moved anything.
//!
//! At a deadline this tells the rank that never entered from the one that is only slow.

use super::{Cause, Fault, Tag};
use std::time::Duration;

/// Buffers on the way to a peer that takes nothing are full after this: the system tries once more to press what is left
/// of a write into them, some 0.2 s after they seemed full.
const FILLING: Duration = Duration::from_millis(500);

/// What was seen of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sign {
    /// What the last bytes that came belonged to, and when that was.
    heard: Option<(Tag, Duration)>,
    /// When it last took any.
    took: Option<Duration>,
    /// Something of an operation that was asked for since the last look has come, now or before.
    came: bool,
    /// Something came, or was taken, since the last look at the clock.
    fresh: (bool, bool),
}

impl Sign {
    /// Something of this operation was asked for, and `came` or not.
    pub fn ask(&mut self, tag: Tag, came: bool) {
        if came {
            self.heard = Some((tag, self.heard.map_or(Duration::ZERO, |(_, when)| when)));
            self.fresh.0 = true;
        }
        let is_of = |heard: Tag| {
            (heard.generation, heard.group) == (tag.generation, tag.group) && heard.operation >= tag.operation
        };
        self.came |= self.heard.is_some_and(|(heard, _)| is_of(heard));
    }

    /// It took something.
    pub fn take(&mut self) {
        self.fresh.1 = true;
    }

    /// A look at the clock.
    pub fn note(&mut self, now: Duration) {
        let (heard, took) = std::mem::take(&mut self.fresh);
        if let Some((_, when)) = self.heard.as_mut().filter(|_| heard) {
            *when = now;
        }
        if took {
            self.took = Some(now);
        }
    }

    /// Whatever is asked for from here on is the next look's.
    pub fn forget(&mut self) {
        self.came = false;
    }

    /// How long ago it last moved something, if it has come. That it took something is a sign only some way into the wait:
    /// at its beginning it is buffers that fill, [`FILLING`] at the longest.
    fn quiet(&self, now: Duration, waited: Duration) -> Option<Duration> {
        let since = |when: Duration| now.saturating_sub(when).min(waited);
        let took = self.took.map(since).filter(|quiet| waited - *quiet > FILLING.max(waited / 4));
        let heard = self.heard.filter(|_| self.came).map(|(_, when)| since(when));
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
            blamed(&[slow, never]),
            Fault { peer: Some(1), cause: silent.clone(), suspects: vec![1, 0] }
        );
        let cause = Cause::Slow { waited: at(900), quiet: at(600) };
        assert_eq!(blamed(&[slow, halted]), Fault { peer: Some(1), cause, suspects: vec![1, 0] });
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
    fn that_buffers_fill_is_no_sign_of_whom_they_are_for() {
        let mut sign = Sign::default();
        for (when, slow) in [(110, false), (700, true)] {
            sign.take();
            sign.note(at(when));
            let cause = blamed(&[sign]).cause;
            assert_eq!(matches!(cause, Cause::Slow { .. }), slow, "{when}: {cause}");
        }
    }
}
