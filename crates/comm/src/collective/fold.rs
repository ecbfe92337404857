//! Folding: runs an algorithm that needs a power of two on any world size.
//!
//! With p the largest power of two up to n, the first 2 (n-p) ranks form pairs. The odd rank of a pair sends its buffer to
//! the even one, which adds it and participates for both; the result is sent back at the end. The participating (active)
//! ranks have positions 0..p. A pair transfers one more buffer each way, and all ranks wait for it: for such world sizes
//! the ring is better for long buffers.

use super::cost::Cost;
use super::schedule::{Action, Chunks, Schedule, Step};

/// A rank's role in a folded world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    rank: usize,
    pairs: usize,
    /// Number of active ranks: the largest power of two up to the world size.
    pub active: usize,
}

impl Fold {
    pub fn new(rank: usize, world: usize) -> Fold {
        let active = 1 << world.max(1).ilog2();
        Fold { rank, pairs: world.max(1) - active, active }
    }

    fn is_paired(self) -> bool {
        self.rank < 2 * self.pairs
    }

    /// The position among the active ranks; `None` if the pair's even rank participates for this one.
    pub fn position(self) -> Option<usize> {
        match self.is_paired() {
            false => Some(self.rank - self.pairs),
            true => self.rank.is_multiple_of(2).then_some(self.rank / 2),
        }
    }

    pub fn rank_at(self, position: usize) -> usize {
        if position < self.pairs { 2 * position } else { position + self.pairs }
    }

    /// Wraps the steps of the active ranks, given by position, into the folding and unfolding steps.
    pub fn wrap(self, chunks: usize, steps: impl FnOnce(usize) -> Vec<Step>) -> Schedule {
        let all = Chunks::all(chunks);
        let Some(position) = self.position() else {
            let even = self.rank - 1;
            let steps = vec![Step::sending(even, all), Step::receiving(even, all, Action::Copy)];
            return Schedule { chunks, steps };
        };
        let odd = self.rank + 1;
        let mut all_steps = Vec::new();
        if self.is_paired() {
            all_steps.push(Step::receiving(odd, all, Action::Reduce));
        }
        all_steps.extend(steps(position));
        if self.is_paired() {
            all_steps.push(Step::sending(odd, all));
        }
        Schedule { chunks, steps: all_steps }
    }

    /// The cost of [`Fold::wrap`]: `steps` of the wrapped algorithm, in which an active rank moves (both ways) and adds the
    /// numbers of elements that `wrapped` returns.
    pub fn cost(
        self,
        length: usize,
        width: usize,
        steps: usize,
        wrapped: impl FnOnce(usize) -> (usize, usize),
    ) -> Cost {
        let fold = if self.pairs > 0 { 2 } else { 0 };
        let (moved, added) = match self.position() {
            None => (length, 0),
            Some(position) => {
                let (moved, added) = wrapped(position);
                let other = if self.is_paired() { length } else { 0 };
                (moved + other, added + other)
            }
        };
        Cost::of(steps + fold, moved, moved, added, width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_taken_once() {
        for world in 1..=64 {
            let folds: Vec<Fold> = (0..world).map(|rank| Fold::new(rank, world)).collect();
            let mut taken: Vec<usize> = folds.iter().filter_map(|fold| fold.position()).collect();
            assert!(folds.iter().all(|f| f.position().is_none_or(|position| f.rank_at(position) == f.rank)));
            taken.sort_unstable();
            assert_eq!(taken, (0..folds[0].active).collect::<Vec<_>>());
        }
    }
}
