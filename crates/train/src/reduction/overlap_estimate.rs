//! An estimate of the exchange that overlapped with computation.
//!
//! That buckets were in flight while a worker computed does not mean that time was saved: they may have arrived long
//! before the worker polled. What counts is the time of the exchange without overlap, less the part of it that was still
//! exposed. So some of the first steps send their gradient after the pass, in the same buckets and with the same bits;
//! the shortest of these exchanges is the reference. No step hides more than the time that its worker computed while
//! buckets were in flight and moved.

use std::ops::Range;

/// Steps that are measured without overlap, counted from the first. The first one warms up.
const PROBES: Range<u64> = 1..4;

/// The time of the exchange without overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ExposedTimeProbe {
    steps: u64,
    /// In seconds, the shortest.
    alone: Option<f64>,
}

impl ExposedTimeProbe {
    /// Measures nothing.
    pub(crate) fn skipped() -> ExposedTimeProbe {
        ExposedTimeProbe { steps: PROBES.end, alone: None }
    }

    /// Whether the current step sends its gradient after the pass.
    pub(crate) fn is_due(&self) -> bool {
        PROBES.contains(&self.steps)
    }

    /// Ends a step with `exposed` seconds of exchange, whose worker computed for `beside` seconds while buckets were in
    /// flight. Returns the seconds of exchange that overlapped.
    pub(crate) fn note(&mut self, exposed: f64, beside: f64) -> f64 {
        let due = self.is_due();
        self.steps += 1;
        if due {
            self.alone = Some(self.alone.map_or(exposed, |least| least.min(exposed)));
            return 0.0;
        }
        self.alone.map_or(0.0, |alone| (alone - exposed).clamp(0.0, beside.max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_is_what_it_takes_alone_less_what_was_seen() {
        let mut probe = ExposedTimeProbe::default();
        assert_eq!(probe.note(9.0, 5.0), 0.0, "nothing is known yet");
        for seen in [5.0, 4.0, 6.0] {
            assert!(probe.is_due());
            assert_eq!(probe.note(seen, 5.0), 0.0);
        }
        assert!(!probe.is_due());
        assert_eq!(probe.note(1.0, 5.0), 3.0);
        assert_eq!(probe.note(1.0, 2.0), 2.0, "no more than there was to hide behind");
        assert_eq!(probe.note(7.0, 5.0), 0.0);
    }
}
