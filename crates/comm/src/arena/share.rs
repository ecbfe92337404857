//! Which part of a column is whose.

use crate::collective::brackets::GRAIN;
use std::ops::Range;

/// The elements of rank `rank` of `world`: nearly equal parts, in the order of ranks, none overlapping.
pub fn share(length: usize, rank: usize, world: usize) -> Range<usize> {
    let grains = length / GRAIN;
    let cut = |rank: usize| if rank == world { length } else { grains * rank / world * GRAIN };
    cut(rank)..cut(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_each_other_and_cover_all() {
        for world in 1..=9 {
            for length in [0, 1, 31, 32, 100, 1000, 12345] {
                let shares: Vec<Range<usize>> = (0..world).map(|rank| share(length, rank, world)).collect();
                assert_eq!((shares[0].start, shares[world - 1].end), (0, length));
                assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
                let longest = shares.iter().map(|share| share.len()).max();
                assert!(longest <= Some(length / world + 2 * GRAIN), "{length} {world} {shares:?}");
            }
        }
    }
}
