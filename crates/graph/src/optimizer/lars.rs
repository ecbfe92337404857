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
use crate::kernel::tiny;

/// The last step, rate included.
pub const SLOTS: [&str; 1] = ["last_step"];

/// The numbers of one step of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Learning rate.
    pub lr: f32,
    /// How much of the last step is kept.
    pub momentum: f32,
    /// Added to the gradient, times the parameter.
    pub weight_decay: f32,
    /// The share of the tensor's length that one step may change; nothing: the tensor takes plain steps without decay.
    pub trust: Option<f32>,
}

/// One step of a whole tensor; `correct` is what is done to each gradient first.
#[inline(always)]
pub fn update(
    step: &Step,
    parameters: &mut [f32],
    gradient: &[f32],
    last_step: &mut [f32],
    correct: impl Fn(f32, f32) -> f32 + Copy,
) {
    let len = parameters.len();
    assert!([gradient.len(), last_step.len()] == [len; 2], "slices differ in length");
    let (rate, decay) = match step.trust {
        None => (step.lr, 0.0),
        Some(trust) => {
            let length = norm::squares(parameters).sqrt();
            let slope = norm::squares_of(gradient, parameters, correct).sqrt();
            let whole = slope + f64::from(step.weight_decay) * length;
            let ratio = if length > 0.0 && whole > 0.0 { f64::from(trust) * length / whole } else { 1.0 };
            ((f64::from(step.lr) * ratio) as f32, step.weight_decay)
        }
    };
    let momentum = step.momentum;
    for ((parameter, &gradient), last) in parameters.iter_mut().zip(gradient).zip(last_step) {
        *last = tiny::kept(momentum * *last + rate * (correct(gradient, *parameter) + decay * *parameter));
        *parameter -= *last;
    }
}
