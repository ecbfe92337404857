//! What share of an exchange went on behind computation.
//!
//! That something was under way while a worker computed does not yet mean that time was saved: it may have arrived long
//! before anybody looked. What counts is what the exchange takes when nothing hides it, less what of it was still seen.
//! So some of a run's first steps let their gradient leave after the pass, by the same buckets and schedules and with
//! the same bits: the shortest of these exchanges is the measure. No step hides more than the time that its worker
//! computed while buckets were under way and moved.

use std::ops::Range;

/// The steps of a run, counted from its first, that are measured with nothing hidden. The first one warms up.
const SOUNDINGS: Range<u64> = 1..4;

/// What is known of the exchange when nothing hides it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sounding {
    steps: u64,
    /// Seconds, the least that was seen.
    alone: Option<f64>,
}

impl Sounding {
    /// Nothing is measured.
    pub(crate) fn skipped() -> Sounding {
        Sounding { steps: SOUNDINGS.end, alone: None }
    }

    /// Whether the step at hand is one whose gradient leaves after the pass.
    pub(crate) fn is_due(&self) -> bool {
        SOUNDINGS.contains(&self.steps)
    }

    /// A step is over in which `seen` seconds of exchange were not hidden, and the worker computed for `beside` seconds
    /// while something was under way: the seconds that were.
    pub(crate) fn note(&mut self, seen: f64, beside: f64) -> f64 {
        let due = self.is_due();
        self.steps += 1;
        if due {
            self.alone = Some(self.alone.map_or(seen, |least| least.min(seen)));
            return 0.0;
        }
        self.alone.map_or(0.0, |alone| (alone - seen).clamp(0.0, beside.max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_is_what_it_takes_alone_less_what_was_seen() {
        let mut sounding = Sounding::default();
        assert_eq!(sounding.note(9.0, 5.0), 0.0, "nothing is known yet");
        for seen in [5.0, 4.0, 6.0] {
            assert!(sounding.is_due());
            assert_eq!(sounding.note(seen, 5.0), 0.0);
        }
        assert!(!sounding.is_due());
        assert_eq!(sounding.note(1.0, 5.0), 3.0);
        assert_eq!(sounding.note(1.0, 2.0), 2.0, "no more than there was to hide behind");
        assert_eq!(sounding.note(7.0, 5.0), 0.0);
    }
}
