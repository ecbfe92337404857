//! Plain stochastic gradient descent: `w -= lr * g`.

/// It keeps no state.
pub const SLOTS: [&str; 0] = [];

/// One step over a share of the buffers; `correct` is what is done to each gradient first.
#[inline(always)]
pub fn update(lr: f32, parameters: &mut [f32], gradient: &[f32], correct: impl Fn(f32, f32) -> f32) {
    assert_eq!(parameters.len(), gradient.len(), "one gradient per parameter");
    for (parameter, &gradient) in parameters.iter_mut().zip(gradient) {
        *parameter -= lr * correct(gradient, *parameter);
    }
}
