//! Adam with bias correction (Kingma and Ba 2015), epsilon added after the root, as in PyTorch; and AdamW, with
//! decoupled weight decay: `w = w * (1 - lr * decay) - adam` (Loshchilov and Hutter 2019).

use crate::kernel::flush_to_zero;

pub const SLOTS: [&str; 2] = ["first_moment", "second_moment"];

/// The coefficients of one step, the same for every element; computed in double precision.
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    /// `lr / (1 - beta1^t)`.
    rate: f32,
    /// `1 / sqrt(1 - beta2^t)`.
    root: f32,
    /// `1 - beta1`.
    first_share: f32,
    beta2: f32,
    /// `1 - beta2`.
    second_share: f32,
    epsilon: f32,
}

impl AdamStep {
    /// The coefficients of step `step`, counted from 1.
    pub fn new(lr: f32, beta1: f32, beta2: f32, epsilon: f32, step: u64) -> AdamStep {
        let bias_correction = |beta: f32| 1.0 - f64::from(beta).powf(step as f64);
        AdamStep {
            rate: (f64::from(lr) / bias_correction(beta1)) as f32,
            root: (1.0 / bias_correction(beta2).sqrt()) as f32,
            first_share: (1.0 - f64::from(beta1)) as f32,
            beta2,
            second_share: (1.0 - f64::from(beta2)) as f32,
            epsilon,
        }
    }

    #[inline(always)]
    pub(super) fn update_moments(&self, gradient: f32, first: &mut f32, second: &mut f32) {
        *first = flush_to_zero::flush(*first + self.first_share * (gradient - *first));
        let gradient = flush_to_zero::flush_before_square(gradient);
        *second =
            flush_to_zero::flush_square(self.beta2 * *second + self.second_share * (gradient * gradient));
    }

    /// The amount that the update subtracts from an element.
    #[inline(always)]
    pub(super) fn delta(&self, first: f32, second: f32) -> f32 {
        self.rate * (first / (second.sqrt() * self.root + self.epsilon))
    }
}

/// `1 - lr * weight_decay`, computed in double precision.
pub fn decay_factor(lr: f32, weight_decay: f32) -> f32 {
    (1.0 - f64::from(lr) * f64::from(weight_decay)) as f32
}

/// One step on a range of the buffers in one pass over memory, vectorised including root and division. `decay_factor`
/// multiplies each parameter (1 for Adam), `transform` transforms each gradient first.
#[inline(always)]
pub fn update(
    step: &AdamStep,
    decay_factor: f32,
    parameters: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    transform: impl Fn(f32, f32) -> f32,
) {
    let len = parameters.len();
    assert!([gradient.len(), first.len(), second.len()] == [len; 3], "slices differ in length");
    let step = *step;
    let moments = first.iter_mut().zip(second);
    for ((parameter, &gradient), (first, second)) in parameters.iter_mut().zip(gradient).zip(moments) {
        step.update_moments(transform(gradient, *parameter), first, second);
        *parameter = *parameter * decay_factor - step.delta(*first, *second);
    }
}
