//! Gradient descent with a moving direction: `v = momentum * v + g; w -= lr * v` (Polyak 1964).

/// The direction.
pub const SLOTS: [&str; 1] = ["velocity"];

/// One step over a share of the buffers.
pub fn update(lr: f32, momentum: f32, parameters: &mut [f32], gradient: &[f32], velocity: &mut [f32]) {
    assert!(
        parameters.len() == gradient.len() && parameters.len() == velocity.len(),
        "slices differ in length"
    );
    for ((parameter, gradient), velocity) in parameters.iter_mut().zip(gradient).zip(velocity) {
        *velocity = momentum * *velocity + gradient;
        *parameter -= lr * *velocity;
    }
}
