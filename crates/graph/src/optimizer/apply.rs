//! A rule on a stretch of the buffers, with the vector instructions of the machine.

use super::correction::Settled;
use super::{adagrad, adam, lamb, lars, momentum, nesterov, rmsprop, sgd};
use crate::kernel::dispatch::dispatch;
use thalweg_core::spec::optimizer::Rule;

/// A stretch of the buffers: parameters, gradient, and the rule's slots (empty where it has fewer).
pub struct Stretch<'a> {
    /// What is updated.
    pub parameters: &'a mut [f32],
    /// Along which gradient.
    pub gradient: &'a [f32],
    /// The first slot.
    pub first: &'a mut [f32],
    /// The second slot.
    pub second: &'a mut [f32],
}

impl<'a> Stretch<'a> {
    /// Takes so many elements off the front.
    pub fn cut(&mut self, len: usize) -> Stretch<'a> {
        let take = |values: &mut &'a mut [f32]| {
            let at = len.min(values.len());
            let (front, rest) = std::mem::take(values).split_at_mut(at);
            *values = rest;
            front
        };
        let (gradient, rest) = self.gradient.split_at(len);
        self.gradient = rest;
        let [parameters, first, second] = [&mut self.parameters, &mut self.first, &mut self.second].map(take);
        Stretch { parameters, gradient, first, second }
    }
}

/// What is the same for all stretches of a step.
#[derive(Clone, Copy)]
pub struct Step {
    /// The rule.
    pub rule: Rule,
    /// The rate.
    pub lr: f32,
    /// The number of the step, counted from 1.
    pub number: u64,
    /// What is done to each gradient first.
    pub settled: Settled,
}

dispatch! {
    /// One step over a stretch. `adapted`: whether LARS and LAMB adapt its rate.
    pub fn apply(step: &Step, adapted: bool, stretch: Stretch<'_>) {
        let settled = step.settled;
        if settled.is_idle() {
            corrected(step, adapted, stretch, |gradient, _| gradient);
        } else {
            corrected(step, adapted, stretch, move |gradient, parameter| settled.correct(gradient, parameter));
        }
    }
}

#[inline(always)]
fn corrected(step: &Step, adapted: bool, stretch: Stretch<'_>, correct: impl Fn(f32, f32) -> f32 + Copy) {
    let (lr, Stretch { parameters: w, gradient: g, first, second }) = (step.lr, stretch);
    let adam =
        |lr, [beta1, beta2, epsilon]: [f32; 3]| adam::Step::new(lr, beta1, beta2, epsilon, step.number);
    match step.rule {
        Rule::Sgd { .. } => sgd::update(lr, w, g, correct),
        Rule::Momentum { momentum, .. } => momentum::update(lr, momentum, w, g, first, correct),
        Rule::Nesterov { momentum, .. } => nesterov::update(lr, momentum, w, g, first, correct),
        Rule::Adagrad { epsilon, .. } => adagrad::update(lr, epsilon, w, g, first, correct),
        Rule::Rmsprop { beta2, epsilon, .. } => rmsprop::update(lr, beta2, epsilon, w, g, first, correct),
        Rule::Adam { beta1, beta2, epsilon, .. } => {
            adam::update(&adam(lr, [beta1, beta2, epsilon]), 1.0, w, g, first, second, correct);
        }
        Rule::Adamw { beta1, beta2, epsilon, weight_decay, .. } => {
            let keep = adam::keep(lr, weight_decay);
            adam::update(&adam(lr, [beta1, beta2, epsilon]), keep, w, g, first, second, correct);
        }
        Rule::Lars { momentum, weight_decay, trust, .. } => {
            let trust = adapted.then_some(trust);
            lars::update(&lars::Step { lr, momentum, weight_decay, trust }, w, g, first, correct);
        }
        Rule::Lamb { beta1, beta2, epsilon, weight_decay, .. } if adapted => {
            let moments = adam(1.0, [beta1, beta2, epsilon]);
            lamb::update(&lamb::Step { lr, moments, weight_decay }, w, g, first, second, correct);
        }
        Rule::Lamb { beta1, beta2, epsilon, .. } => {
            adam::update(&adam(lr, [beta1, beta2, epsilon]), 1.0, w, g, first, second, correct);
        }
    }
}
