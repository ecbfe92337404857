//! Activations and their derivatives, in place.

use super::dispatch::dispatch;
use super::exponential::{exp, sigmoid, tanh};
use crate::activation::Activation;

/// Slope of leaky ReLU below 0.
const LEAKY_SLOPE: f32 = 0.01;
/// `sqrt(2 / pi)`.
const GELU_ROOT: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

dispatch! {
    pub fn forward(values: &mut [f32], activation: Activation) {
        match activation {
            Activation::None => {}
            // `x < 0.0`, not `x > 0.0`, so that NaN propagates.
            Activation::Relu => each(values, |x| if x < 0.0 { 0.0 } else { x }),
            Activation::Tanh => each(values, tanh),
            Activation::Sigmoid => each(values, sigmoid),
            Activation::LeakyRelu => each(values, |x| if x < 0.0 { LEAKY_SLOPE * x } else { x }),
            Activation::Elu => each(values, |x| if x < 0.0 { exp(x) - 1.0 } else { x }),
            Activation::Gelu => each(values, gelu),
            Activation::GeluErf => each(values, |x| x * normal_cdf(x)),
        }
    }
}

dispatch! {
    /// Multiplies the gradient of the results by the derivative, computed from the results (from the inputs where
    /// [`Activation::derivative_needs_input`]).
    pub fn backward(delta: &mut [f32], results: &[f32], activation: Activation) {
        match activation {
            Activation::None => {}
            Activation::Relu => scale(delta, results, |d, y| if y > 0.0 { d } else { 0.0 }),
            Activation::Tanh => scale(delta, results, |d, y| d * (1.0 - y * y)),
            Activation::Sigmoid => scale(delta, results, |d, y| d * (y * (1.0 - y))),
            Activation::LeakyRelu => scale(delta, results, |d, y| if y > 0.0 { d } else { LEAKY_SLOPE * d }),
            Activation::Elu => scale(delta, results, |d, y| if y > 0.0 { d } else { d * (y + 1.0) }),
            Activation::Gelu => scale(delta, results, |d, x| d * gelu_derivative(x)),
            Activation::GeluErf => scale(delta, results, |d, x| d * (normal_cdf(x) + x * normal_pdf(x))),
        }
    }
}

#[inline(always)]
fn each(values: &mut [f32], function: impl Fn(f32) -> f32) {
    for value in values {
        *value = function(*value);
    }
}

#[inline(always)]
fn scale(delta: &mut [f32], results: &[f32], function: impl Fn(f32, f32) -> f32) {
    for (delta, result) in delta.iter_mut().zip(results) {
        *delta = function(*delta, *result);
    }
}

/// GELU by the tanh approximation (Hendrycks and Gimpel 2016), written with a sigmoid of twice the argument.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * sigmoid(2.0 * GELU_ROOT * (x + GELU_CUBE * x * x * x))
}

/// The normal distribution function: Abramowitz and Stegun 7.1.26, error below 1e-7.
#[inline(always)]
fn normal_cdf(x: f32) -> f32 {
    let scaled = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * scaled);
    let mut sum = 1.061_405_4;
    sum = sum * t - 1.453_152;
    sum = sum * t + 1.421_413_8;
    sum = sum * t - 0.284_496_72;
    sum = sum * t + 0.254_829_6;
    let tail = 0.5 * sum * t * exp(-scaled * scaled);
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[inline(always)]
fn normal_pdf(x: f32) -> f32 {
    0.398_942_3 * exp(-0.5 * x * x)
}

#[inline(always)]
fn gelu_derivative(x: f32) -> f32 {
    let square = x * x;
    let gate = sigmoid(2.0 * GELU_ROOT * (x + GELU_CUBE * square * x));
    gate + x * gate * (1.0 - gate) * (2.0 * GELU_ROOT) * (1.0 + 3.0 * GELU_CUBE * square)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_stay_finite_and_nan_propagates() {
        for name in Activation::NAMES {
            let activation = Activation::from_name(name).unwrap();
            let mut values = [-1e30, 0.0, 1e30, f32::NAN];
            forward(&mut values, activation);
            assert!(values[..3].iter().all(|value| value.is_finite()), "{activation:?} {values:?}");
            assert!(values[3].is_nan(), "{activation:?}");
        }
    }

    #[test]
    fn gelu_by_the_error_function_is_accurate_to_1e_6() {
        // By mpmath: x * (1 + erf(x / sqrt(2))) / 2.
        let known =
            [(-3.0f32, -0.004_049_694f32), (-0.7, -0.169_374_56), (0.5, 0.345_731_23), (2.0, 1.954_499_7)];
        for (x, exact) in known {
            let mut values = [x];
            forward(&mut values, Activation::GeluErf);
            assert!((values[0] - exact).abs() < 1e-6, "{x}: {} for {exact}", values[0]);
        }
    }

    #[test]
    fn is_monotonic_is_right_for_every_activation() {
        for name in Activation::NAMES {
            let activation = Activation::from_name(name).unwrap();
            let mut values: Vec<f32> = (-600..=600).map(|step| step as f32 / 64.0).collect();
            forward(&mut values, activation);
            // Rounding may swap neighbours.
            let rises = values.windows(2).all(|pair| pair[1] >= pair[0] - 1e-6);
            assert_eq!(rises, activation.is_monotonic(), "{name}");
        }
    }

    #[test]
    fn known_values() {
        let mut values = [2.0, -2.0];
        forward(&mut values, Activation::Relu);
        assert_eq!(values, [2.0, 0.0]);
        let mut values = [0.0, 3f32.ln()];
        forward(&mut values, Activation::Sigmoid);
        assert!((values[0] - 0.5).abs() < 1e-7 && (values[1] - 0.75).abs() < 1e-6, "{values:?}");
    }
}
