//! Out-of-place step: reads one set of buffers and writes another.
//!
//! Several processes update their shards of shared parameters. If one dies in the middle of a step, the others continue
//! from the state before it, so that state must stay intact. A shard is copied and updated in blocks that fit the L1
//! cache, so the copy is almost free.

use super::apply::{BufferSlices, apply};
use super::{GradientTransform, Optimizer, StepContext};
use crate::partition;
use crate::team::MAX_CHUNKS;
use std::ops::Range;

/// Elements copied and updated at a time.
const BLOCK: usize = 1024;

/// Parameters, then the slots of the rule in the order of [`Optimizer::slots`]; empty for missing slots.
type StateBuffers<T> = [T; 3];

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
    /// Makes one step on the elements in `range`, reading `from` and writing `to`. Requires
    /// [`Optimizer::is_elementwise`]; the result has the same bits as a step on all elements. Elements that are not
    /// trainable are copied.
    pub fn update_out_of_place(
        &mut self,
        lr: f32,
        transform: &GradientTransform,
        range: Range<usize>,
        from: StateBuffers<&[f32]>,
        to: StateBuffers<&mut [f32]>,
        gradient: &[f32],
    ) {
        assert!(self.is_elementwise(transform), "the update of a whole tensor cannot be sharded");
        assert!(
            range.end <= self.len && gradient.len() == range.len(),
            "slices differ in length from the range"
        );
        for (column, (from, to)) in from.iter().zip(&to).enumerate() {
            let wanted = if column <= self.slots.len() { range.len() } else { 0 };
            assert!(
                [from.len(), to.len()] == [wanted; 2],
                "slices of the state differ in length from the range"
            );
        }
        self.steps += 1;
        let step = StepContext {
            rule: self.rule,
            lr,
            step_number: self.steps,
            transform: transform.element_transform(0.0),
        };
        let mut whole = Shard { first: range.start, from, to, gradient };
        let count = partition::chunk_count(&self.team, range.len(), range.len());
        if count == 1 {
            return self.step_shard(&step, whole);
        }
        let mut parts: [Option<Shard<'_>>; MAX_CHUNKS] = std::array::from_fn(|index| {
            (index < count)
                .then(|| whole.split_off_front(partition::chunk_range(range.len(), count, index).len()))
        });
        self.team.for_each(&mut parts[..count], |_, part| {
            if let Some(part) = part.take() {
                self.step_shard(&step, part);
            }
        });
    }

    fn step_shard(&self, step: &StepContext, mut shard: Shard<'_>) {
        while !shard.gradient.is_empty() {
            let length = shard.gradient.len().min(BLOCK);
            let Shard { first, from, mut to, gradient } = shard.split_off_front(length);
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
                apply(step, span.adapted, BufferSlices { parameters, gradient, first, second });
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
        let (count, transform) = (3 * BLOCK + 7, GradientTransform::default());
        let gradient: Vec<f32> = (0..count).map(|index| (index as f32 * 0.37).sin()).collect();
        let (mut whole, mut shards) = (Optimizer::new(rule, count), Optimizer::new(rule, count));
        let mut parameters: Vec<f32> = (0..count).map(|index| index as f32 * 1e-3).collect();
        let mut state =
            [vec![parameters.clone(), vec![0.0; count], vec![0.0; count]], vec![vec![0.0; count]; 3]];
        for step in 0..3 {
            whole.step(0.1, &transform, &mut parameters, &gradient);
            let [one, other] = &mut state;
            let (from, to) = if step % 2 == 0 { (one, other) } else { (other, one) };
            let before = from.clone();
            // Two shards with an optimizer each, as in two processes.
            let at = BLOCK + 5;
            let mut second = shards.clone();
            for (optimizer, range) in [(&mut shards, 0..at), (&mut second, at..count)] {
                let from = [0, 1, 2].map(|column: usize| &from[column][range.clone()]);
                let mut to = to.iter_mut().map(|values| &mut values[range.clone()]);
                let to = [0, 1, 2].map(|_| to.next().unwrap());
                optimizer.update_out_of_place(0.1, &transform, range.clone(), from, to, &gradient[range]);
            }
            assert_eq!(*from, before);
            assert_eq!(to[0], parameters);
            let slots: Vec<&[f32]> = whole.slots().into_iter().map(|(_, values)| values).collect();
            assert_eq!([&to[1][..], &to[2]], slots[..]);
        }
    }
}
