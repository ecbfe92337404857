//! Gradient descent with momentum: `v = momentum * v + g; w -= lr * v` (Polyak 1964).

use crate::kernel::flush_to_zero;

pub const SLOTS: [&str; 1] = ["velocity"];

/// One step on a range of the buffers; `transform` transforms each gradient first.
#[inline(always)]
pub fn update(
    lr: f32,
    momentum: f32,
    parameters: &mut [f32],
    gradient: &[f32],
    velocity: &mut [f32],
    transform: impl Fn(f32, f32) -> f32,
) {
    let len = parameters.len();
    assert!([gradient.len(), velocity.len()] == [len; 2], "slices differ in length");
    for ((parameter, &gradient), velocity) in parameters.iter_mut().zip(gradient).zip(velocity) {
        *velocity = flush_to_zero::flush(momentum * *velocity + transform(gradient, *parameter));
        *parameter -= lr * *velocity;
    }
}
