//! Reductions over a slice in 16 lanes: a fixed order that vectorizes, whatever the instruction set.

const LANES: usize = 16;

/// The sum of `term` over pairs of elements.
#[inline(always)]
fn lanes(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (heads, tails) = (a.chunks_exact(LANES).zip(b.chunks_exact(LANES)), a.len() - a.len() % LANES);
    for (a, b) in heads {
        for lane in 0..LANES {
            sums[lane] += term(a[lane], b[lane]);
        }
    }
    let rest: f32 = a[tails..].iter().zip(&b[tails..]).map(|(a, b)| term(*a, *b)).sum();
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0] + rest
}

#[inline(always)]
pub fn sum(values: &[f32]) -> f32 {
    lanes(values, values, |a, _| a)
}

/// The dot product of slices of equal length.
#[inline(always)]
pub fn dot(left: &[f32], right: &[f32]) -> f32 {
    lanes(left, right, |a, b| a * b)
}

/// The sum of squared differences from `center`.
#[inline(always)]
pub fn squared_deviations(values: &[f32], center: f32) -> f32 {
    lanes(values, values, |a, _| (a - center) * (a - center))
}

/// The maximum; NaN is ignored.
#[inline(always)]
pub fn max(values: &[f32]) -> f32 {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            maxima[lane] = if chunk[lane] > maxima[lane] { chunk[lane] } else { maxima[lane] };
        }
    }
    maxima.iter().chain(rest).fold(f32::NEG_INFINITY, |max, value| max.max(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_match_their_definitions() {
        for len in [0, 1, 15, 16, 17, 100] {
            let values: Vec<f32> = (0..len).map(|i| (i * 7 % 11) as f32 - 4.0).collect();
            assert_eq!(sum(&values), values.iter().sum::<f32>(), "{len}");
            assert_eq!(dot(&values, &values), values.iter().map(|x| x * x).sum::<f32>(), "{len}");
            assert_eq!(
                squared_deviations(&values, 1.0),
                values.iter().map(|x| (x - 1.0) * (x - 1.0)).sum::<f32>()
            );
            assert_eq!(max(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
