//! AdaGrad: `s += g * g; w -= lr * g / (sqrt(s) + epsilon)` (Duchi, Hazan and Singer 2011).

use crate::kernel::tiny;

/// The sum of all squared gradients so far.
pub const SLOTS: [&str; 1] = ["sum_of_squares"];

/// One step over a share of the buffers; `correct` is what is done to each gradient first.
#[inline(always)]
pub fn update(
    lr: f32,
    epsilon: f32,
    parameters: &mut [f32],
    gradient: &[f32],
    sums: &mut [f32],
    correct: impl Fn(f32, f32) -> f32,
) {
    let len = parameters.len();
    assert!([gradient.len(), sums.len()] == [len; 2], "slices differ in length");
    for ((parameter, &gradient), sum) in parameters.iter_mut().zip(gradient).zip(sums) {
        let gradient = correct(gradient, *parameter);
        *sum += tiny::squarable(gradient) * tiny::squarable(gradient);
        *parameter -= lr * (gradient / (sum.sqrt() + epsilon));
    }
}
