//! Bias and activation in one pass after the product, and the way back.

use crate::activation::Activation;

/// Adds the bias to every row and applies the activation, in place.
pub fn forward(values: &mut [f32], bias: &[f32], activation: Activation) {
    match activation {
        Activation::None => each(values, bias, |x| x),
        // Asked this way round, a number that is not one stays visible.
        Activation::Relu => each(values, bias, |x| if x < 0.0 { 0.0 } else { x }),
        Activation::Tanh => each(values, bias, f32::tanh),
        Activation::Sigmoid => each(values, bias, sigmoid),
    }
}

/// Multiplies the gradient of the activation's results by its slope, told from the results.
pub fn backward(delta: &mut [f32], results: &[f32], activation: Activation) {
    match activation {
        Activation::None => {}
        Activation::Relu => scale(delta, results, |d, y| if y > 0.0 { d } else { 0.0 }),
        Activation::Tanh => scale(delta, results, |d, y| d * (1.0 - y * y)),
        Activation::Sigmoid => scale(delta, results, |d, y| d * (y * (1.0 - y))),
    }
}

#[inline(always)]
fn each(values: &mut [f32], bias: &[f32], function: impl Fn(f32) -> f32) {
    for row in values.chunks_exact_mut(bias.len()) {
        for (value, bias) in row.iter_mut().zip(bias) {
            *value = function(*value + bias);
        }
    }
}

#[inline(always)]
fn scale(delta: &mut [f32], results: &[f32], function: impl Fn(f32, f32) -> f32) {
    for (delta, result) in delta.iter_mut().zip(results) {
        *delta = function(*delta, *result);
    }
}

/// Without overflow on either side: `exp` only sees numbers that are not positive.
fn sigmoid(x: f32) -> f32 {
    let small = (-x.abs()).exp();
    let share = 1.0 / (1.0 + small);
    if x >= 0.0 { share } else { small * share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_stay_finite_and_nan_stays_visible() {
        let bias = [0.0; 4];
        for activation in [Activation::Relu, Activation::Tanh, Activation::Sigmoid] {
            let mut values = [-1e30, 0.0, 1e30, f32::NAN];
            forward(&mut values, &bias, activation);
            assert!(values[..3].iter().all(|value| value.is_finite()), "{activation:?} {values:?}");
            assert!(values[3].is_nan(), "{activation:?}");
        }
    }

    #[test]
    fn known_values() {
        let mut values = [1.0, -3.0];
        forward(&mut values, &[1.0, 1.0], Activation::Relu);
        assert_eq!(values, [2.0, 0.0]);
        let mut values = [0.0, 3f32.ln()];
        forward(&mut values, &[0.0, 0.0], Activation::Sigmoid);
        assert!((values[0] - 0.5).abs() < 1e-7 && (values[1] - 0.75).abs() < 1e-6, "{values:?}");
    }
}
