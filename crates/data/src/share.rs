//! Who takes which part of a list.

use std::ops::Range;

/// The even contiguous share of part `part` of `parts`, of `n` items: sizes differ by at most one, the larger first.
///
/// With more parts than items, the last parts are empty. The chunks of a collective are cut by the same arithmetic; it
/// stands there once more because neither crate knows the other.
pub fn share(n: usize, part: usize, parts: usize) -> Range<usize> {
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
        fn shares_follow_each_other_and_are_even(n in 0usize..10_000, parts in 1usize..70) {
            let shares: Vec<_> = (0..parts).map(|part| share(n, part, parts)).collect();
            prop_assert_eq!(shares[0].start, 0);
            prop_assert_eq!(shares[parts - 1].end, n);
            prop_assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            let sizes = || shares.iter().map(Range::len);
            prop_assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
    }
}
