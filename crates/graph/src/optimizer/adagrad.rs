//! AdaGrad: `s += g * g; w -= lr * g / (sqrt(s) + epsilon)` (Duchi, Hazan and Singer 2011).

use crate::kernel::flush_to_zero;

pub const SLOTS: [&str; 1] = ["sum_of_squares"];

/// One step on a range of the buffers; `transform` transforms each gradient first.
#[inline(always)]
pub fn update(
    lr: f32,
    epsilon: f32,
    parameters: &mut [f32],
    gradient: &[f32],
    sums: &mut [f32],
    transform: impl Fn(f32, f32) -> f32,
) {
    let len = parameters.len();
    assert!([gradient.len(), sums.len()] == [len; 2], "slices differ in length");
    for ((parameter, &gradient), sum) in parameters.iter_mut().zip(gradient).zip(sums) {
        let gradient = transform(gradient, *parameter);
        *sum += flush_to_zero::flush_before_square(gradient) * flush_to_zero::flush_before_square(gradient);
        *parameter -= lr * (gradient / (sum.sqrt() + epsilon));
    }
}
