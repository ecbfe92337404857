//! Plain stochastic gradient descent: `w -= lr * g`.

pub const SLOTS: [&str; 0] = [];

/// One step on a range of the buffers; `transform` transforms each gradient first.
#[inline(always)]
pub fn update(lr: f32, parameters: &mut [f32], gradient: &[f32], transform: impl Fn(f32, f32) -> f32) {
    assert_eq!(parameters.len(), gradient.len(), "one gradient per parameter");
    for (parameter, &gradient) in parameters.iter_mut().zip(gradient) {
        *parameter -= lr * transform(gradient, *parameter);
    }
}
