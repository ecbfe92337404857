//! Nesterov momentum: `v = momentum * v + g; w -= lr * (g + momentum * v)` (Nesterov 1983, in PyTorch's form).

use crate::kernel::flush_to_zero;

pub use super::momentum::SLOTS;

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
        let gradient = transform(gradient, *parameter);
        *velocity = flush_to_zero::flush(momentum * *velocity + gradient);
        *parameter -= lr * (gradient + momentum * *velocity);
    }
}
