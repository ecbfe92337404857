//! Even division of a list into contiguous ranges.

use std::ops::Range;

/// Range `part` of `parts` over `n` items: sizes differ by at most one, larger ranges come first.
///
/// With more parts than items the last ranges are empty. Collectives chunk their buffers by the same
/// arithmetic in `comm`; neither crate depends on the other.
pub fn even_range(n: usize, part: usize, parts: usize) -> Range<usize> {
    let parts = parts.max(1);
    let (size, larger) = (n / parts, n % parts);
    let start = |part: usize| part.min(parts) * size + part.min(larger);
    start(part)..start(part + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_contiguous_and_even(n in 0usize..10_000, parts in 1usize..70) {
            let shares: Vec<_> = (0..parts).map(|part| even_range(n, part, parts)).collect();
            prop_assert_eq!(shares[0].start, 0);
            prop_assert_eq!(shares[parts - 1].end, n);
            prop_assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            let sizes = || shares.iter().map(Range::len);
            prop_assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
    }
}
