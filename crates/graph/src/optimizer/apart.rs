//! A step out of place: what it starts from is left as it was.
//!
//! Where several processes update their shares of the same parameters, one of them may die in the middle. Then the others
//! need what there was before. So a share is read in one place and written in another, in pieces that stay in the nearest
//! cache: copying them costs next to nothing.

use super::apply::{Stretch, apply};
use super::{Correction, Optimizer, Step};
use crate::shares;
use crate::team::MOST_SHARES;
use std::ops::Range;

/// Elements that are copied and updated at a time.
const PIECE: usize = 1024;

/// Parameters and the slots of a rule, in the order of [`Optimizer::slots`]; empty where there are fewer.
pub type Columns<T> = [T; 3];

/// A share of them.
struct Share<'a> {
    /// The place of its first element.
    first: usize,
    from: Columns<&'a [f32]>,
    to: Columns<&'a mut [f32]>,
    gradient: &'a [f32],
}

impl<'a> Share<'a> {
    /// Takes so many elements off the front.
    fn cut(&mut self, len: usize) -> Share<'a> {
        let first = self.first;
        self.first += len;
        let (gradient, rest) = self.gradient.split_at(len);
        self.gradient = rest;
        let from = self.from.each_mut().map(|values| {
            let (front, rest) = values.split_at(len.min(values.len()));
            *values = rest;
            front
        });
        let to = self.to.each_mut().map(|values| {
            let at = len.min(values.len());
            let (front, rest) = std::mem::take(values).split_at_mut(at);
            *values = rest;
            front
        });
        Share { first, from, to, gradient }
    }
}

impl Optimizer {
    /// Makes one step on a share of parameters and state that lie elsewhere: `from` and `to` hold the parameters, then each
    /// slot, of the elements in `range`. Only for what [`Optimizer::is_elementwise`]; it gives the same bits as a step on
    /// all of them. Elements that no rule updates are copied.
    pub fn update_apart(
        &mut self,
        lr: f32,
        correction: &Correction,
        range: Range<usize>,
        from: Columns<&[f32]>,
        to: Columns<&mut [f32]>,
        gradient: &[f32],
    ) {
        assert!(self.is_elementwise(correction), "an update of whole tensors has no shares");
        assert!(
            range.end <= self.len && gradient.len() == range.len(),
            "slices differ in length from their share"
        );
        for (column, (from, to)) in from.iter().zip(&to).enumerate() {
            let wanted = if column <= self.slots.len() { range.len() } else { 0 };
            assert!(
                [from.len(), to.len()] == [wanted; 2],
                "slices differ in length from their share of the state"
            );
        }
        self.steps += 1;
        let step = Step { rule: self.rule, lr, number: self.steps, settled: correction.settle(0.0) };
        let mut whole = Share { first: range.start, from, to, gradient };
        let count = shares::count(&self.team, range.len(), range.len());
        if count == 1 {
            return self.step_share(&step, whole);
        }
        let mut parts: [Option<Share<'_>>; MOST_SHARES] = std::array::from_fn(|index| {
            (index < count).then(|| whole.cut(shares::bounds(range.len(), index, count).len()))
        });
        self.team.each(&mut parts[..count], |_, part| {
            if let Some(part) = part.take() {
                self.step_share(&step, part);
            }
        });
    }

    fn step_share(&self, step: &Step, mut share: Share<'_>) {
        while !share.gradient.is_empty() {
            let length = share.gradient.len().min(PIECE);
            let Share { first, from, mut to, gradient } = share.cut(length);
            to.iter_mut().zip(from).for_each(|(to, from)| to.copy_from_slice(from));
            let last = first + length;
            for span in &self.spans {
                let range =
                    span.range.start.clamp(first, last) - first..span.range.end.clamp(first, last) - first;
                if range.is_empty() {
                    continue;
                }
                let gradient = &gradient[range.clone()];
                let [parameters, first, second] = to
                    .each_mut()
                    .map(|values| if values.is_empty() { &mut [] } else { &mut values[range.clone()] });
                apply(step, span.adapted, Stretch { parameters, gradient, first, second });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::spec::optimizer::Rule;

    #[test]
    fn it_is_the_step_in_place_and_leaves_what_it_starts_from() {
        let rule = Rule::Adam { lr: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
        let (count, correction) = (3 * PIECE + 7, Correction::default());
        let gradient: Vec<f32> = (0..count).map(|index| (index as f32 * 0.37).sin()).collect();
        let (mut whole, mut apart) = (Optimizer::new(rule, count), Optimizer::new(rule, count));
        let mut parameters: Vec<f32> = (0..count).map(|index| index as f32 * 1e-3).collect();
        let mut state =
            [vec![parameters.clone(), vec![0.0; count], vec![0.0; count]], vec![vec![0.0; count]; 3]];
        for step in 0..3 {
            whole.step(0.1, &correction, &mut parameters, &gradient);
            let [one, other] = &mut state;
            let (from, to) = if step % 2 == 0 { (one, other) } else { (other, one) };
            let before = from.clone();
            // Two shares, as two processes would: each with an optimizer of its own.
            let at = PIECE + 5;
            let mut second = apart.clone();
            for (optimizer, range) in [(&mut apart, 0..at), (&mut second, at..count)] {
                let from = [0, 1, 2].map(|column: usize| &from[column][range.clone()]);
                let mut to = to.iter_mut().map(|values| &mut values[range.clone()]);
                let to = [0, 1, 2].map(|_| to.next().unwrap());
                optimizer.update_apart(0.1, &correction, range.clone(), from, to, &gradient[range]);
            }
            assert_eq!(*from, before);
            assert_eq!(to[0], parameters);
            let slots: Vec<&[f32]> = whole.slots().into_iter().map(|(_, values)| values).collect();
            assert_eq!([&to[1][..], &to[2]], slots[..]);
        }
    }
}
