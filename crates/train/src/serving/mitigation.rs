//! Mitigation of stale updates that a server applies as they arrive (Langer et al., section 3.3.3). Pure.

use crate::envelope::Values;
use std::collections::BTreeMap;
use thalweg_core::JobSpec;
use thalweg_core::spec::mitigation::UpdateRate;
use thalweg_graph::optimizer::Moment;

/// What is done, and what it needs to know of the workers.
pub struct Mitigation {
    rate: UpdateRate,
    /// Of delay compensation; 0 is none.
    lambda: f32,
    /// With delay compensation: by member, the parameters that it has read.
    read: BTreeMap<usize, Vec<f32>>,
    /// One worker computes the steps before this one alone.
    pub warm_start: u64,
}

impl Mitigation {
    pub fn of(job: &JobSpec) -> Mitigation {
        let lambda = job.mitigation.delay_compensation as f32;
        let (rate, warm_start) = (job.mitigation.learning_rate, job.mitigation.warm_start);
        Mitigation { rate, lambda, read: BTreeMap::new(), warm_start }
    }

    /// Whether it has to know what each worker has read.
    pub fn needs_what_was_read(&self) -> bool {
        self.lambda != 0.0
    }

    /// Parameters are sent to a worker.
    pub fn note_sent(&mut self, member: usize, parameters: &[f32]) {
        if self.needs_what_was_read() && !parameters.is_empty() {
            let copy = self.read.entry(member).or_default();
            copy.clear();
            copy.extend_from_slice(parameters);
        }
    }

    /// The moment of an update that so many others have overtaken.
    pub fn moment(&self, moment: Moment, staleness: u64) -> Moment {
        match self.rate {
            UpdateRate::Constant => moment,
            UpdateRate::Staleness => Moment { rate: moment.rate / staleness.max(1) as f32, ..moment },
        }
    }

    /// Delay compensation: the gradient as it would be at the parameters `now`, with g * g for the curvature. A gradient of
    /// the `share` of a step is that part of g. None if there is nothing to compensate.
    pub fn compensate(
        &self,
        member: usize,
        gradient: Values<'_>,
        now: &[f32],
        share: f32,
    ) -> Option<Vec<f32>> {
        let then = self.read.get(&member)?;
        let lambda = self.lambda / share;
        let moved = now.iter().zip(then).map(|(now, then)| now - then);
        Some(gradient.iter().zip(moved).map(|(g, moved)| g + lambda * g * g * moved).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mitigation(rate: UpdateRate, lambda: f32) -> Mitigation {
        Mitigation { rate, lambda, read: BTreeMap::new(), warm_start: 0 }
    }

    #[test]
    fn the_rate_is_divided_by_the_staleness() {
        let moment = Moment { updates: 7, rate: 0.5 };
        let rates = [0, 1, 2, 5].map(|age| mitigation(UpdateRate::Staleness, 0.0).moment(moment, age).rate);
        assert_eq!(rates, [0.5, 0.5, 0.25, 0.1]);
        assert_eq!(mitigation(UpdateRate::Constant, 0.0).moment(moment, 5), moment);
    }

    /// Of f(w) = (w - 1)^2 / 2 whose curvature is 1, g * g * lambda is exact where |g| = 1 / sqrt(lambda).
    #[test]
    fn a_compensated_gradient_is_that_of_the_present() {
        let mut mitigation = mitigation(UpdateRate::Constant, 4.0);
        mitigation.note_sent(3, &[1.5]);
        let (then, now) = (0.5, 0.3);
        for share in [1.0, 0.25] {
            let pushed = [then * share];
            let gradient = mitigation.compensate(3, Values::of(&pushed), &[1.0 + now], share).unwrap();
            assert!((gradient[0] - now * share).abs() < 1e-6, "{gradient:?}");
        }
        assert_eq!(mitigation.compensate(4, Values::of(&[]), &[], 1.0), None, "nothing is known of it");
    }
}
