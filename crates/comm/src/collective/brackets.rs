//! A sum as data: which terms it has, who holds them, and in which order they are added.
//!
//! A sum of floating-point numbers depends on its brackets. Here they are written down and do not depend on how many
//! ranks there are: whoever holds a term, and whoever adds, the bits are the same.

use super::operator::{Operator, Sum};

/// Elements that are added at a time, here and in arenas: what is held of them fits a core's first cache.
pub(crate) const BLOCK: usize = 1024;

/// Elements in two lines of a cache: slots begin there, and shares end there, so that no line is written by two ranks.
pub(crate) const GRAIN: usize = 32;

/// The terms that a rank holds, one after the other in its memory, all of the same length.
///
/// Of every slot the first `head` elements are a term. What is behind them counts in the first slot alone, on every
/// rank, and is added in the order of ranks: there a rank says something for itself, with or without a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// How many.
    pub count: usize,
    /// Elements of each.
    pub length: usize,
    /// Those that are a term.
    pub head: usize,
}

impl Slots {
    /// A single one, all of it a term.
    pub fn one(length: usize) -> Slots {
        Slots { count: 1, length, head: length }
    }

    /// Elements of all of them.
    pub fn elements(&self) -> usize {
        self.start(self.count.max(1) - 1) + self.length
    }

    /// Where a slot begins.
    pub fn start(&self, slot: usize) -> usize {
        slot * self.length.next_multiple_of(GRAIN)
    }

    /// What a slot holds, of the memory of all.
    pub fn of<'a>(&self, memory: &'a [f32], slot: usize) -> &'a [f32] {
        &memory[self.start(slot)..][..self.length]
    }

    /// The same, to be written.
    pub fn of_mut<'a>(&self, memory: &'a mut [f32], slot: usize) -> &'a mut [f32] {
        &mut memory[self.start(slot)..][..self.length]
    }

    /// Adds the term of the slot behind it to a slot.
    pub fn add_next(&self, memory: &mut [f32], slot: usize) {
        let (front, next) = memory.split_at_mut(self.start(slot + 1));
        Sum.combine(&mut front[self.start(slot)..][..self.head], &next[..self.head]);
    }
}

/// A term: a slot of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Who holds it.
    pub rank: usize,
    /// Where.
    pub slot: usize,
}

/// What happens next to a stack of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// A term is put on top.
    Take(usize),
    /// A term is added to what is on top.
    AddTerm(usize),
    /// What is on top is added to what is below it.
    Add,
}

/// A sum: built from left to right, as one would say it to a calculator that puts operators last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Brackets {
    terms: Vec<Term>,
    order: Vec<Order>,
    /// Sums on the stack now, and at most.
    height: usize,
    highest: usize,
}

impl Brackets {
    /// A term begins a sum.
    pub fn take(&mut self, term: Term) {
        self.order.push(Order::Take(self.terms.len()));
        self.terms.push(term);
        self.height += 1;
        self.highest = self.highest.max(self.height);
    }

    /// The last two sums become one.
    pub fn add(&mut self) {
        assert!(self.height >= 2, "two sums to add");
        self.height -= 1;
        match self.order.last_mut() {
            Some(last @ Order::Take(_)) => {
                let Order::Take(term) = *last else { return };
                *last = Order::AddTerm(term);
            }
            _ => self.order.push(Order::Add),
        }
    }

    /// The terms, from left to right.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether it is one sum: nothing is left to be added.
    pub fn is_whole(&self) -> bool {
        self.height == 1
    }

    /// Writes the sum of these terms, all as long as `out`.
    pub fn evaluate(&self, out: &mut [f32], terms: &[&[f32]]) {
        assert!(self.is_whole() && terms.len() == self.terms.len(), "one sum of all terms");
        let mut above = vec![0.0; (self.highest - 1) * BLOCK];
        let mut at = 0;
        for out in out.chunks_mut(BLOCK) {
            let piece = at..at + out.len();
            at = piece.end;
            let mut stack = Stack { bottom: out, above: &mut above, height: 0 };
            for order in &self.order {
                match *order {
                    Order::Take(term) => stack.take(&terms[term][piece.clone()]),
                    Order::AddTerm(term) => Sum.combine(stack.top(), &terms[term][piece.clone()]),
                    Order::Add => stack.add(),
                }
            }
        }
    }
}

/// Sums of a block: the lowest is where the result goes.
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

    fn take(&mut self, term: &[f32]) {
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

    fn evaluate(brackets: &Brackets, terms: &[Vec<f32>]) -> Vec<f32> {
        let mut out = vec![f32::NAN; terms[0].len()];
        brackets.evaluate(&mut out, &terms.iter().map(Vec::as_slice).collect::<Vec<_>>());
        out
    }

    #[test]
    fn brackets_are_kept_for_every_length() {
        for length in [0, 1, 31, BLOCK, 2 * BLOCK + 5] {
            let t = terms(5, length);
            // (t0 + t1) + ((t2 + t3) + t4), then t0 + (t1 + (t2 + (t3 + t4))).
            let (mut one, mut other) = (Brackets::default(), Brackets::default());
            for term in 0..5 {
                one.take(A);
                other.take(A);
                if [1, 3, 4].contains(&term) {
                    one.add();
                }
            }
            one.add();
            (0..4).for_each(|_| other.add());
            assert!(one.is_whole() && other.is_whole());
            let (one, other) = (evaluate(&one, &t), evaluate(&other, &t));
            for index in 0..length {
                let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|term| t[term][index]);
                assert_eq!(one[index].to_bits(), ((a + b) + ((c + d) + e)).to_bits());
                assert_eq!(other[index].to_bits(), (a + (b + (c + (d + e)))).to_bits());
            }
        }
    }

    #[test]
    fn slots_do_not_overlap_and_are_added_in_place() {
        let slots = Slots { count: 3, length: 33, head: 30 };
        let mut memory = vec![0.0; slots.elements()];
        for slot in 0..3 {
            slots.of_mut(&mut memory, slot).fill(1.0 + slot as f32);
        }
        slots.add_next(&mut memory, 1);
        assert!(slots.of(&memory, 0).iter().all(|value| *value == 1.0));
        assert!(slots.of(&memory, 1)[..30].iter().all(|value| *value == 5.0));
        assert!(slots.of(&memory, 1)[30..].iter().all(|value| *value == 2.0));
    }
}
