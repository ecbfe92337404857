//! Flushes tiny numbers to zero before they become denormals.
//!
//! Arithmetic with denormals (below 1.2e-38) is about a hundred times slower. Training reaches them: the moments of a
//! gradient that has vanished decay without ever reaching 0, and the square of a small gradient underflows at once.
//! So state that is kept between steps, and numbers that are squared, are flushed far below what still changes a
//! parameter. NaN propagates.

/// For state and for factors of products.
#[inline(always)]
pub fn flush(value: f32) -> f32 {
    flush_below(value, 1e-30)
}

/// For means of squares.
#[inline(always)]
pub fn flush_square(value: f32) -> f32 {
    flush_below(value, 1e-36)
}

/// For numbers that are squared next.
#[inline(always)]
pub fn flush_before_square(value: f32) -> f32 {
    flush_below(value, 1e-17)
}

#[inline(always)]
fn flush_below(value: f32, limit: f32) -> f32 {
    if value.abs() < limit { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_numbers_are_unchanged() {
        for value in [1e-16, -1e-16, 1.0, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!([flush(value), flush_square(value), flush_before_square(value)], [value; 3]);
        }
        assert_eq!([flush(-1e-31), flush(f32::MIN_POSITIVE)], [0.0; 2]);
        assert_eq!([flush_square(1e-37), flush_before_square(1e-18)], [0.0; 2]);
        assert!([flush, flush_square, flush_before_square].iter().all(|of| of(f32::NAN).is_nan()));
    }

    #[test]
    fn products_of_flushed_numbers_are_not_denormal() {
        assert!(flush_before_square(1.01e-17).powi(2) * 1e-3 > f32::MIN_POSITIVE);
        assert!(flush_square(1.01e-36) * 0.1 > f32::MIN_POSITIVE);
        assert!(flush(1.01e-30) * 1e-7 > f32::MIN_POSITIVE);
    }
}
