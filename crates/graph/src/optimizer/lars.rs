//! LARS, layer-wise adaptive rate scaling: momentum with a rate for each tensor (You, Gitman and Ginsburg 2017).
//!
//! ```text
//! ratio = trust * |w| / (|g| + decay * |w|)
//! v = momentum * v + lr * ratio * (g + decay * w)
//! w -= v
//! ```
//!
//! The ratio is 1 where the paper's is undefined or would never let a tensor leave 0.

use super::norm;
use crate::kernel::flush_to_zero;

/// The last step includes the learning rate.
pub const SLOTS: [&str; 1] = ["last_step"];

/// The coefficients of one step of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct LarsStep {
    pub lr: f32,
    pub momentum: f32,
    pub weight_decay: f32,
    /// Trust coefficient: the fraction of the tensor's norm that one step may change. `None`: plain steps without
    /// decay.
    pub trust: Option<f32>,
}

/// One step of a whole tensor; `transform` transforms each gradient first.
#[inline(always)]
pub fn update(
    step: &LarsStep,
    parameters: &mut [f32],
    gradient: &[f32],
    last_step: &mut [f32],
    transform: impl Fn(f32, f32) -> f32 + Copy,
) {
    let len = parameters.len();
    assert!([gradient.len(), last_step.len()] == [len; 2], "slices differ in length");
    let (rate, decay) = match step.trust {
        None => (step.lr, 0.0),
        Some(trust) => {
            let weight_norm = norm::sum_of_squares(parameters).sqrt();
            let gradient_norm = norm::sum_of_squares_by(gradient, parameters, transform).sqrt();
            let denominator = gradient_norm + f64::from(step.weight_decay) * weight_norm;
            let ratio = if weight_norm > 0.0 && denominator > 0.0 {
                f64::from(trust) * weight_norm / denominator
            } else {
                1.0
            };
            ((f64::from(step.lr) * ratio) as f32, step.weight_decay)
        }
    };
    let momentum = step.momentum;
    for ((parameter, &gradient), last) in parameters.iter_mut().zip(gradient).zip(last_step) {
        *last = flush_to_zero::flush(
            momentum * *last + rate * (transform(gradient, *parameter) + decay * *parameter),
        );
        *parameter -= *last;
    }
}
