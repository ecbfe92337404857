//! How many local steps workers take between two merges: as many as the job says, or fewer as the loss falls (Wang and Joshi
//! 2018, AdaComm). Pure.
//!
//! ```text
//! epoch 0:      tau_0 = merge.every
//! epoch e:      tau_e = ceil(tau_0 * sqrt(F_(e-1) / F_0)), at most tau_(e-1)      F_e: mean training loss of the epoch
//! ```
//!
//! Long rounds make fast progress at first; later the distance of the workers limits what they reach.

use serde::{Deserialize, Serialize};
use thalweg_core::JobSpec;

/// The same on all ranks: they know the same losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MergeInterval {
    /// The loss of the first epoch; 0 before its end.
    first: f64,
    /// Local steps between two merges since the last epoch; 0 before the end of the first.
    steps: u64,
}

impl MergeInterval {
    /// Of a checkpoint.
    pub(crate) fn restored((first, steps): (f64, u64)) -> MergeInterval {
        MergeInterval { first, steps }
    }

    pub(crate) fn parts(self) -> (f64, u64) {
        (self.first, self.steps)
    }

    /// Local steps between two merges now. A checkpoint may come from a job that adapted them.
    pub(crate) fn of(self, job: &JobSpec) -> u64 {
        let every = job.merge.every as u64;
        if job.merge.adaptive_every { self.steps(every) } else { every.max(1) }
    }

    /// The same in a job that begins with `every`.
    fn steps(self, every: u64) -> u64 {
        if self.steps == 0 { every.max(1) } else { self.steps.min(every.max(1)) }
    }

    /// An epoch with that mean loss has ended.
    pub(crate) fn close_epoch(&mut self, every: u64, loss: f64) {
        if !(loss > 0.0 && loss.is_finite()) {
            return;
        }
        let before = self.steps(every);
        if self.first == 0.0 {
            self.first = loss;
        }
        let shrunk = (every as f64 * (loss / self.first).sqrt()).ceil() as u64;
        self.steps = shrunk.clamp(1, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_shrink_with_the_square_root_of_the_loss_and_never_grow() {
        let mut interval = MergeInterval::default();
        assert_eq!(interval.steps(16), 16);
        let mut after = |loss| {
            interval.close_epoch(16, loss);
            interval.steps(16)
        };
        assert_eq!([2.0, 1.0, 0.5, 0.9, 0.125].map(&mut after), [16, 12, 8, 8, 4]);
        // A loss that is no number says nothing, and one of 0 needs no more steps.
        assert_eq!([f64::NAN, f64::INFINITY, 0.0, 1e-9].map(after), [4, 4, 4, 1]);
        assert_eq!(MergeInterval::restored(interval.parts()), interval);
        assert_eq!(interval.steps(16), 1);
    }
}
