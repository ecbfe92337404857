//! Lengths of long vectors, in double precision and in a fixed order: every rank gets the same bits.

/// Numbers worked out at once before they are added up: they stay in the first-level cache.
pub const BLOCK: usize = 1024;

/// Running sums side by side, so that vector instructions do the work.
const LANES: usize = 8;

/// The sum of squares.
pub fn squares(values: &[f32]) -> f64 {
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

/// The sum of squares of `value(a, b)` over two equally long slices, without memory for the values.
pub fn squares_of(a: &[f32], b: &[f32], value: impl Fn(f32, f32) -> f32) -> f64 {
    let mut scratch = [0.0; BLOCK];
    let blocks = a.chunks(BLOCK).zip(b.chunks(BLOCK));
    blocks
        .map(|(a, b)| {
            let scratch = &mut scratch[..a.len()];
            for ((to, &a), &b) in scratch.iter_mut().zip(a).zip(b) {
                *to = value(a, b);
            }
            squares(scratch)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_definition() {
        for len in [0, 1, 7, 8, 9, 1023, 1024, 1025, 3000] {
            let values: Vec<f32> = (0..len).map(|i| (i % 13) as f32 - 6.0).collect();
            let plain: f64 = values.iter().map(|value| f64::from(value * value)).sum();
            assert_eq!(squares(&values), plain);
            assert_eq!(squares_of(&values, &values, |a, b| a + b), 4.0 * plain);
        }
        assert!(squares(&[f32::MAX; 100]).is_finite(), "no overflow");
    }
}
