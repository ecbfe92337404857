//! When the published model is evaluated between the ends of epochs: after the step with which the rows of the job pass a
//! multiple of `train.evaluate_every`.

use super::local_rows::{rows_at, step_at};
use thalweg_core::JobSpec;

/// The steps after which evaluations are due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluations {
    /// In rows.
    every: Option<u64>,
    /// Rows of an epoch and of a step.
    sizes: (u64, u64),
}

impl Evaluations {
    /// Of a job with so many training rows.
    pub(crate) fn new(job: &JobSpec, rows: u64) -> Evaluations {
        let sizes = (rows.max(1), job.train.global_batch.max(1) as u64);
        Evaluations { every: job.train.evaluate_every, sizes }
    }

    /// The rows of the job after so many steps.
    pub(crate) fn rows_at(&self, step: u64) -> u64 {
        rows_at(step, self.sizes)
    }

    /// Whether one is due after `next` steps, if a unit began after `before` steps.
    pub(crate) fn are_due(&self, before: u64, next: u64) -> bool {
        self.every.is_some_and(|every| self.rows_at(before) / every != self.rows_at(next) / every)
    }

    /// The first step after `step` at which one is due.
    pub(crate) fn next(&self, step: u64) -> u64 {
        let Some(every) = self.every else { return u64::MAX };
        let rows = (self.rows_at(step) / every + 1).saturating_mul(every);
        let reached = step_at(rows, self.sizes);
        if self.rows_at(reached) < rows { reached + 1 } else { reached }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_follow_the_rows() {
        // Epochs of 20 rows have steps of 6, 6, 6 and 2.
        let of = |every| Evaluations { every, sizes: (20, 6) };
        for every in [1, 3, 6, 7, 15, 20, 45, 1000] {
            let evaluations = of(Some(every));
            let due: Vec<u64> = (0..40).filter(|step| evaluations.are_due(*step, step + 1)).collect();
            let (mut next, mut listed) = (0, Vec::new());
            while evaluations.next(next) <= 40 {
                next = evaluations.next(next);
                listed.push(next - 1);
            }
            assert_eq!(due, listed, "{every}");
        }
        assert_eq!([0, 1, 2, 3].map(|step| of(Some(15)).next(step)), [3, 3, 3, 6]);
        assert!(of(Some(15)).are_due(0, 9), "a unit of several steps");
        assert_eq!((of(None).next(5), of(None).are_due(0, 100)), (u64::MAX, false));
    }
}
