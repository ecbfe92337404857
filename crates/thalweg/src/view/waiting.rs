//! Ranks that wait for others: the words for it, and how often a log has them.

use super::wording::printable;
use thalweg_cluster::rendezvous::ranks as named;
use thalweg_core::event::{Event, Record};

/// Seconds after which a wait that is not told again is over: a rank that told of one and was lost tells no more.
const STALE: f64 = 2.0;

/// The wait at hand, if there is one.
#[derive(Default)]
pub(super) struct Waiting {
    /// In words, and when it was told last.
    told: Option<(String, f64)>,
}

impl Waiting {
    /// Takes in an event.
    pub fn follow(&mut self, record: &Record) {
        match &record.event {
            Event::Waiting { ranks, operation, step, waited_s } => {
                let (ranks, operation) = (named(ranks), printable(operation));
                let words = format!("waiting for {ranks} for {waited_s:.0} s: {operation}, step {step}");
                self.told = Some((words, record.time));
            }
            Event::GoingOn { .. } | Event::Regrouped { .. } => self.told = None,
            Event::Step { .. } => drop(self.told.take_if(|(_, told)| record.time - *told > STALE)),
            _ => {}
        }
    }

    /// `waiting for rank 2 for 4 s: all-reduce of gradients, step 120`.
    pub fn status(&self) -> Option<&str> {
        self.told.as_ref().map(|(words, _)| words.as_str())
    }
}

/// Seconds between two lines about one wait.
const AGAIN: f64 = 5.0;

/// Seconds from a wait that was told to the next. One that lasts is told sooner.
const BETWEEN: f64 = 30.0;
const LONG: f64 = 10.0;

/// The lines of a log about waits. Where workers are uneven every step has one, which is not worth a line each.
#[derive(Default)]
pub(super) struct WaitLines {
    /// When the last line was written.
    last: Option<f64>,
    /// Whether the wait at hand was told.
    told: bool,
}

impl WaitLines {
    /// The line that an event is worth, if any; `status` is the wait at hand in words.
    pub fn follow(&mut self, record: &Record, status: Option<&str>) -> Option<String> {
        match &record.event {
            Event::Waiting { waited_s, .. } if self.is_due(record.time, *waited_s) => {
                (self.last, self.told) = (Some(record.time), true);
                status.map(str::to_owned)
            }
            Event::GoingOn { ranks, waited_s } if std::mem::take(&mut self.told) => {
                Some(format!("going on after {waited_s:.0} s of waiting for {}", named(ranks)))
            }
            _ => None,
        }
    }

    fn is_due(&self, time: f64, waited_s: f64) -> bool {
        let since = self.last.map_or(f64::INFINITY, |last| time - last);
        match self.told {
            true => since >= AGAIN,
            false => since >= BETWEEN || waited_s >= LONG,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::course::tests::{at, step};
    use super::*;

    fn wait(waited_s: f64) -> Event {
        Event::Waiting { ranks: vec![2], operation: "all-reduce".into(), step: 12, waited_s }
    }

    fn over(waited_s: f64) -> Event {
        Event::GoingOn { ranks: vec![2], waited_s }
    }

    #[test]
    fn the_status_says_for_whom_until_they_go_on() {
        let mut waiting = Waiting::default();
        waiting.follow(&at(3.0, wait(2.1)));
        assert_eq!(waiting.status(), Some("waiting for rank 2 for 2 s: all-reduce, step 12"));
        waiting.follow(&at(5.0, wait(4.1)));
        assert_eq!(waiting.status(), Some("waiting for rank 2 for 4 s: all-reduce, step 12"));
        waiting.follow(&at(6.0, over(4.1)));
        assert_eq!(waiting.status(), None);
        waiting.follow(&at(7.0, wait(2.0)));
        waiting.follow(&at(7.5, step(5, 20_000.0)));
        assert!(waiting.status().is_some(), "others go on meanwhile");
        waiting.follow(&at(9.5, step(6, 20_000.0)));
        assert_eq!(waiting.status(), None);
    }

    #[test]
    fn a_wait_is_told_every_five_seconds_and_short_ones_not_every_time() {
        let (mut waiting, mut lines) = (Waiting::default(), WaitLines::default());
        let mut told = Vec::new();
        for (time, event) in [
            (102.0, wait(2.0)),
            (103.0, wait(3.0)),
            (107.0, wait(7.0)),
            (108.0, over(7.0)),
            // A slow worker: the next step has the same wait.
            (111.0, wait(2.0)),
            (112.0, over(2.0)),
            (120.0, wait(2.0)),
            (128.0, wait(10.0)),
            (129.0, over(10.0)),
        ] {
            let record = at(time, event);
            waiting.follow(&record);
            told.extend(lines.follow(&record, waiting.status()));
        }
        assert_eq!(
            told,
            [
                "waiting for rank 2 for 2 s: all-reduce, step 12",
                "waiting for rank 2 for 7 s: all-reduce, step 12",
                "going on after 7 s of waiting for rank 2",
                "waiting for rank 2 for 10 s: all-reduce, step 12",
                "going on after 10 s of waiting for rank 2",
            ]
        );
    }
}
