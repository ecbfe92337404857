//! Leaves: a step cut into parts that do not depend on who computes them, and the tree along which they are summed.
//!
//! The rows of a step are cut into leaves, as many as the global batch asks for. A worker owns some leaves in a row and
//! computes each on its own, with the shapes that it has on any world. It adds up the whole subtrees among them; the
//! group adds the rest, in the order of the same tree:
//!
//! ```text
//!            +                     leaves   0 1 2 3 4 5 6 7
//!       +         +                worker 0 owns 0 1 2, and holds the subtrees (0 1) and 2
//!     +   +     +   +              worker 1 owns 3 4 5, and holds 3 and (4 5)
//!    0 1 2 3   4 5 6 7             worker 2 owns 6 7, and holds (6 7)
//! ```
//!
//! A short step has fewer rows in each leaf, and where it has fewer rows than leaves the last ones are empty: they are
//! left out of the sum, which is the same on every world too. Everything here is a pure function of numbers.

use std::ops::Range;
use thalweg_cluster::{PartialSums, ReductionTree, Term};
use thalweg_core::{Result, Tally};
use thalweg_data::even_range;

/// Rows that a leaf should have, and how many leaves there are at least and at most.
const ROWS: usize = 32;
const FEWEST: usize = 8;
const MOST: usize = 64;

/// How steps are cut: a number of leaves that is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaves {
    count: usize,
}

/// What a worker does next to its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Computes a leaf into a slot.
    Leaf { leaf: usize, slot: usize },
    /// Adds the next slot to this one.
    Add { slot: usize },
}

impl Leaves {
    /// For steps of `global_batch` rows.
    pub(crate) fn of(global_batch: usize) -> Leaves {
        let batch = global_batch.max(1);
        let wanted = (batch / ROWS).next_power_of_two().clamp(FEWEST, MOST);
        Leaves { count: wanted.min(1 << batch.ilog2()) }
    }

    /// Leaves of a step that have a row: the first ones.
    pub(crate) fn filled(self, rows: usize) -> usize {
        self.count.min(rows)
    }

    /// The rows of adjacent leaves, of a step of `rows` rows.
    pub(crate) fn rows(self, leaves: &Range<usize>, rows: usize) -> Range<usize> {
        let start = |leaf: usize| even_range(rows, leaf, self.count).start;
        start(leaves.start)..start(leaves.end)
    }

    /// The whole subtrees among some leaves, from left to right.
    fn subtrees(self, filled: usize, mine: &Range<usize>) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        collect(0..self.count, filled, mine, &mut found);
        found
    }

    /// How a worker computes its leaves: each of its subtrees ends in a slot of its own, from the first on.
    fn work(self, filled: usize, mine: &Range<usize>) -> Vec<Work> {
        let mut work = Vec::new();
        for (slot, tree) in self.subtrees(filled, mine).into_iter().enumerate() {
            build(tree, filled, slot, &mut work);
        }
        work
    }

    /// Slots that a worker needs for these leaves, room to compute in included.
    fn slots(self, filled: usize, mine: &Range<usize>) -> usize {
        let slot = |work: &Work| match *work {
            Work::Leaf { slot, .. } | Work::Add { slot } => slot + 1,
        };
        self.work(filled, mine).iter().map(slot).max().unwrap_or(1)
    }

    /// Slots that any of `workers` workers needs in any step, with even shares or any others.
    pub(crate) fn most_slots(self, workers: usize, even: bool) -> usize {
        let owned = |filled: usize| {
            (0..workers.min(self.count)).map(move |place| (filled, even_range(filled, place, workers)))
        };
        let any = |start: usize| (start + 1..=self.count).map(move |end| (self.count, start..end));
        let most = |(filled, mine): (usize, Range<usize>)| self.slots(filled, &mine);
        match even {
            true => (1..=self.count).flat_map(owned).map(most).max(),
            false => (0..self.count).flat_map(any).map(most).max(),
        }
        .unwrap_or(1)
    }

    /// Terms of the sum that any worker can have: the most whole subtrees among adjacent leaves.
    pub(crate) fn most_terms(self) -> usize {
        let any = |start: usize| (start + 1..=self.count).map(move |end| start..end);
        let terms = |mine: Range<usize>| self.subtrees(self.count, &mine).len();
        (0..self.count).flat_map(any).map(terms).max().unwrap_or(1)
    }

    /// How the subtrees of all workers become one sum. Worker `i`, which owns the leaves `shares[i]`, is rank `i`.
    pub(crate) fn reduction_tree(self, filled: usize, shares: &[Range<usize>]) -> ReductionTree {
        let mut sum = ReductionTree::default();
        let mut terms = Vec::new();
        for (rank, mine) in shares.iter().enumerate() {
            let subtrees = self.subtrees(filled, mine).into_iter().enumerate();
            terms.extend(subtrees.map(|(slot, tree)| (tree, Term { rank, slot })));
        }
        add_terms(&(0..self.count), filled, &mut terms.into_iter().peekable(), &mut sum);
        sum
    }

    /// The gradients of a worker's leaves, of a step with these rows, and the loss behind each of them.
    pub(crate) fn gradient(
        self,
        rows: &[u64],
        mine: &Range<usize>,
        slots: PartialSums,
        memory: &mut [f32],
        mut compute: impl FnMut(&[u64], &mut [f32]) -> Result<Tally>,
    ) -> Result<Tally> {
        let mut tally = Tally::default();
        for work in self.work(self.filled(rows.len()), mine) {
            match work {
                Work::Leaf { leaf, slot } => {
                    let (gradient, loss) =
                        slots.slice_mut(memory, slot)[..slots.head].split_at_mut(slots.head - 1);
                    let part = compute(&rows[self.rows(&(leaf..leaf + 1), rows.len())], gradient)?;
                    loss[0] = part.loss as f32;
                    tally.add(&part);
                }
                Work::Add { slot } => slots.add_next(memory, slot),
            }
        }
        Ok(tally)
    }
}

/// The largest trees whose filled leaves are all in `mine`.
fn collect(tree: Range<usize>, filled: usize, mine: &Range<usize>, found: &mut Vec<Range<usize>>) {
    let end = tree.end.min(filled);
    if tree.start >= end || tree.start >= mine.end || end <= mine.start {
        return;
    }
    if mine.start <= tree.start && end <= mine.end {
        found.push(tree);
        return;
    }
    let middle = tree.start + tree.len() / 2;
    collect(tree.start..middle, filled, mine, found);
    collect(middle..tree.end, filled, mine, found);
}

/// Computes a tree into a slot, with the slots behind it as room.
fn build(tree: Range<usize>, filled: usize, slot: usize, work: &mut Vec<Work>) {
    if tree.len() == 1 {
        work.push(Work::Leaf { leaf: tree.start, slot });
        return;
    }
    let middle = tree.start + tree.len() / 2;
    build(tree.start..middle, filled, slot, work);
    if middle < filled {
        build(middle..tree.end, filled, slot + 1, work);
        work.push(Work::Add { slot });
    }
}

/// The sum of a tree from the subtrees that ranks hold.
fn add_terms(
    tree: &Range<usize>,
    filled: usize,
    terms: &mut std::iter::Peekable<std::vec::IntoIter<(Range<usize>, Term)>>,
    sum: &mut ReductionTree,
) {
    if let Some((_, term)) = terms.next_if(|(held, _)| held == tree) {
        sum.push(term);
    } else if tree.len() > 1 {
        let middle = tree.start + tree.len() / 2;
        add_terms(&(tree.start..middle), filled, terms, sum);
        if middle < filled {
            add_terms(&(middle..tree.end), filled, terms, sum);
            sum.add();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The sum of all rows, computed by workers with these shares of the leaves; every row is a number whose sum with
    /// others depends on the order.
    fn sum(leaves: Leaves, rows: usize, shares: &[Range<usize>]) -> u32 {
        let ids: Vec<u64> = (0..rows as u64).collect();
        let slots = PartialSums { count: leaves.most_slots(shares.len(), false), length: 2, head: 2 };
        let memories: Vec<Vec<f32>> = shares
            .iter()
            .map(|mine| {
                let mut memory = vec![f32::NAN; slots.elements()];
                let compute = |rows: &[u64], gradient: &mut [f32]| {
                    assert!(!rows.is_empty());
                    gradient[0] = rows.iter().map(|row| 1.1f32.powi((row * 7 % 23) as i32)).sum();
                    Ok(Tally { rows: rows.len() as u64, loss: 1.0, ..Tally::default() })
                };
                let tally = leaves.gradient(&ids, mine, slots, &mut memory, compute).unwrap();
                assert_eq!(tally.rows as usize, leaves.rows(mine, rows).len());
                memory
            })
            .collect();
        let brackets = leaves.reduction_tree(leaves.filled(rows), shares);
        let terms: Vec<&[f32]> =
            brackets.terms().iter().map(|term| slots.slice(&memories[term.rank], term.slot)).collect();
        let mut sum = [f32::NAN; 2];
        brackets.evaluate(&mut sum, &terms);
        assert_eq!(sum[1] as usize, leaves.filled(rows), "every leaf once");
        sum[0].to_bits()
    }

    #[test]
    fn there_are_as_many_as_the_batch_asks_for() {
        let counts = [1, 2, 3, 7, 8, 64, 256, 512, 1000, 4096, 1 << 20].map(|batch| Leaves::of(batch).count);
        assert_eq!(counts, [1, 2, 2, 4, 8, 8, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn even_shares_of_a_power_of_two_are_one_subtree_each() {
        let leaves = Leaves { count: 8 };
        for workers in [1, 2, 4, 8] {
            let shares: Vec<_> = (0..workers).map(|place| even_range(8, place, workers)).collect();
            assert_eq!(leaves.reduction_tree(8, &shares).terms().len(), workers);
        }
        assert_eq!(leaves.subtrees(8, &(0..3)), [0..2, 2..3]);
        assert_eq!(leaves.subtrees(8, &(3..6)), [3..4, 4..6]);
        assert_eq!([1, 2, 3].map(|workers| leaves.most_slots(workers, true)), [4, 3, 3]);
    }

    proptest! {
        #[test]
        fn bits_do_not_depend_on_who_owns_the_leaves(
            batch in 1usize..3000, short in 0.0f64..1.0, cuts in prop::collection::vec(0.0f64..=1.0, 0..9),
        ) {
            let leaves = Leaves::of(batch);
            let rows = ((batch as f64 * short) as usize).max(1);
            let filled = leaves.filled(rows);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * filled as f64) as usize).collect();
            cuts.extend([0, filled]);
            cuts.sort_unstable();
            let shares: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
            let all = 0..filled;
            prop_assert_eq!(sum(leaves, rows, &shares), sum(leaves, rows, std::slice::from_ref(&all)));
        }

        #[test]
        fn slots_suffice_for_every_even_share(batch in 1usize..3000, workers in 1usize..12, rows in 1usize..3000) {
            let leaves = Leaves::of(batch);
            let (filled, most) = (leaves.filled(rows), leaves.most_slots(workers, true));
            prop_assert!((0..workers).all(|place| leaves.slots(filled, &even_range(filled, place, workers)) <= most));
            prop_assert!(most <= leaves.most_slots(workers, false));
        }
    }
}
