//! The steps since the last progress event: steps are many, events few.

use crate::step_report::StepSummary;
use crate::work::Step;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::event::Event;
use thalweg_core::times::Spread;

/// The least time between two progress events.
const INTERVAL: Duration = Duration::from_millis(100);

/// Sums over the commit units since the last event.
pub(crate) struct RecentSteps {
    since: Duration,
    /// Rows of all workers before, where each adds its own alone.
    before: u64,
    steps: u64,
    rows: u64,
    loss: f64,
    /// By rank.
    compute_ms: Vec<f32>,
}

impl RecentSteps {
    pub(crate) fn since(now: Duration) -> RecentSteps {
        RecentSteps::after(0, now)
    }

    pub(crate) fn after(before: u64, now: Duration) -> RecentSteps {
        RecentSteps { since: now, before, steps: 0, rows: 0, loss: 0.0, compute_ms: Vec::new() }
    }

    pub(crate) fn before(&self) -> u64 {
        self.before
    }

    /// So much of the time since then was no training.
    pub(crate) fn exclude(&mut self, time: Duration) {
        self.since += time;
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    pub(crate) fn add(&mut self, rows: u64, summary: &StepSummary) {
        self.steps += summary.steps.iter().copied().max().unwrap_or(1);
        self.loss += summary.loss;
        self.rows += rows;
        self.compute_ms.resize(summary.compute_ms.len(), 0.0);
        for (sum, milliseconds) in self.compute_ms.iter_mut().zip(&summary.compute_ms) {
            *sum += milliseconds;
        }
    }

    /// Whether the last event was long enough ago.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now - self.since >= INTERVAL
    }

    /// The event at the end of `step`, with so many rows of all workers by `now`.
    pub(crate) fn event(
        &self,
        rank: &Rank,
        step: Step,
        steps_per_epoch: u64,
        (now, rows): (Duration, u64),
    ) -> Event {
        let slower =
            |best: (usize, f32), (rank, &ms): (usize, &f32)| if ms > best.1 { (rank, ms) } else { best };
        let (slowest, _) = self.compute_ms.iter().enumerate().fold((0, f32::MIN), slower);
        let spread = Spread::of(self.compute_ms.iter().map(|sum| sum / self.steps.max(1) as f32));
        Event::Step {
            epoch: step.epoch,
            step: step.number,
            steps_per_epoch,
            loss: self.loss / self.rows.max(1) as f64,
            samples_per_s: rows as f64 / (now - self.since).as_secs_f64().max(1e-9),
            slowest: rank.member_id_at(slowest),
            slowest_ms: spread.max,
            median_ms: spread.median,
            fastest_ms: spread.min,
        }
    }
}
