//! How long nothing was said, and how long no step was done: the longest of each.

use thalweg_core::event::{Event, Record};

/// What was measured so far. Times are those of the records, in seconds.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    /// When something was last said, from the beginning of the training on.
    said: Option<f64>,
    /// When a step was last known to be done, and how many were.
    stepped: Option<f64>,
    steps: u64,
    /// The longest without a step, an event or a notice.
    pub silence: f64,
    /// The longest between two committed steps.
    pub stall: f64,
}

impl Gaps {
    /// Takes note of what was said. A heartbeat says nothing to a user.
    pub fn follow(&mut self, record: &Record) {
        let time = record.time;
        match &record.event {
            Event::Pulse(_) => return,
            Event::Started { first_step, .. } => {
                (self.said, self.stepped, self.steps) = (Some(time), Some(time), *first_step);
            }
            // Not every step is told: a new group and a fault say how far the ranks had come, too.
            Event::Step { step, .. } | Event::Regrouped { step, .. } => self.advance(*step, time),
            Event::Struck { step, .. } => self.advance(step.saturating_sub(1), time),
            _ => {}
        }
        self.silence = self.silence.max(since(self.said, time));
        self.said = self.said.map(|last| last.max(time));
    }

    /// So many steps were done by then.
    fn advance(&mut self, steps: u64, time: f64) {
        if steps > self.steps {
            self.steps = steps;
            self.stall = self.stall.max(since(self.stepped, time));
            self.stepped = self.stepped.map(|last| last.max(time));
        }
    }
}

/// Seconds since then; none before training has begun.
fn since(last: Option<f64>, now: f64) -> f64 {
    last.map_or(0.0, |last| now - last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use thalweg_core::event::{Level, Pulse};

    #[test]
    fn only_steps_end_a_stall_and_heartbeats_end_nothing() {
        let mut gaps = Gaps::default();
        let mut say = |time: f64, event: Event| gaps.follow(&Record { time, rank: Some(0), event });
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
        say(1.0, notice());
        say(50.0, read(&started));
        say(51.0, read(&step(1)));
        say(53.0, notice());
        say(55.5, Event::Pulse(Pulse::default()));
        say(56.0, notice());
        say(57.0, read(&step(2)));
        // A record that was on its way for long takes nothing back.
        say(56.5, notice());
        say(57.5, notice());
        // The second of two faults comes after more steps, the third after none.
        let struck = |step| Event::Struck { step, kind: "livelock".into() };
        say(60.0, struck(3));
        say(63.0, struck(5));
        say(65.5, struck(5));
        say(68.0, read(&step(5)));
        assert_eq!((gaps.silence, gaps.stall), (3.0, 6.0));
        gaps.follow(&Record { time: 71.0, rank: Some(0), event: read(&step(6)) });
        assert_eq!(gaps.stall, 6.0);
    }
}
