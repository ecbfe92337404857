//! Simulated slow hosts: computations are extended by sleeping.
//!
//! Sleeping workers need no core, so many workers on few cores behave like as many hosts.

use std::time::Duration;
use thalweg_core::JobSpec;

/// The minimum computation time of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slowdown {
    /// Minimum time per row.
    row: Duration,
    factor: f64,
    /// Relative random extension.
    jitter: f64,
}

impl Slowdown {
    /// The slowdown of a rank; None if the job does not slow it down.
    pub(crate) fn of(job: &JobSpec, rank: usize) -> Option<Slowdown> {
        let engine = &job.engine;
        let even = job.train.global_batch as f64 / engine.workers.max(1) as f64;
        let row = engine.pace.map_or(Duration::ZERO, |pace| pace.div_f64(even));
        let slowdown = Slowdown { row, factor: engine.slow.of(rank), jitter: engine.jitter };
        let none = slowdown == Slowdown { row: Duration::ZERO, factor: 1.0, jitter: 0.0 };
        (!none).then_some(slowdown)
    }

    /// The time to sleep after a computation of `rows` rows. `chance` is between 0 and 1.
    pub(crate) fn rest(&self, rows: usize, took: Duration, chance: f32) -> Duration {
        let min = self.row.mul_f64(rows as f64).max(took);
        min.mul_f64(self.factor * (1.0 + self.jitter * f64::from(chance))).saturating_sub(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::spec::JobLayers;

    fn slowdown(rank: usize, settings: &[&str]) -> Option<Slowdown> {
        let mut layers = JobLayers::default();
        let workers = ["engine.workers=4"];
        workers.iter().chain(settings).for_each(|setting| layers.add_assignment(setting).unwrap());
        Slowdown::of(&crate::registry::resolve(layers).unwrap().spec, rank)
    }

    #[test]
    fn computations_are_extended_by_pace_factor_and_jitter() {
        let of = |milliseconds| Duration::from_millis(milliseconds);
        assert_eq!(slowdown(1, &[]), None);
        assert_eq!(slowdown(1, &["engine.slow={2=3.0}"]), None);
        let slow = slowdown(2, &["engine.slow={2=3.0}"]).unwrap();
        assert_eq!(slow.rest(16, of(5), 0.7), of(10));
        // Of 64 rows, 16 are an even share.
        let even = slowdown(1, &["engine.pace=20ms"]).unwrap();
        assert_eq!([0, 8, 16].map(|rows| even.rest(rows, of(2), 0.0)), [of(0), of(8), of(18)]);
        assert_eq!(even.rest(16, of(25), 0.0), of(0), "it cannot be made faster");
        let both = slowdown(2, &["engine.slow={2=3.0}", "engine.pace=20ms", "engine.jitter=0.5"]).unwrap();
        assert_eq!(both.rest(16, of(2), 0.0), of(58));
        assert_eq!(both.rest(16, of(2), 1.0), of(88));
    }
}
