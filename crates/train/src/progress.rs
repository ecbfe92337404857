//! What happened since the last progress event: steps are many, events few.

use crate::rider::Rider;
use crate::worker::Step;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::event::Event;
use thalweg_core::times::Spread;

/// The least time between two progress events.
const INTERVAL: Duration = Duration::from_millis(100);

/// Sums over the steps since the last event.
pub(crate) struct Progress {
    since: Duration,
    steps: u64,
    rows: u64,
    /// Losses and every rank's time, summed.
    sums: Rider,
}

impl Progress {
    /// Nothing has happened since now.
    pub(crate) fn since(now: Duration) -> Progress {
        Progress { since: now, steps: 0, rows: 0, sums: Rider::default() }
    }

    /// A step is done.
    pub(crate) fn add(&mut self, rows: u64, rider: &Rider) {
        self.steps += 1;
        self.sums.loss += rider.loss;
        self.rows += rows;
        self.sums.compute_ms.resize(rider.compute_ms.len(), 0.0);
        for (sum, milliseconds) in self.sums.compute_ms.iter_mut().zip(&rider.compute_ms) {
            *sum += milliseconds;
        }
    }

    /// Whether the last event was long enough ago.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now - self.since >= INTERVAL
    }

    /// The event, at the end of `step`.
    pub(crate) fn event(&self, rank: &Rank, step: &Step, steps_per_epoch: u64, now: Duration) -> Event {
        let (slowest, _) = self.sums.slowest();
        let spread = Spread::of(self.sums.compute_ms.iter().map(|sum| sum / self.steps.max(1) as f32));
        Event::Step {
            epoch: step.epoch,
            step: step.number,
            steps_per_epoch,
            loss: self.sums.loss / self.rows.max(1) as f64,
            samples_per_s: self.rows as f64 / (now - self.since).as_secs_f64().max(1e-9),
            slowest: rank.member_id_at(slowest),
            slowest_ms: spread.max,
            median_ms: spread.median,
            fastest_ms: spread.min,
        }
    }
}
