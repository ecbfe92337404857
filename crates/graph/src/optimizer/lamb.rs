//! LAMB: Adam with a rate for each tensor (You et al. 2020).
//!
//! ```text
//! m, v and their bias correction as in Adam
//! r = m / (sqrt(v) + epsilon) + decay * w
//! w -= lr * |w| / |r| * r
//! ```
//!
//! The ratio is 1 where the paper's is undefined or would never let a tensor leave 0.

use super::adam::AdamStep;
use super::norm::{self, BLOCK};

pub use super::adam::SLOTS;

/// The coefficients of one step of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct LambStep {
    pub lr: f32,
    /// Adam's coefficients, at learning rate 1.
    pub moments: AdamStep,
    pub weight_decay: f32,
}

impl LambStep {
    #[inline(always)]
    fn direction(&self, parameter: f32, first: f32, second: f32) -> f32 {
        self.moments.delta(first, second) + self.weight_decay * parameter
    }

    /// Updates the moments and returns the squared norm of the direction. The direction is recomputed where it is
    /// needed, which is cheaper than a buffer for it.
    fn update_moments(
        &self,
        parameters: &[f32],
        gradient: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        transform: impl Fn(f32, f32) -> f32,
    ) -> f64 {
        let (step, mut scratch) = (*self, [0.0; BLOCK]);
        let values = parameters.chunks(BLOCK).zip(gradient.chunks(BLOCK));
        let moments = first.chunks_mut(BLOCK).zip(second.chunks_mut(BLOCK));
        let blocks = values.zip(moments).map(|((parameters, gradient), (first, second))| {
            let scratch = &mut scratch[..parameters.len()];
            let values = parameters.iter().zip(gradient);
            let moments = first.iter_mut().zip(second);
            for ((to, (&parameter, &gradient)), (first, second)) in
                scratch.iter_mut().zip(values).zip(moments)
            {
                step.moments.update_moments(transform(gradient, parameter), first, second);
                *to = step.direction(parameter, *first, *second);
            }
            norm::sum_of_squares(scratch)
        });
        blocks.sum()
    }
}

/// One step of a whole tensor; `transform` transforms each gradient first.
#[inline(always)]
pub fn update(
    step: &LambStep,
    parameters: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    transform: impl Fn(f32, f32) -> f32,
) {
    let len = parameters.len();
    assert!([gradient.len(), first.len(), second.len()] == [len; 3], "slices differ in length");
    let direction = step.update_moments(parameters, gradient, first, second, transform).sqrt();
    let length = norm::sum_of_squares(parameters).sqrt();
    let ratio = if length > 0.0 && direction > 0.0 { length / direction } else { 1.0 };
    let rate = (f64::from(step.lr) * ratio) as f32;
    let step = *step;
    for (parameter, (&first, &second)) in parameters.iter_mut().zip(first.iter().zip(&*second)) {
        *parameter -= rate * step.direction(*parameter, first, second);
    }
}
