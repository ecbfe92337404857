//! The rows of a step that are computed, if a job samples them: a function of seed and step.

use thalweg_core::JobSpec;
use thalweg_core::rng::Rng;

pub(super) struct Sample {
    share: f64,
    seed: u64,
    rows: Vec<u64>,
}

impl Sample {
    pub(super) fn new(job: &JobSpec) -> Sample {
        Sample { share: job.train.sample, seed: job.train.seed, rows: Vec::new() }
    }

    pub(super) fn is_all(&self) -> bool {
        self.share >= 1.0
    }

    /// The rows of a step that are computed, and those that are dropped: at least one is computed.
    pub(super) fn of<'a>(&'a mut self, step: u64, rows: &'a [u64]) -> (&'a [u64], &'a [u64]) {
        if self.is_all() {
            return (rows, &[]);
        }
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        Rng::keyed(self.seed, "sample", &[step]).shuffle(&mut self.rows);
        // 7% of 100 rows are 7, though the product is a little more.
        let count = (rows.len() as f64 * self.share - 1e-9).ceil().max(1.0) as usize;
        self.rows.split_at(count.min(rows.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_divided_by_seed_and_step() {
        let rows: Vec<u64> = (100..110).collect();
        let mut job = JobSpec::default();
        job.train.sample = 0.25;
        let mut sample = Sample::new(&job);
        let (mut computed, mut dropped) = (Vec::new(), Vec::new());
        for step in 0..200 {
            let (these, others) = sample.of(step, &rows);
            assert_eq!((these.len(), others.len()), (3, 7));
            let mut all = [these, others].concat();
            all.sort_unstable();
            assert_eq!(all, rows);
            computed.push(these.to_vec());
            dropped.extend_from_slice(others);
        }
        assert_eq!(sample.of(7, &rows).0, computed[7], "the same at any time");
        assert_ne!(computed[7], computed[8]);
        // Every row is drawn in about three of ten steps.
        for row in rows {
            let drawn = 200 - dropped.iter().filter(|other| **other == row).count();
            assert!((35..90).contains(&drawn), "row {row} in {drawn} of 200 steps");
        }
    }

    #[test]
    fn a_share_is_exact() {
        let rows: Vec<u64> = (0..100).collect();
        for (share, count) in [(0.07, 7), (0.14, 14), (0.55, 55), (0.001, 1), (0.071, 8), (0.999, 100)] {
            let mut job = JobSpec::default();
            job.train.sample = share;
            assert_eq!(Sample::new(&job).of(0, &rows).0.len(), count, "{share}");
        }
    }

    #[test]
    fn without_a_share_the_order_of_rows_stays() {
        assert_eq!(Sample::new(&JobSpec::default()).of(3, &[5, 2, 9]), (&[5, 2, 9][..], &[][..]));
    }
}
