//! How gradients become steps.
//!
//! A rule is a pure function over equally long slices: element `i` of the parameters depends on element `i` of the
//! gradient and of the rule's slots and on nothing else. So any share of the buffers can be updated alone, wherever
//! it lives, and gives the same bits. LARS and LAMB are the exception: they see a tensor as a whole, and the optimizer
//! learns from the layout where each one lies. The formulas are PyTorch's where PyTorch has them, else the papers'.
//!
//! Before the rule, the [`Correction`]: penalties, clipping, weight decay. The learning rate of each step comes from
//! outside, from a schedule.

pub mod adagrad;
pub mod adam;
pub mod correction;
pub mod lamb;
pub mod lars;
pub mod momentum;
pub mod nesterov;
pub mod norm;
pub mod rmsprop;
pub mod sgd;
pub mod span;

pub use correction::Correction;

use span::Span;
use thalweg_core::Layout;
use thalweg_core::spec::optimizer::Rule;

/// A rule with its state: how many steps were made, and flat slots as long as the parameters.
#[derive(Clone, Debug)]
pub struct Optimizer {
    rule: Rule,
    spans: Vec<Span>,
    len: usize,
    steps: u64,
    slots: Vec<(&'static str, Vec<f32>)>,
}

impl Optimizer {
    /// The state before the first step, for that many parameters: all of them learned, and one tensor to LARS and LAMB.
    pub fn new(rule: Rule, len: usize) -> Optimizer {
        Optimizer::over(rule, len, vec![Span { range: 0..len, adapted: true }])
    }

    /// The state before the first step, for the tensors of a layout.
    pub fn for_layout(rule: Rule, layout: &Layout) -> Optimizer {
        Optimizer::over(rule, layout.len(), span::spans(rule, layout))
    }

    fn over(rule: Rule, len: usize, spans: Vec<Span>) -> Optimizer {
        let names: &[&'static str] = match rule {
            Rule::Sgd { .. } => &sgd::SLOTS,
            Rule::Momentum { .. } => &momentum::SLOTS,
            Rule::Nesterov { .. } => &nesterov::SLOTS,
            Rule::Adagrad { .. } => &adagrad::SLOTS,
            Rule::Rmsprop { .. } => &rmsprop::SLOTS,
            Rule::Adam { .. } | Rule::Adamw { .. } => &adam::SLOTS,
            Rule::Lars { .. } => &lars::SLOTS,
            Rule::Lamb { .. } => &lamb::SLOTS,
        };
        let slots = names.iter().map(|name| (*name, vec![0.0; len])).collect();
        Optimizer { rule, spans, len, steps: 0, slots }
    }

    /// Makes one step at the rule's own rate. The slices must be as long as the state: anything else is a bug of the
    /// caller.
    pub fn update(&mut self, parameters: &mut [f32], gradient: &[f32]) {
        self.step(self.rule.lr(), &Correction::default(), parameters, gradient);
    }

    /// Makes one step at the given rate, along the corrected gradient.
    pub fn step(&mut self, lr: f32, correction: &Correction, parameters: &mut [f32], gradient: &[f32]) {
        assert!(
            [parameters.len(), gradient.len()] == [self.len; 2],
            "slices differ in length from the state"
        );
        let squares = match correction.clip_norm {
            None => 0.0,
            Some(_) => {
                let ranges = self.spans.iter().map(|span| span.range.clone());
                ranges.map(|range| correction.squares(&parameters[range.clone()], &gradient[range])).sum()
            }
        };
        let settled = correction.settle(squares);
        self.steps += 1;
        if settled.is_idle() {
            self.walk(lr, parameters, gradient, |gradient, _| gradient);
        } else {
            self.walk(lr, parameters, gradient, move |gradient, parameter| {
                settled.correct(gradient, parameter)
            });
        }
    }

    /// The rule over every span.
    fn walk(
        &mut self,
        lr: f32,
        parameters: &mut [f32],
        gradient: &[f32],
        correct: impl Fn(f32, f32) -> f32 + Copy,
    ) {
        for span in &self.spans {
            let range = span.range.clone();
            let (w, g) = (&mut parameters[range.clone()], &gradient[range.clone()]);
            let mut slots = self.slots.iter_mut().map(|(_, values)| &mut values[range.clone()]);
            let mut slot = || slots.next().unwrap_or_default();
            let adam = |lr, [beta1, beta2, epsilon]: [f32; 3]| {
                adam::Step::new(lr, beta1, beta2, epsilon, self.steps)
            };
            match self.rule {
                Rule::Sgd { .. } => sgd::update(lr, w, g, correct),
                Rule::Momentum { momentum, .. } => momentum::update(lr, momentum, w, g, slot(), correct),
                Rule::Nesterov { momentum, .. } => nesterov::update(lr, momentum, w, g, slot(), correct),
                Rule::Adagrad { epsilon, .. } => adagrad::update(lr, epsilon, w, g, slot(), correct),
                Rule::Rmsprop { beta2, epsilon, .. } => {
                    rmsprop::update(lr, beta2, epsilon, w, g, slot(), correct);
                }
                Rule::Adam { beta1, beta2, epsilon, .. } => {
                    adam::update(&adam(lr, [beta1, beta2, epsilon]), 1.0, w, g, slot(), slot(), correct);
                }
                Rule::Adamw { beta1, beta2, epsilon, weight_decay, .. } => {
                    let keep = adam::keep(lr, weight_decay);
                    let step = adam(lr, [beta1, beta2, epsilon]);
                    adam::update(&step, keep, w, g, slot(), slot(), correct);
                }
                Rule::Lars { momentum, weight_decay, trust, .. } => {
                    let trust = span.adapted.then_some(trust);
                    lars::update(&lars::Step { lr, momentum, weight_decay, trust }, w, g, slot(), correct);
                }
                Rule::Lamb { beta1, beta2, epsilon, weight_decay, .. } if span.adapted => {
                    let moments = adam(1.0, [beta1, beta2, epsilon]);
                    let step = lamb::Step { lr, moments, weight_decay };
                    lamb::update(&step, w, g, slot(), slot(), correct);
                }
                Rule::Lamb { beta1, beta2, epsilon, .. } => {
                    adam::update(&adam(lr, [beta1, beta2, epsilon]), 1.0, w, g, slot(), slot(), correct);
                }
            }
        }
    }

    /// The rule with its numbers.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// The state by name, for checkpoints and servers.
    pub fn slots(&self) -> Vec<(&'static str, &[f32])> {
        self.slots.iter().map(|(name, values)| (*name, values.as_slice())).collect()
    }

    /// The state by name, to be filled from a checkpoint.
    pub fn slots_mut(&mut self) -> Vec<(&'static str, &mut [f32])> {
        self.slots.iter_mut().map(|(name, values)| (*name, values.as_mut_slice())).collect()
    }

    /// Steps made so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Sets the number of steps made, when the state comes from a checkpoint.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }
}
