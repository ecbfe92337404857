//! Applies an update rule to a range of the buffers, with the CPU's vector instructions.

use super::gradient_transform::ElementTransform;
use super::{Moment, StateBuffers, adagrad, adam, lamb, lars, momentum, nesterov, rmsprop, sgd};
use crate::kernel::dispatch::dispatch;
use std::ops::Range;
use thalweg_core::spec::optimizer::UpdateRule;

/// A range of the buffers: parameters, gradient, and the rule's slots (empty for missing slots).
pub struct BufferSlices<'a> {
    pub parameters: &'a mut [f32],
    pub gradient: &'a [f32],
    pub first: &'a mut [f32],
    pub second: &'a mut [f32],
}

impl<'a> BufferSlices<'a> {
    /// The elements in `range` of the state and its gradient.
    pub fn of(
        columns: &'a mut StateBuffers<&mut [f32]>,
        gradient: &'a [f32],
        range: &Range<usize>,
    ) -> BufferSlices<'a> {
        let [parameters, first, second] = columns
            .each_mut()
            .map(|values| if values.is_empty() { &mut [] } else { &mut values[range.clone()] });
        BufferSlices { parameters, gradient: &gradient[range.clone()], first, second }
    }

    /// Splits off the first `len` elements.
    pub fn split_off_front(&mut self, len: usize) -> BufferSlices<'a> {
        let take = |values: &mut &'a mut [f32]| {
            let at = len.min(values.len());
            let (front, rest) = std::mem::take(values).split_at_mut(at);
            *values = rest;
            front
        };
        let (gradient, rest) = self.gradient.split_at(len);
        self.gradient = rest;
        let [parameters, first, second] = [&mut self.parameters, &mut self.first, &mut self.second].map(take);
        BufferSlices { parameters, gradient, first, second }
    }
}

/// What all ranges of a step have in common.
#[derive(Clone, Copy)]
pub struct StepContext {
    pub rule: UpdateRule,
    pub moment: Moment,
    pub transform: ElementTransform,
}

dispatch! {
    /// One step on a range. `adapted`: whether LARS and LAMB adapt its rate.
    pub fn apply(step: &StepContext, adapted: bool, slices: BufferSlices<'_>) {
        let transform = step.transform;
        if transform.is_identity() {
            apply_transformed(step, adapted, slices, |gradient, _| gradient);
        } else {
            apply_transformed(step, adapted, slices, move |gradient, parameter| transform.apply(gradient, parameter));
        }
    }
}

#[inline(always)]
fn apply_transformed(
    step: &StepContext,
    adapted: bool,
    slices: BufferSlices<'_>,
    transform: impl Fn(f32, f32) -> f32 + Copy,
) {
    let Moment { updates, rate: lr } = step.moment;
    let BufferSlices { parameters: w, gradient: g, first, second } = slices;
    let adam =
        |lr, [beta1, beta2, epsilon]: [f32; 3]| adam::AdamStep::new(lr, beta1, beta2, epsilon, updates + 1);
    match step.rule {
        UpdateRule::Sgd { .. } => sgd::update(lr, w, g, transform),
        UpdateRule::Momentum { momentum, .. } => momentum::update(lr, momentum, w, g, first, transform),
        UpdateRule::Nesterov { momentum, .. } => nesterov::update(lr, momentum, w, g, first, transform),
        UpdateRule::Adagrad { epsilon, .. } => adagrad::update(lr, epsilon, w, g, first, transform),
        UpdateRule::Rmsprop { beta2, epsilon, .. } => {
            rmsprop::update(lr, beta2, epsilon, w, g, first, transform)
        }
        UpdateRule::Adam { beta1, beta2, epsilon, .. } => {
            adam::update(&adam(lr, [beta1, beta2, epsilon]), 1.0, w, g, first, second, transform);
        }
        UpdateRule::Adamw { beta1, beta2, epsilon, weight_decay, .. } => {
            let decay_factor = adam::decay_factor(lr, weight_decay);
            adam::update(&adam(lr, [beta1, beta2, epsilon]), decay_factor, w, g, first, second, transform);
        }
        UpdateRule::Lars { momentum, weight_decay, trust, .. } => {
            let trust = adapted.then_some(trust);
            lars::update(&lars::LarsStep { lr, momentum, weight_decay, trust }, w, g, first, transform);
        }
        UpdateRule::Lamb { beta1, beta2, epsilon, weight_decay, .. } if adapted => {
            let moments = adam(1.0, [beta1, beta2, epsilon]);
            lamb::update(&lamb::LambStep { lr, moments, weight_decay }, w, g, first, second, transform);
        }
        UpdateRule::Lamb { beta1, beta2, epsilon, .. } => {
            adam::update(&adam(lr, [beta1, beta2, epsilon]), 1.0, w, g, first, second, transform);
        }
    }
}
