//! Out-of-place update of a range: reads one set of buffers and writes another.
//!
//! Several processes update their shards of shared parameters. If one dies in the middle of a step, the others continue
//! from the state before it, so that state must stay intact. A shard is copied and updated in blocks that fit the L1
//! cache, so the copy is almost free.

use super::apply::{BufferSlices, apply};
use super::{Moment, Optimizer, Scope, StateBuffers, StepContext, intersection};
use crate::partition;
use crate::team::MAX_CHUNKS;
use std::ops::Range;

/// Elements copied and updated at a time.
const BLOCK: usize = 1024;

struct Shard<'a> {
    /// Index of its first element.
    first: usize,
    from: StateBuffers<&'a [f32]>,
    to: StateBuffers<&'a mut [f32]>,
    gradient: &'a [f32],
}

impl<'a> Shard<'a> {
    /// Splits off the first `len` elements.
    fn split_off_front(&mut self, len: usize) -> Shard<'a> {
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
        Shard { first, from, to, gradient }
    }
}

impl Optimizer {
    /// One update of the elements in `range`, reading `from` and writing `to`; all slices are those of the range.
    /// Requires [`Scope::Element`]; the result has the same bits as [`Optimizer::apply`] on all elements.
    pub fn apply_range(
        &self,
        moment: Moment,
        range: Range<usize>,
        from: StateBuffers<&[f32]>,
        mut to: StateBuffers<&mut [f32]>,
        gradient: &[f32],
    ) {
        assert_eq!(self.scope(), Scope::Element, "a range cannot be updated alone");
        assert!(range.end <= self.len, "the range is longer than the parameters");
        self.check_lengths(range.len(), from.map(<[f32]>::len), gradient);
        self.check_lengths(range.len(), to.each_ref().map(|values| values.len()), gradient);
        let step = StepContext { rule: self.rule, moment, transform: self.transform.element_transform(0.0) };
        let whole =
            Shard { first: range.start, from, to: to.each_mut().map(|values| &mut **values), gradient };
        self.step_on_threads(&step, whole);
        self.move_statistics(range, to[0], gradient);
    }

    fn step_on_threads(&self, step: &StepContext, mut shard: Shard<'_>) {
        let len = shard.gradient.len();
        let count = partition::chunk_count(&self.team, len, len);
        if count == 1 {
            return self.step_shard(step, shard);
        }
        let mut parts: [Option<Shard<'_>>; MAX_CHUNKS] = std::array::from_fn(|index| {
            (index < count).then(|| shard.split_off_front(partition::chunk_range(len, count, index).len()))
        });
        self.team.for_each(&mut parts[..count], |_, part| {
            if let Some(part) = part.take() {
                self.step_shard(step, part);
            }
        });
    }

    fn step_shard(&self, step: &StepContext, mut shard: Shard<'_>) {
        while !shard.gradient.is_empty() {
            let length = shard.gradient.len().min(BLOCK);
            let Shard { first, from, mut to, gradient } = shard.split_off_front(length);
            to.iter_mut().zip(from).for_each(|(to, from)| to.copy_from_slice(from));
            for span in &self.spans {
                let range = intersection(&span.range, &(first..first + length));
                if !range.is_empty() {
                    apply(step, span.adapted, BufferSlices::of(&mut to, gradient, &range));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::spec::optimizer::UpdateRule;

    #[test]
    fn it_matches_the_step_in_place_and_keeps_its_input() {
        let rule = UpdateRule::Adam { lr: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
        let count = 3 * BLOCK + 7;
        let gradient: Vec<f32> = (0..count).map(|index| (index as f32 * 0.37).sin()).collect();
        let optimizer = Optimizer::new(rule, count);
        let parameters: Vec<f32> = (0..count).map(|index| index as f32 * 1e-3).collect();
        let mut whole = [parameters, vec![0.0; count], vec![0.0; count]];
        let mut state = [whole.clone(), [0, 1, 2].map(|_| vec![0.0; count])];
        for updates in 0..3 {
            let moment = Moment { updates, rate: 0.1 };
            optimizer.apply(moment, whole.each_mut().map(|values| &mut values[..]), &gradient);
            let [one, other] = &mut state;
            let (from, to) = if updates % 2 == 0 { (one, other) } else { (other, one) };
            let before = from.clone();
            // Two shards, as in two processes.
            let at = BLOCK + 5;
            for range in [0..at, at..count] {
                let from = from.each_ref().map(|values| &values[range.clone()]);
                let to = to.each_mut().map(|values| &mut values[range.clone()]);
                optimizer.apply_range(moment, range.clone(), from, to, &gradient[range]);
            }
            assert_eq!(*from, before);
            assert_eq!(*to, whole);
        }
    }
}
