//! What is done to the step's gradient before the rule sees it: penalties, clipping, weight decay.
//!
//! All of it happens to the whole gradient, once it is summed over the workers: a penalty counts once however many
//! workers there are, and what is clipped is the step the job asked for, not a worker's part of it. As the sum has the
//! same bits everywhere, so has the corrected gradient. In the order of application, for gradient `g` of parameter `w`:
//!
//! ```text
//! g += l1 * sign(w) + l2 * w                   penalties: they belong to the loss
//! g  = clamp(g, -value, value)                 clipping by value
//! g *= min(1, norm / length of all g)          clipping by norm
//! g += weight_decay * w                        the rule's own, in PyTorch's place: after clipping
//! ```
//!
//! Except for the length, which needs all of the gradient first, this costs no pass of its own: the rules correct each
//! element as they read it.

use super::norm;
use thalweg_core::JobSpec;

/// The numbers of the correction; the default leaves gradients alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Correction {
    /// Penalty on absolute values.
    pub l1: f32,
    /// Penalty on half the squares.
    pub l2: f32,
    /// Bound of each element.
    pub clip_value: Option<f32>,
    /// Bound of the length.
    pub clip_norm: Option<f32>,
    /// Weight decay of rules that add it to the gradient.
    pub weight_decay: f32,
}

/// The correction of one step, once the length is known: a function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settled {
    l1: f32,
    l2: f32,
    bound: f32,
    scale: f32,
    weight_decay: f32,
}

impl Correction {
    /// What a job asks for.
    pub fn of(job: &JobSpec) -> Correction {
        Correction {
            l1: job.train.l1 as f32,
            l2: job.train.l2 as f32,
            clip_value: job.clip.value.map(|bound| bound as f32),
            clip_norm: job.clip.norm.map(|bound| bound as f32),
            weight_decay: job.optimizer.coupled_decay(),
        }
    }

    /// What a share of the buffers adds to the square of the length that is clipped.
    pub fn squares(&self, parameters: &[f32], gradient: &[f32]) -> f64 {
        let bounded = Settled { weight_decay: 0.0, ..self.settle(0.0) };
        if bounded.is_idle() {
            return norm::squares(gradient);
        }
        norm::squares_of(gradient, parameters, move |gradient, parameter| {
            bounded.correct(gradient, parameter)
        })
    }

    /// The function of one element, given the squares of all shares (0 if the length is not clipped).
    pub fn settle(&self, squares: f64) -> Settled {
        let length = squares.sqrt();
        let scale = match self.clip_norm.map(f64::from) {
            Some(bound) if length > bound => (bound / length) as f32,
            _ => 1.0,
        };
        let bound = self.clip_value.unwrap_or(f32::INFINITY);
        Settled { l1: self.l1, l2: self.l2, bound, scale, weight_decay: self.weight_decay }
    }
}

impl Settled {
    /// Whether gradients stay as they are.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        *self == Correction::default().settle(0.0)
    }

    /// The gradient that the rule sees. What is not a number stays so: a fault is not clipped away.
    #[inline(always)]
    pub fn correct(&self, gradient: f32, parameter: f32) -> f32 {
        let sign = f32::from(parameter > 0.0) - f32::from(parameter < 0.0);
        let penalized = gradient + self.l1 * sign + self.l2 * parameter;
        let lowered = if penalized > self.bound { self.bound } else { penalized };
        let bounded = if lowered < -self.bound { -self.bound } else { lowered };
        bounded * self.scale + self.weight_decay * parameter
    }
}
