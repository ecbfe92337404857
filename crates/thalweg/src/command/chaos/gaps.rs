//! The longest times without an event and without a step.

use thalweg_core::event::{Event, Record};

/// Times are those of the records, in seconds.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    /// Time of the last event, from the start of training on.
    last_event: Option<f64>,
    /// Time of the last known progress, and the step reached.
    last_step: Option<f64>,
    steps: u64,
    /// Longest time without an event; heartbeats do not count.
    pub silence: f64,
    /// Longest time between two committed steps.
    pub stall: f64,
}

impl Gaps {
    /// Updates the gaps. Heartbeats are ignored: a user does not see them.
    pub fn follow(&mut self, record: &Record) {
        let time = record.time;
        match &record.event {
            Event::Heartbeat(_) => return,
            Event::Started { first_step, .. } => {
                (self.last_event, self.last_step, self.steps) = (Some(time), Some(time), *first_step);
            }
            // Not every step has an event: a membership change and a fault carry the current step too.
            Event::Step { step, .. } | Event::Regrouped { step, .. } => self.advance(*step, time),
            Event::FaultInjected { step, .. } => self.advance(step.saturating_sub(1), time),
            _ => {}
        }
        self.silence = self.silence.max(since(self.last_event, time));
        self.last_event = self.last_event.map(|last| last.max(time));
    }

    /// `steps` steps were done at `time`.
    fn advance(&mut self, steps: u64, time: f64) {
        if steps > self.steps {
            self.steps = steps;
            self.stall = self.stall.max(since(self.last_step, time));
            self.last_step = self.last_step.map(|last| last.max(time));
        }
    }
}

/// Seconds since `last`; 0 before training has begun.
fn since(last: Option<f64>, now: f64) -> f64 {
    last.map_or(0.0, |last| now - last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use thalweg_core::event::{Heartbeat, Level};

    #[test]
    fn only_steps_end_a_stall_and_heartbeats_do_not_count() {
        let mut gaps = Gaps::default();
        let mut send = |time: f64, event: Event| gaps.follow(&Record { time, rank: Some(0), event });
        let notice = || Event::Notice { level: Level::Info, message: "reading".into() };
        let started = json!({
            "event": "started", "rows": 1, "validation_rows": 0, "width": 1, "classes": [], "parameters": 1, "model": "",
            "epochs": 1, "steps_per_epoch": 9, "first_step": 0, "algorithm": "ring", "buckets": [],
        });
        let step = |step: u64| {
            json!({
                "event": "step", "epoch": 0, "step": step, "steps_per_epoch": 9, "loss": 0.0, "samples_per_s": 1.0, "slowest": 0,
                "slowest_ms": 0.0, "fastest_ms": 0.0, "median_ms": 0.0,
            })
        };
        let read = |event: &serde_json::Value| serde_json::from_value::<Event>(event.clone()).unwrap();
        send(1.0, notice());
        send(50.0, read(&started));
        send(51.0, read(&step(1)));
        send(53.0, notice());
        send(55.5, Event::Heartbeat(Heartbeat::default()));
        send(56.0, notice());
        send(57.0, read(&step(2)));
        // A late record does not move the time back.
        send(56.5, notice());
        send(57.5, notice());
        // The second of two faults comes after more steps, the third after none.
        let struck = |step| Event::FaultInjected { step, kind: "livelock".into() };
        send(60.0, struck(3));
        send(63.0, struck(5));
        send(65.5, struck(5));
        send(68.0, read(&step(5)));
        assert_eq!((gaps.silence, gaps.stall), (3.0, 6.0));
        gaps.follow(&Record { time: 71.0, rank: Some(0), event: read(&step(6)) });
        assert_eq!(gaps.stall, 6.0);
    }
}
