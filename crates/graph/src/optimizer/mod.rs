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
mod apart;
mod apply;
pub mod correction;
pub mod lamb;
pub mod lars;
pub mod momentum;
pub mod nesterov;
pub mod norm;
pub mod rmsprop;
pub mod sgd;
pub mod span;

pub use apart::Columns;
pub use correction::Correction;

use crate::shares;
use crate::team::{MOST_SHARES, Team};
use apply::{Step, Stretch, apply};
use correction::Settled;
use span::Span;
use std::sync::Arc;
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
    team: Arc<Team>,
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
        Optimizer { rule, spans, len, steps: 0, slots, team: Arc::default() }
    }

    /// The same with the help of a team: element-wise rules give the same bits for any number of threads.
    pub fn with_team(self, team: Arc<Team>) -> Optimizer {
        Optimizer { team, ..self }
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
        self.advance(lr, correction.settle(squares), parameters, gradient);
    }

    /// Whether an element's update depends on nothing but that element, so that shares can be updated apart.
    pub fn is_elementwise(&self, correction: &Correction) -> bool {
        self.rule.is_elementwise() && correction.clip_norm.is_none()
    }

    fn advance(&mut self, lr: f32, settled: Settled, parameters: &mut [f32], gradient: &[f32]) {
        self.steps += 1;
        let step = Step { rule: self.rule, lr, number: self.steps, settled };
        for span in &self.spans {
            let range = span.range.clone();
            let mut slots = self.slots.iter_mut().map(|(_, values)| &mut values[range.clone()]);
            let mut slot = || slots.next().unwrap_or_default();
            let stretch = Stretch {
                parameters: &mut parameters[range.clone()],
                gradient: &gradient[range.clone()],
                first: slot(),
                second: slot(),
            };
            share(&self.team, &step, span.adapted, stretch);
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

/// Updates a stretch, in shares if the rule allows it.
fn share(team: &Team, step: &Step, adapted: bool, mut stretch: Stretch<'_>) {
    let len = stretch.parameters.len();
    let count = if step.rule.is_elementwise() { shares::count(team, len, len) } else { 1 };
    if count == 1 {
        return apply(step, adapted, stretch);
    }
    let mut parts: [Option<Stretch<'_>>; MOST_SHARES] = std::array::from_fn(|index| {
        (index < count).then(|| stretch.cut(shares::bounds(len, index, count).len()))
    });
    team.each(&mut parts[..count], |_, part| {
        if let Some(part) = part.take() {
            apply(step, adapted, part);
        }
    });
}
