//! `exp`, `tanh` and `sigmoid` in branch-free arithmetic, so that loops over them vectorize. Accurate to a few units
//! in the last place; NaN propagates.

/// `exp(x)` as a power of two times a polynomial of degree 6. 0 below -87.3; infinite above 88.7.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // ln(2) in two parts; the first has few significant bits, so that its multiples are exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > 88.72 { 88.72 } else { x };
    let clamped = if clamped < -87.33 { -87.33 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = clamped - power * LN2_HIGH - power * LN2_LOW;
    let square = rest * rest;
    let mut sum = 1.987_569_1e-4;
    sum = sum * rest + 1.398_2e-3;
    sum = sum * rest + 8.333_452e-3;
    sum = sum * rest + 4.166_579_6e-2;
    sum = sum * rest + 0.166_666_65;
    sum = sum * rest + 0.5;
    let value = sum * square + rest + 1.0;
    // Two factors of half the power stay in range at either end.
    let exponent = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    let half = exponent >> 1;
    let factor = |power: i32| f32::from_bits(((power + 127) << 23) as u32);
    let result = value * factor(half) * factor(exponent - half);
    let result = if x > 88.722_84 { f32::INFINITY } else { result };
    if x < -87.336_55 { 0.0 } else { result }
}

/// The hyperbolic tangent: an odd polynomial near 0, where `exp` would cancel, and `1 - 2 / (exp(2x) + 1)` beyond.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let size = x.abs();
    let square = x * x;
    let mut sum = -5.704_988_7e-3;
    sum = sum * square + 2.063_909e-2;
    sum = sum * square - 5.373_971e-2;
    sum = sum * square + 0.133_314_42;
    sum = sum * square - 0.333_332_8;
    let near = x + x * square * sum;
    let capped = if size > 9.1 { 9.1 } else { size };
    let far = 1.0 - 2.0 / (exp(2.0 * capped) + 1.0);
    let far = if x < 0.0 { -far } else { far };
    if size < 0.625 {
        near
    } else if x.is_nan() {
        x
    } else {
        far
    }
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error over a range, in units in the last place.
    fn max_error(range: std::ops::Range<f32>, got: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        let steps = 200_000;
        let error = |index: i32| {
            let x = range.start + (range.end - range.start) * index as f32 / steps as f32;
            let (got, exact) = (f64::from(got(x)), exact(f64::from(x)));
            let unit = f64::from((exact as f32).abs().max(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON);
            (got - exact).abs() / unit
        };
        (0..=steps).map(error).fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_a_few_units_in_the_last_place() {
        let sigmoid_exact = |x: f64| 1.0 / (1.0 + (-x).exp());
        let found = [
            max_error(-87.0..88.7, exp, f64::exp),
            max_error(-1.0..1.0, exp, f64::exp),
            max_error(-10.0..10.0, tanh, f64::tanh),
            max_error(-0.7..0.7, tanh, f64::tanh),
            max_error(-80.0..20.0, sigmoid, sigmoid_exact),
        ];
        assert!(found.iter().all(|error| *error < 4.0), "{found:?}");
    }

    #[test]
    fn extreme_arguments_give_the_limits() {
        assert_eq!((exp(0.0), exp(-1e30), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(exp(1e30).is_infinite() && exp(f32::NAN).is_nan());
        assert_eq!((tanh(0.0), tanh(1e30), tanh(-1e30)), (0.0, 1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        assert_eq!((sigmoid(1e30), sigmoid(-1e30), sigmoid(0.0)), (1.0, 0.0, 0.5));
    }
}
