//! RMSProp: `v = beta2 * v + (1 - beta2) * g * g; w -= lr * g / (sqrt(v) + epsilon)` (Tieleman and Hinton 2012).

use crate::kernel::tiny;

/// The decaying mean of the squared gradient.
pub const SLOTS: [&str; 1] = ["mean_of_squares"];

/// One step over a share of the buffers; `correct` is what is done to each gradient first.
#[inline(always)]
pub fn update(
    lr: f32,
    beta2: f32,
    epsilon: f32,
    parameters: &mut [f32],
    gradient: &[f32],
    means: &mut [f32],
    correct: impl Fn(f32, f32) -> f32,
) {
    let len = parameters.len();
    assert!([gradient.len(), means.len()] == [len; 2], "slices differ in length");
    let share = (1.0 - f64::from(beta2)) as f32;
    for ((parameter, &gradient), mean) in parameters.iter_mut().zip(gradient).zip(means) {
        let gradient = correct(gradient, *parameter);
        let square = tiny::squarable(gradient) * tiny::squarable(gradient);
        *mean = tiny::kept_square(beta2 * *mean + share * square);
        *parameter -= lr * (gradient / (mean.sqrt() + epsilon));
    }
}
