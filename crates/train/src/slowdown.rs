//! Simulated slow hosts: computations are extended by sleeping.
//!
//! Sleeping workers need no core, so many workers on few cores behave like as many hosts.

use std::time::Duration;
use thalweg_core::JobSpec;
use thalweg_core::rng::Rng;
use thalweg_core::spec::engine::{JitterKind, StragglerSpec};

/// How much longer a worker computes than its host does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slowdown {
    /// Minimum time per row.
    row: Duration,
    factor: f64,
    /// Relative random extension.
    jitter: f64,
    jitter_kind: JitterKind,
    stragglers: StragglerSpec,
    /// The step of the last computation, and how many of it this worker has computed before: it may compute several
    /// batches while the job is at one step.
    turn: (u64, u64),
}

impl Slowdown {
    /// The slowdown of a worker; None if the job does not slow it down.
    pub(crate) fn of(job: &JobSpec, worker: usize) -> Option<Slowdown> {
        let engine = &job.engine;
        let even = job.train.global_batch as f64 / engine.workers.max(1) as f64;
        let row = engine.pace.map_or(Duration::ZERO, |pace| pace.div_f64(even));
        let (factor, jitter, stragglers) = (engine.slow.of(worker), engine.jitter, job.stragglers.clone());
        let none = row.is_zero() && factor == 1.0 && jitter == 0.0 && stragglers.probability == 0.0;
        let (jitter_kind, turn) = (engine.jitter_kind, (u64::MAX, 0));
        (!none).then_some(Slowdown { row, factor, jitter, jitter_kind, stragglers, turn })
    }

    /// What the random numbers of the next computation are keyed by, beside the worker.
    pub(crate) fn next_turn(&mut self, step: u64) -> [u64; 2] {
        let (last, count) = self.turn;
        self.turn = (step, if last == step { count + 1 } else { 0 });
        self.turn.into()
    }

    /// The time to sleep after a computation of `rows` rows.
    pub(crate) fn rest(&self, rows: usize, took: Duration, random: &mut Rng) -> Duration {
        let min = self.row.mul_f64(rows as f64).max(took);
        let (chance, straggles) = (f64::from(random.uniform()), f64::from(random.uniform()));
        let extension = match self.jitter_kind {
            JitterKind::Uniform => chance,
            JitterKind::Exponential => -(1.0 - chance).ln(),
        };
        let StragglerSpec { probability, factor } = self.stragglers;
        let straggling = if straggles < probability { factor } else { 1.0 };
        min.mul_f64(self.factor * (1.0 + self.jitter * extension) * straggling).saturating_sub(took)
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

    fn draws(number: u64) -> Rng {
        Rng::keyed(7, "jitter", &[number])
    }

    fn milliseconds(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// The times of 10,000 even shares.
    fn times(settings: &[&str]) -> Vec<f64> {
        let slowdown = slowdown(1, settings).unwrap();
        (0..10_000)
            .map(|number| slowdown.rest(16, Duration::ZERO, &mut draws(number)).as_secs_f64())
            .collect()
    }

    #[test]
    fn computations_are_extended_by_pace_and_factor() {
        let of = milliseconds;
        let rest = |slowdown: &Slowdown, rows, took| slowdown.rest(rows, took, &mut draws(0));
        assert_eq!(slowdown(1, &[]), None);
        assert_eq!(slowdown(1, &["engine.slow={2=3.0}"]), None);
        assert_eq!(slowdown(1, &["engine.stragglers.factor=5"]), None, "without a probability");
        let slow = slowdown(2, &["engine.slow={2=3.0}"]).unwrap();
        assert_eq!(rest(&slow, 16, of(5)), of(10));
        // Of 64 rows, 16 are an even share.
        let even = slowdown(1, &["engine.pace=20ms"]).unwrap();
        assert_eq!([0, 8, 16].map(|rows| rest(&even, rows, of(2))), [of(0), of(8), of(18)]);
        assert_eq!(rest(&even, 16, of(25)), of(0), "it cannot be made faster");
        let both = slowdown(2, &["engine.slow={2=3.0}", "engine.pace=20ms"]).unwrap();
        assert_eq!(rest(&both, 16, of(2)), of(58));
    }

    #[test]
    fn jitter_extends_evenly_or_exponentially() {
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        let even = times(&["engine.pace=20ms", "engine.jitter=0.5"]);
        assert!(even.iter().all(|time| (0.020..=0.030).contains(time)));
        assert!((mean(&even) - 0.025).abs() < 2e-4, "{}", mean(&even));
        let exponential = times(&["engine.pace=20ms", "engine.jitter=0.5", "engine.jitter_kind=exponential"]);
        assert!((mean(&exponential) - 0.030).abs() < 3e-4, "{}", mean(&exponential));
        // A share of 1/e is beyond the mean of the extension.
        let beyond = exponential.iter().filter(|time| **time > 0.030).count() as f64 / 10_000.0;
        assert!((beyond - (-1.0f64).exp()).abs() < 0.02, "{beyond}");
    }

    #[test]
    fn a_share_of_all_computations_straggles() {
        let stragglers = "engine.stragglers={ probability = 0.25, factor = 3.0 }";
        let times = times(&["engine.pace=20ms", stragglers]);
        let long = times.iter().filter(|time| **time == 0.060).count();
        assert_eq!(times.iter().filter(|time| **time == 0.020).count(), 10_000 - long);
        assert!((2350..2650).contains(&long), "{long}");
    }

    #[test]
    fn every_computation_has_draws_of_its_own() {
        let mut slowdown = slowdown(0, &["engine.jitter=1"]).unwrap();
        let turns = [0, 0, 1, 4, 4, 4].map(|step| slowdown.next_turn(step));
        assert_eq!(turns, [[0, 0], [0, 1], [1, 0], [4, 0], [4, 1], [4, 2]]);
    }
}
