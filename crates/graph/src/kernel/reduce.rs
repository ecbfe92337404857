//! Sums over a slice, in sixteen lanes: a fixed order that vector instructions can follow. Called by kernels.

const LANES: usize = 16;

/// The sum of `term(i)` over the indices of slices of that length.
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

/// The sum of the values.
#[inline(always)]
pub fn sum(values: &[f32]) -> f32 {
    lanes(values, values, |a, _| a)
}

/// The sum of products. The slices must be equally long.
#[inline(always)]
pub fn dot(left: &[f32], right: &[f32]) -> f32 {
    lanes(left, right, |a, b| a * b)
}

/// The sum of squared distances from `center`.
#[inline(always)]
pub fn spread(values: &[f32], center: f32) -> f32 {
    lanes(values, values, |a, _| (a - center) * (a - center))
}

/// The largest value; a number that is not one is passed over.
#[inline(always)]
pub fn largest(values: &[f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            most[lane] = if chunk[lane] > most[lane] { chunk[lane] } else { most[lane] };
        }
    }
    most.iter().chain(rest).fold(f32::NEG_INFINITY, |most, value| most.max(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_agree_with_the_definition() {
        for len in [0, 1, 15, 16, 17, 100] {
            let values: Vec<f32> = (0..len).map(|i| (i * 7 % 11) as f32 - 4.0).collect();
            assert_eq!(sum(&values), values.iter().sum::<f32>(), "{len}");
            assert_eq!(dot(&values, &values), values.iter().map(|x| x * x).sum::<f32>(), "{len}");
            assert_eq!(spread(&values, 1.0), values.iter().map(|x| (x - 1.0) * (x - 1.0)).sum::<f32>());
            assert_eq!(largest(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
