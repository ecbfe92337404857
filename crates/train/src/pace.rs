//! Uneven and unsteady machines, on one machine: computations are drawn out by sleeping.
//!
//! Workers that sleep need no core, so several of them on few cores behave like as many machines.

use std::time::Duration;
use thalweg_core::JobSpec;

/// How long a rank's computations take at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// Of a row.
    row: Duration,
    /// How many times slower the rank is than it could be.
    factor: f64,
    /// Up to this share longer.
    jitter: f64,
}

impl Pace {
    /// What the job asks of a rank among so many workers; nothing if that is its own pace.
    pub(crate) fn of(job: &JobSpec, rank: usize, workers: usize) -> Option<Pace> {
        let engine = &job.engine;
        let even = job.train.global_batch as f64 / workers.max(1) as f64;
        let row = engine.pace.map_or(Duration::ZERO, |pace| pace.div_f64(even));
        let pace = Pace { row, factor: engine.slow.of(rank), jitter: engine.jitter };
        let own = pace == Pace { row: Duration::ZERO, factor: 1.0, jitter: 0.0 };
        (!own).then_some(pace)
    }

    /// How much longer a computation of so many rows has yet to take. `chance` is between 0 and 1.
    pub(crate) fn rest(&self, rows: usize, took: Duration, chance: f32) -> Duration {
        let least = self.row.mul_f64(rows as f64).max(took);
        least.mul_f64(self.factor * (1.0 + self.jitter * f64::from(chance))).saturating_sub(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::Job;
    use thalweg_core::spec::Layers;

    fn pace(rank: usize, settings: &[&str]) -> Option<Pace> {
        let mut layers = Layers::default();
        let workers = ["engine.workers=4"];
        workers.iter().chain(settings).for_each(|setting| layers.add_assignment(setting).unwrap());
        Pace::of(&Job::resolve(layers).unwrap().spec, rank, 4)
    }

    #[test]
    fn rows_are_drawn_out_to_the_pace_times_the_factor() {
        let of = |milliseconds| Duration::from_millis(milliseconds);
        assert_eq!(pace(1, &[]), None);
        assert_eq!(pace(1, &["engine.slow={2=3.0}"]), None);
        let slow = pace(2, &["engine.slow={2=3.0}"]).unwrap();
        assert_eq!(slow.rest(16, of(5), 0.7), of(10));
        // Of 64 rows, 16 are an even share.
        let even = pace(1, &["engine.pace=20ms"]).unwrap();
        assert_eq!([0, 8, 16].map(|rows| even.rest(rows, of(2), 0.0)), [of(0), of(8), of(18)]);
        assert_eq!(even.rest(16, of(25), 0.0), of(0), "it cannot be made faster");
        let both = pace(2, &["engine.slow={2=3.0}", "engine.pace=20ms", "engine.jitter=0.5"]).unwrap();
        assert_eq!(both.rest(16, of(2), 0.0), of(58));
        assert_eq!(both.rest(16, of(2), 1.0), of(88));
    }
}
