//! Numbers too small to matter are nothing.
//!
//! Next to 0, below 1.2e-38, a processor computes with floats a hundred times more slowly. Training gets there by itself:
//! the moments of a gradient that has died away halve and halve and never reach 0, and the square of a small gradient
//! falls below at once. So what is kept from step to step, and what is squared, is cut off where it has long ceased to
//! move a parameter. What is not a number stays so.

/// A number as it is kept, or handed on to products.
#[inline(always)]
pub fn kept(value: f32) -> f32 {
    or_nothing(value, 1e-30)
}

/// A mean of squares as it is kept.
#[inline(always)]
pub fn kept_square(value: f32) -> f32 {
    or_nothing(value, 1e-36)
}

/// A number that is about to be squared.
#[inline(always)]
pub fn squarable(value: f32) -> f32 {
    or_nothing(value, 1e-17)
}

#[inline(always)]
fn or_nothing(value: f32, least: f32) -> f32 {
    if value.abs() < least { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_stays() {
        for value in [1e-16, -1e-16, 1.0, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!([kept(value), kept_square(value), squarable(value)], [value; 3]);
        }
        assert_eq!([kept(-1e-31), kept_square(1e-37), squarable(1e-18), kept(f32::MIN_POSITIVE)], [0.0; 4]);
        assert!([kept, kept_square, squarable].iter().all(|of| of(f32::NAN).is_nan()));
    }

    /// Squares and shares of what is left do not end up below either.
    #[test]
    fn nothing_falls_below() {
        assert!(squarable(1.01e-17).powi(2) * 1e-3 > f32::MIN_POSITIVE);
        assert!(kept_square(1.01e-36) * 0.1 > f32::MIN_POSITIVE);
        assert!(kept(1.01e-30) * 1e-7 > f32::MIN_POSITIVE);
    }
}
