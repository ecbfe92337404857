//! Gradient descent with a moving direction: `v = momentum * v + g; w -= lr * v` (Polyak 1964).

use crate::kernel::tiny;

/// The direction.
pub const SLOTS: [&str; 1] = ["velocity"];

/// One step over a share of the buffers; `correct` is what is done to each gradient first.
#[inline(always)]
pub fn update(
    lr: f32,
    momentum: f32,
    parameters: &mut [f32],
    gradient: &[f32],
    velocity: &mut [f32],
    correct: impl Fn(f32, f32) -> f32,
) {
    let len = parameters.len();
    assert!([gradient.len(), velocity.len()] == [len; 2], "slices differ in length");
    for ((parameter, &gradient), velocity) in parameters.iter_mut().zip(gradient).zip(velocity) {
        *velocity = tiny::kept(momentum * *velocity + correct(gradient, *parameter));
        *parameter -= lr * *velocity;
    }
}
