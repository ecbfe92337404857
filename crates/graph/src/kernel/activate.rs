//! Activations and their slopes.

use super::dispatch::dispatch;
use super::exponential::{exp, sigmoid, tanh};
use crate::activation::Activation;

/// The slope of a leaky ReLU below 0.
const LEAK: f32 = 0.01;
/// `sqrt(2 / pi)`.
const GELU_ROOT: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

dispatch! {
    /// Applies an activation in place.
    pub fn forward(values: &mut [f32], activation: Activation) {
        match activation {
            Activation::None => {}
            // Asked this way round, a number that is not one stays visible.
            Activation::Relu => each(values, |x| if x < 0.0 { 0.0 } else { x }),
            Activation::Tanh => each(values, tanh),
            Activation::Sigmoid => each(values, sigmoid),
            Activation::LeakyRelu => each(values, |x| if x < 0.0 { LEAK * x } else { x }),
            Activation::Elu => each(values, |x| if x < 0.0 { exp(x) - 1.0 } else { x }),
            Activation::Gelu => each(values, gelu),
            Activation::GeluErf => each(values, |x| x * share_below(x)),
        }
    }
}

dispatch! {
    /// Multiplies the gradient of the activation's results by its slope, told from the results
    /// (or from what it took, see [`Activation::slope_needs_input`]).
    pub fn slope(delta: &mut [f32], results: &[f32], activation: Activation) {
        match activation {
            Activation::None => {}
            Activation::Relu => scale(delta, results, |d, y| if y > 0.0 { d } else { 0.0 }),
            Activation::Tanh => scale(delta, results, |d, y| d * (1.0 - y * y)),
            Activation::Sigmoid => scale(delta, results, |d, y| d * (y * (1.0 - y))),
            Activation::LeakyRelu => scale(delta, results, |d, y| if y > 0.0 { d } else { LEAK * d }),
            Activation::Elu => scale(delta, results, |d, y| if y > 0.0 { d } else { d * (y + 1.0) }),
            Activation::Gelu => scale(delta, results, |d, x| d * gelu_slope(x)),
            Activation::GeluErf => scale(delta, results, |d, x| d * (share_below(x) + x * density(x))),
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

/// `x` times about the share of a normal distribution below it (Hendrycks and Gimpel 2016, the formula with tanh, which
/// is a sigmoid of twice the argument).
#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * sigmoid(2.0 * GELU_ROOT * (x + GELU_CUBE * x * x * x))
}

/// The share of a normal distribution below `x`: Abramowitz and Stegun 7.1.26, off by at most 1e-7.
#[inline(always)]
fn share_below(x: f32) -> f32 {
    let size = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * size);
    let mut sum = 1.061_405_4;
    sum = sum * t - 1.453_152;
    sum = sum * t + 1.421_413_8;
    sum = sum * t - 0.284_496_72;
    sum = sum * t + 0.254_829_6;
    let beyond = 0.5 * sum * t * exp(-size * size);
    if x < 0.0 { beyond } else { 1.0 - beyond }
}

/// The density of a normal distribution at `x`.
#[inline(always)]
fn density(x: f32) -> f32 {
    0.398_942_3 * exp(-0.5 * x * x)
}

/// The slope of [`gelu`] at `x`.
#[inline(always)]
fn gelu_slope(x: f32) -> f32 {
    let square = x * x;
    let share = sigmoid(2.0 * GELU_ROOT * (x + GELU_CUBE * square * x));
    share + x * share * (1.0 - share) * (2.0 * GELU_ROOT) * (1.0 + 3.0 * GELU_CUBE * square)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_stay_finite_and_nan_stays_visible() {
        for name in Activation::NAMES {
            let activation = Activation::named(name).unwrap();
            let mut values = [-1e30, 0.0, 1e30, f32::NAN];
            forward(&mut values, activation);
            assert!(values[..3].iter().all(|value| value.is_finite()), "{activation:?} {values:?}");
            assert!(values[3].is_nan(), "{activation:?}");
        }
    }

    #[test]
    fn the_error_function_is_known_to_seven_digits() {
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
    fn what_keeps_order_does_and_what_does_not_falls_somewhere() {
        for name in Activation::NAMES {
            let activation = Activation::named(name).unwrap();
            let mut values: Vec<f32> = (-600..=600).map(|step| step as f32 / 64.0).collect();
            forward(&mut values, activation);
            // Rounding may exchange neighbours.
            let rises = values.windows(2).all(|pair| pair[1] >= pair[0] - 1e-6);
            assert_eq!(rises, activation.keeps_order(), "{name}");
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
