//! Gradient transformations before the update rule: penalties, clipping, weight decay.
//!
//! They apply to the gradient summed over all workers: a penalty counts once for any number of workers, and clipping
//! bounds the gradient of the global batch, not a worker's part. The sum has the same bits on every rank, and so has
//! the transformed gradient. In order of application, for gradient `g` of parameter `w`:
//!
//! ```text
//! g += l1 * sign(w) + l2 * w                   penalties, part of the loss
//! g  = clamp(g, -value, value)                 clipping by value
//! g *= min(1, bound / norm of all g)           clipping by norm
//! g += weight_decay * w                        coupled decay, after clipping as in PyTorch
//! ```
//!
//! Only the norm needs its own pass over the gradient; the rules transform each element as they read it.

use super::norm;
use thalweg_core::JobSpec;

/// The default leaves gradients unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GradientTransform {
    /// Penalty on absolute values.
    pub l1: f32,
    /// Penalty on half the squares.
    pub l2: f32,
    pub clip_value: Option<f32>,
    /// Bound of the L2 norm.
    pub clip_norm: Option<f32>,
    /// Weight decay of rules that add it to the gradient.
    pub weight_decay: f32,
}

/// The transformation of one step, with the norm known: a function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementTransform {
    l1: f32,
    l2: f32,
    bound: f32,
    scale: f32,
    weight_decay: f32,
}

impl GradientTransform {
    pub fn of(job: &JobSpec) -> GradientTransform {
        GradientTransform {
            l1: job.train.l1 as f32,
            l2: job.train.l2 as f32,
            clip_value: job.clip.value.map(|bound| bound as f32),
            clip_norm: job.clip.norm.map(|bound| bound as f32),
            weight_decay: job.optimizer.coupled_decay(),
        }
    }

    /// The contribution of a range of the buffers to the square of the clipped norm.
    pub fn sum_of_squares(&self, parameters: &[f32], gradient: &[f32]) -> f64 {
        let bounded = ElementTransform { weight_decay: 0.0, ..self.element_transform(0.0) };
        if bounded.is_identity() {
            return norm::sum_of_squares(gradient);
        }
        norm::sum_of_squares_by(gradient, parameters, move |gradient, parameter| {
            bounded.apply(gradient, parameter)
        })
    }

    /// The function of one element, given the sum of squares over all ranges (0 if the norm is not clipped).
    pub fn element_transform(&self, squares: f64) -> ElementTransform {
        let length = squares.sqrt();
        let scale = match self.clip_norm.map(f64::from) {
            Some(bound) if length > bound => (bound / length) as f32,
            _ => 1.0,
        };
        let bound = self.clip_value.unwrap_or(f32::INFINITY);
        ElementTransform { l1: self.l1, l2: self.l2, bound, scale, weight_decay: self.weight_decay }
    }
}

impl ElementTransform {
    #[inline(always)]
    pub fn is_identity(&self) -> bool {
        *self == GradientTransform::default().element_transform(0.0)
    }

    /// The gradient that the rule reads. NaN stays NaN: clipping must not hide a fault.
    #[inline(always)]
    pub fn apply(&self, gradient: f32, parameter: f32) -> f32 {
        let sign = f32::from(parameter > 0.0) - f32::from(parameter < 0.0);
        let penalized = gradient + self.l1 * sign + self.l2 * parameter;
        let lowered = if penalized > self.bound { self.bound } else { penalized };
        let bounded = if lowered < -self.bound { -self.bound } else { lowered };
        bounded * self.scale + self.weight_decay * parameter
    }
}
