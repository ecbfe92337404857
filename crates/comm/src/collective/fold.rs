//! Worlds that are no power of two, for algorithms that need one.
//!
//! With p the largest power of two within n, the first 2 (n-p) ranks form pairs. The odd one of a pair gives its buffer
//! to the even one, which adds it and takes part for both; the result goes back at the end. The ranks that take part
//! are numbered 0..p. A pair pays one more buffer each way, and everybody waits for it: on such worlds the ring is
//! better for long buffers.

use super::cost::Cost;
use super::schedule::{Action, Chunks, Schedule, Step};

/// A rank's part in a folded world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    rank: usize,
    /// Number of pairs.
    pairs: usize,
    /// Number of ranks that take part: the largest power of two within the world.
    pub active: usize,
}

impl Fold {
    /// The part of `rank` in a world of `world`.
    pub fn new(rank: usize, world: usize) -> Fold {
        let active = 1 << world.max(1).ilog2();
        Fold { rank, pairs: world.max(1) - active, active }
    }

    fn is_paired(self) -> bool {
        self.rank < 2 * self.pairs
    }

    /// The number among those who take part; `None` if another rank stands for this one.
    pub fn position(self) -> Option<usize> {
        match self.is_paired() {
            false => Some(self.rank - self.pairs),
            true => self.rank.is_multiple_of(2).then_some(self.rank / 2),
        }
    }

    /// Who takes part at that position.
    pub fn rank_at(self, position: usize) -> usize {
        if position < self.pairs { 2 * position } else { position + self.pairs }
    }

    /// Those steps between the giving and the giving back; they are for those who take part.
    pub fn around(self, chunks: usize, steps: impl FnOnce(usize) -> Vec<Step>) -> Schedule {
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

    /// What [`Fold::around`] costs, given how many steps are between and how many elements those who take part move, either
    /// way, and add in them.
    pub fn cost(
        self,
        length: usize,
        width: usize,
        steps: usize,
        between: impl FnOnce(usize) -> (usize, usize),
    ) -> Cost {
        let fold = if self.pairs > 0 { 2 } else { 0 };
        let (moved, added) = match self.position() {
            None => (length, 0),
            Some(position) => {
                let (moved, added) = between(position);
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
