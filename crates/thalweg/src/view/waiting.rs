//! Console lines about ranks that wait for others, and how often they are printed.

use super::formatting::printable;
use thalweg_cluster::rendezvous::ranks as named;
use thalweg_core::event::{Event, Record};

/// Seconds without a `waiting` event after which a wait is over: a rank that reported one may have been lost since.
const STALE: f64 = 2.0;

/// The current wait, if any.
#[derive(Default)]
pub(super) struct WaitStatus {
    /// Its line, and the time of the last event.
    current: Option<(String, f64)>,
}

impl WaitStatus {
    pub fn update(&mut self, record: &Record) {
        match &record.event {
            Event::Waiting { ranks, operation, step, waited_s } => {
                let (ranks, operation) = (named(ranks), printable(operation));
                let line = format!("waiting for {ranks} for {waited_s:.0} s: {operation}, step {step}");
                self.current = Some((line, record.time));
            }
            Event::WaitEnded { .. } | Event::Regrouped { .. } => self.current = None,
            Event::Step { .. } => drop(self.current.take_if(|(_, reported)| record.time - *reported > STALE)),
            _ => {}
        }
    }

    /// `waiting for rank 2 for 4 s: all-reduce of gradients, step 120`.
    pub fn status(&self) -> Option<&str> {
        self.current.as_ref().map(|(line, _)| line.as_str())
    }
}

/// Seconds between two lines about one wait.
const REPEAT: f64 = 5.0;

/// Seconds between lines about different waits; a wait of `LONG` seconds is printed sooner.
const BETWEEN: f64 = 30.0;
const LONG: f64 = 10.0;

/// Limits the lines about waits: with uneven workers, every step has one.
#[derive(Default)]
pub(super) struct WaitLines {
    /// Time of the last line.
    last: Option<f64>,
    /// Whether the current wait was printed.
    printed: bool,
    /// The line about the end of a printed wait, until a step shows that training goes on: the wait may also have ended
    /// because the rank is removed.
    end: Option<String>,
}

impl WaitLines {
    /// The line to print for an event, if any; `status` is the line of the current wait.
    pub fn update(&mut self, record: &Record, status: Option<&str>) -> Option<String> {
        match &record.event {
            Event::Waiting { waited_s, .. } if self.is_due(record.time, *waited_s) => {
                (self.last, self.printed, self.end) = (Some(record.time), true, None);
                status.map(str::to_owned)
            }
            Event::WaitEnded { ranks, waited_s } if std::mem::take(&mut self.printed) => {
                self.end = Some(format!("going on after {waited_s:.0} s of waiting for {}", named(ranks)));
                None
            }
            Event::Step { .. } | Event::Epoch { .. } => self.end.take(),
            Event::Regrouped { .. } => {
                self.end = None;
                None
            }
            _ => None,
        }
    }

    fn is_due(&self, time: f64, waited_s: f64) -> bool {
        let since = self.last.map_or(f64::INFINITY, |last| time - last);
        match self.printed {
            true => since >= REPEAT,
            false => since >= BETWEEN || waited_s >= LONG,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::progress_state::tests::{at, step};
    use super::*;

    fn wait(waited_s: f64) -> Event {
        Event::Waiting { ranks: vec![2], operation: "all-reduce".into(), step: 12, waited_s }
    }

    fn regrouped() -> Event {
        Event::Regrouped {
            generation: 2,
            step: 12,
            members: vec![0, 1],
            lost: Vec::new(),
            joined: Vec::new(),
            left: Vec::new(),
            recover_s: 0.1,
            steps_redone: 0,
        }
    }

    fn over(waited_s: f64) -> Event {
        Event::WaitEnded { ranks: vec![2], waited_s }
    }

    #[test]
    fn the_status_names_the_ranks_until_they_continue() {
        let mut waiting = WaitStatus::default();
        waiting.update(&at(3.0, wait(2.1)));
        assert_eq!(waiting.status(), Some("waiting for rank 2 for 2 s: all-reduce, step 12"));
        waiting.update(&at(5.0, wait(4.1)));
        assert_eq!(waiting.status(), Some("waiting for rank 2 for 4 s: all-reduce, step 12"));
        waiting.update(&at(6.0, over(4.1)));
        assert_eq!(waiting.status(), None);
        waiting.update(&at(7.0, wait(2.0)));
        waiting.update(&at(7.5, step(5, 20_000.0)));
        assert!(waiting.status().is_some(), "other ranks continue");
        waiting.update(&at(9.5, step(6, 20_000.0)));
        assert_eq!(waiting.status(), None);
    }

    #[test]
    fn a_wait_is_printed_every_five_seconds_and_short_ones_not_every_time() {
        let (mut waiting, mut lines) = (WaitStatus::default(), WaitLines::default());
        let mut printed = Vec::new();
        for (time, event) in [
            (102.0, wait(2.0)),
            (103.0, wait(3.0)),
            (107.0, wait(7.0)),
            (108.0, over(7.0)),
            (108.1, step(13, 20_000.0)),
            // A slow worker: the next step has the same wait.
            (111.0, wait(2.0)),
            (112.0, over(2.0)),
            (120.0, wait(2.0)),
            (128.0, wait(10.0)),
            (129.0, over(10.0)),
            (129.1, step(14, 20_000.0)),
            // The rank is removed.
            (140.0, wait(10.0)),
            (141.0, over(10.0)),
            (141.0, regrouped()),
            (141.1, step(15, 20_000.0)),
            // A short wait for another rank follows before the next step.
            (160.0, wait(10.0)),
            (161.0, over(10.0)),
            (163.0, wait(2.0)),
            (163.5, over(2.0)),
            (163.6, step(16, 20_000.0)),
        ] {
            let record = at(time, event);
            waiting.update(&record);
            printed.extend(lines.update(&record, waiting.status()));
        }
        assert_eq!(
            printed,
            [
                "waiting for rank 2 for 2 s: all-reduce, step 12",
                "waiting for rank 2 for 7 s: all-reduce, step 12",
                "going on after 7 s of waiting for rank 2",
                "waiting for rank 2 for 10 s: all-reduce, step 12",
                "going on after 10 s of waiting for rank 2",
                "waiting for rank 2 for 10 s: all-reduce, step 12",
                "waiting for rank 2 for 10 s: all-reduce, step 12",
                "going on after 10 s of waiting for rank 2",
            ]
        );
    }
}
