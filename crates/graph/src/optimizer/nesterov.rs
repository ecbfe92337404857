//! Momentum with a look ahead: `v = momentum * v + g; w -= lr * (g + momentum * v)` (Nesterov 1983, as PyTorch does it).

use crate::kernel::tiny;

pub use super::momentum::SLOTS;

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
        let gradient = correct(gradient, *parameter);
        *velocity = tiny::kept(momentum * *velocity + gradient);
        *parameter -= lr * (gradient + momentum * *velocity);
    }
}
