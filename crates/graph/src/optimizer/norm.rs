//! Norms in double precision and in a fixed order of summation: every rank gets the same bits.

/// Elements per block of temporary values; a block fits the L1 cache.
pub const BLOCK: usize = 1024;

/// Independent running sums, so that the loop vectorises.
const LANES: usize = 8;

pub fn sum_of_squares(values: &[f32]) -> f64 {
    let mut sums = [0.0f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += f64::from(value) * f64::from(value);
    }
    sums.iter().sum()
}

/// The sum of squares of `value(a, b)` over two equally long slices, without allocating.
pub fn sum_of_squares_by(a: &[f32], b: &[f32], value: impl Fn(f32, f32) -> f32) -> f64 {
    let mut scratch = [0.0; BLOCK];
    let blocks = a.chunks(BLOCK).zip(b.chunks(BLOCK));
    blocks
        .map(|(a, b)| {
            let scratch = &mut scratch[..a.len()];
            for ((to, &a), &b) in scratch.iter_mut().zip(a).zip(b) {
                *to = value(a, b);
            }
            sum_of_squares(scratch)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_match_the_definition() {
        for len in [0, 1, 7, 8, 9, 1023, 1024, 1025, 3000] {
            let values: Vec<f32> = (0..len).map(|i| (i % 13) as f32 - 6.0).collect();
            let plain: f64 = values.iter().map(|value| f64::from(value * value)).sum();
            assert_eq!(sum_of_squares(&values), plain);
            assert_eq!(sum_of_squares_by(&values, &values, |a, b| a + b), 4.0 * plain);
        }
        assert!(sum_of_squares(&[f32::MAX; 100]).is_finite(), "no overflow");
    }
}
