//! The rate at which a worker moves towards another model in elastic averaging.
//!
//! ```text
//! fixed:      alpha
//! adaptive:   alpha_t = alpha * |d_t| / u_t, at least beta and at most 1/2         d_t: the difference of this merge
//!             u_1 = |d_1|,   u_t+1 = 0.9 * u_t + 0.1 * |d_t|                      u_t: the usual norm
//! ```
//!
//! A worker that has drifted farther than usual is pulled back harder; one that is near explores. Between beta and 1/2 the
//! merge is stable (Langer et al., equation 1).

use thalweg_core::JobSpec;

/// The weight of the last merge in the usual norm.
const LAST: f64 = 0.1;

/// What a worker knows of its earlier merges.
#[derive(Clone, Copy, Debug, Default)]
pub struct ElasticRate {
    usual: Option<f64>,
}

impl ElasticRate {
    /// The rate of a merge with these differences, if it is `alpha` usually.
    pub fn of(&mut self, job: &JobSpec, alpha: f64, differences: impl Iterator<Item = f32>) -> f32 {
        if !job.merge.adaptive_alpha {
            return alpha as f32;
        }
        let norm = differences.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        let usual = self.usual.unwrap_or(norm);
        self.usual = Some((1.0 - LAST) * usual + LAST * norm);
        let ratio = if usual > 0.0 { norm / usual } else { 1.0 };
        let least = job.merge.beta.or(alpha).min(0.5);
        (alpha * ratio).clamp(least, 0.5) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::spec::setting::Auto;

    #[test]
    fn a_worker_that_drifts_is_pulled_harder() {
        let mut job = JobSpec::default();
        let mut rate = ElasticRate::default();
        assert_eq!(rate.of(&job, 0.2, [8.0].into_iter()), 0.2);
        (job.merge.adaptive_alpha, job.merge.beta) = (true, Auto::Is(0.1));
        assert_eq!(rate.of(&job, 0.2, [3.0, 4.0].into_iter()), 0.2);
        assert_eq!(rate.of(&job, 0.2, [10.0].into_iter()), 0.4);
        // 0.9 * 5 + 0.1 * 10 is usual now.
        assert_eq!(rate.of(&job, 0.2, [1.0].into_iter()), 0.1);
        assert_eq!(rate.of(&job, 0.2, [100.0].into_iter()), 0.5);
        assert_eq!(ElasticRate::default().of(&job, 0.2, [0.0].into_iter()), 0.2);
    }
}
