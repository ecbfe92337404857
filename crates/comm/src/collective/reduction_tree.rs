//! A reduction tree as data: the terms of a sum, the ranks that hold them, and the order of the additions.
//!
//! A sum of floating-point numbers depends on the order of its additions. Here the order is explicit and independent of
//! the world size: the result has the same bits on any number of ranks.

use super::operator::{Operator, Sum};

/// Elements that are added at a time, here and in arenas: the intermediate sums fit into the L1 cache.
pub(crate) const BLOCK: usize = 1024;

/// Elements in two cache lines. Partial sums begin, and shards end, at multiples of it, so that no cache line is written
/// by two ranks.
pub(crate) const GRAIN: usize = 32;

/// The memory layout of a rank's partial sums: `count` slots of `length` elements.
///
/// The first `head` elements of a slot are a term of the [`ReductionTree`]. The tail behind them is used in slot 0 only:
/// every rank contributes to it, with or without a term, and tails are added in the order of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialSums {
    pub count: usize,
    pub length: usize,
    pub head: usize,
}

impl PartialSums {
    /// A single slot without a tail.
    pub fn one(length: usize) -> PartialSums {
        PartialSums { count: 1, length, head: length }
    }

    /// Elements of all slots.
    pub fn elements(&self) -> usize {
        self.start(self.count.max(1) - 1) + self.length
    }

    pub fn start(&self, slot: usize) -> usize {
        slot * self.length.next_multiple_of(GRAIN)
    }

    /// The slot in the memory of all slots.
    pub fn slice<'a>(&self, memory: &'a [f32], slot: usize) -> &'a [f32] {
        &memory[self.start(slot)..][..self.length]
    }

    pub fn slice_mut<'a>(&self, memory: &'a mut [f32], slot: usize) -> &'a mut [f32] {
        &mut memory[self.start(slot)..][..self.length]
    }

    /// Adds the term of slot `slot + 1` to that of `slot`.
    pub fn add_next(&self, memory: &mut [f32], slot: usize) {
        let (front, next) = memory.split_at_mut(self.start(slot + 1));
        Sum.combine(&mut front[self.start(slot)..][..self.head], &next[..self.head]);
    }
}

/// A term of the sum: one slot of one rank's [`PartialSums`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub rank: usize,
    pub slot: usize,
}

/// An instruction of the stack machine that evaluates the tree; terms by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    Push(usize),
    /// Adds a term to the top of the stack.
    AddTerm(usize),
    /// Adds the top of the stack to the value below it.
    Add,
}

/// A sum of terms, built in postfix notation: [`ReductionTree::push`] terms, [`ReductionTree::add`] the last two sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReductionTree {
    terms: Vec<Term>,
    instructions: Vec<Instruction>,
    /// The stack's current and maximum height.
    height: usize,
    max_height: usize,
}

impl ReductionTree {
    pub fn push(&mut self, term: Term) {
        self.instructions.push(Instruction::Push(self.terms.len()));
        self.terms.push(term);
        self.height += 1;
        self.max_height = self.max_height.max(self.height);
    }

    /// Replaces the last two sums by their sum.
    pub fn add(&mut self) {
        assert!(self.height >= 2, "add needs two sums");
        self.height -= 1;
        match self.instructions.last_mut() {
            Some(last @ Instruction::Push(_)) => {
                let Instruction::Push(term) = *last else { return };
                *last = Instruction::AddTerm(term);
            }
            _ => self.instructions.push(Instruction::Add),
        }
    }

    /// From left to right.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether all terms are part of one sum.
    pub fn is_complete(&self) -> bool {
        self.height == 1
    }

    /// Writes the sum to `out`; the terms have the length of `out`.
    pub fn evaluate(&self, out: &mut [f32], terms: &[&[f32]]) {
        assert!(self.is_complete() && terms.len() == self.terms.len(), "incomplete tree, or missing terms");
        let mut above = vec![0.0; (self.max_height - 1) * BLOCK];
        let mut at = 0;
        for out in out.chunks_mut(BLOCK) {
            let piece = at..at + out.len();
            at = piece.end;
            let mut stack = Stack { bottom: out, above: &mut above, height: 0 };
            for instruction in &self.instructions {
                match *instruction {
                    Instruction::Push(term) => stack.push(&terms[term][piece.clone()]),
                    Instruction::AddTerm(term) => Sum.combine(stack.top(), &terms[term][piece.clone()]),
                    Instruction::Add => stack.add(),
                }
            }
        }
    }
}

/// The stack for one block; its bottom is the output.
struct Stack<'a> {
    bottom: &'a mut [f32],
    above: &'a mut [f32],
    height: usize,
}

impl Stack<'_> {
    fn top(&mut self) -> &mut [f32] {
        let length = self.bottom.len();
        match self.height {
            0 | 1 => self.bottom,
            height => &mut self.above[(height - 2) * BLOCK..][..length],
        }
    }

    fn push(&mut self, term: &[f32]) {
        self.height += 1;
        self.top().copy_from_slice(term);
    }

    fn add(&mut self) {
        let (height, length) = (self.height, self.bottom.len());
        let (below, top) = self.above.split_at_mut((height - 2) * BLOCK);
        let below =
            if height == 2 { &mut *self.bottom } else { &mut below[(height - 3) * BLOCK..][..length] };
        Sum.combine(below, &top[..length]);
        self.height -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Term = Term { rank: 0, slot: 0 };

    /// Terms whose sum depends on the order.
    fn terms(count: usize, length: usize) -> Vec<Vec<f32>> {
        let value = |term: usize, index: usize| (0.1 + index as f32).powi(term as i32 % 7 - 3);
        (0..count).map(|term| (0..length).map(|index| value(term, index)).collect()).collect()
    }

    fn evaluate(tree: &ReductionTree, terms: &[Vec<f32>]) -> Vec<f32> {
        let mut out = vec![f32::NAN; terms[0].len()];
        tree.evaluate(&mut out, &terms.iter().map(Vec::as_slice).collect::<Vec<_>>());
        out
    }

    #[test]
    fn the_order_of_additions_is_kept_for_every_length() {
        for length in [0, 1, 31, BLOCK, 2 * BLOCK + 5] {
            let t = terms(5, length);
            // (t0 + t1) + ((t2 + t3) + t4), then t0 + (t1 + (t2 + (t3 + t4))).
            let (mut one, mut other) = (ReductionTree::default(), ReductionTree::default());
            for term in 0..5 {
                one.push(A);
                other.push(A);
                if [1, 3, 4].contains(&term) {
                    one.add();
                }
            }
            one.add();
            (0..4).for_each(|_| other.add());
            assert!(one.is_complete() && other.is_complete());
            let (one, other) = (evaluate(&one, &t), evaluate(&other, &t));
            for index in 0..length {
                let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|term| t[term][index]);
                assert_eq!(one[index].to_bits(), ((a + b) + ((c + d) + e)).to_bits());
                assert_eq!(other[index].to_bits(), (a + (b + (c + (d + e)))).to_bits());
            }
        }
    }

    #[test]
    fn partial_sums_do_not_overlap_and_are_added_in_place() {
        let slots = PartialSums { count: 3, length: 33, head: 30 };
        let mut memory = vec![0.0; slots.elements()];
        for slot in 0..3 {
            slots.slice_mut(&mut memory, slot).fill(1.0 + slot as f32);
        }
        slots.add_next(&mut memory, 1);
        assert!(slots.slice(&memory, 0).iter().all(|value| *value == 1.0));
        assert!(slots.slice(&memory, 1)[..30].iter().all(|value| *value == 5.0));
        assert!(slots.slice(&memory, 1)[30..].iter().all(|value| *value == 2.0));
    }
}
