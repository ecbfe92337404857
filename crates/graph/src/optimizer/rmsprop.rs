//! RMSProp: `v = beta2 * v + (1 - beta2) * g * g; w -= lr * g / (sqrt(v) + epsilon)` (Tieleman and Hinton 2012).

use crate::kernel::flush_to_zero;

pub const SLOTS: [&str; 1] = ["mean_of_squares"];

/// One step on a range of the buffers; `transform` transforms each gradient first.
#[inline(always)]
pub fn update(
    lr: f32,
    beta2: f32,
    epsilon: f32,
    parameters: &mut [f32],
    gradient: &[f32],
    means: &mut [f32],
    transform: impl Fn(f32, f32) -> f32,
) {
    let len = parameters.len();
    assert!([gradient.len(), means.len()] == [len; 2], "slices differ in length");
    let weight = (1.0 - f64::from(beta2)) as f32;
    for ((parameter, &gradient), mean) in parameters.iter_mut().zip(gradient).zip(means) {
        let gradient = transform(gradient, *parameter);
        let square =
            flush_to_zero::flush_before_square(gradient) * flush_to_zero::flush_before_square(gradient);
        *mean = flush_to_zero::flush_square(beta2 * *mean + weight * square);
        *parameter -= lr * (gradient / (mean.sqrt() + epsilon));
    }
}
