//! How gradients become steps.
//!
//! A rule is a pure function over equally long slices: element `i` of the parameters depends on element `i` of the
//! gradient and of the rule's slots and on nothing else. So any share of the buffers can be updated alone, wherever
//! it lives, and gives the same bits. The formulas are PyTorch's.

pub mod adam;
pub mod momentum;
pub mod sgd;

use thalweg_core::spec::optimizer::Rule;

/// A rule with its state: how many steps were made, and flat slots as long as the parameters.
#[derive(Clone, Debug)]
pub struct Optimizer {
    rule: Rule,
    steps: u64,
    slots: Vec<(&'static str, Vec<f32>)>,
}

impl Optimizer {
    /// The state before the first step, for that many parameters.
    pub fn new(rule: Rule, len: usize) -> Optimizer {
        let names: &[&'static str] = match rule {
            Rule::Sgd { .. } => &sgd::SLOTS,
            Rule::Momentum { .. } => &momentum::SLOTS,
            Rule::Adam { .. } => &adam::SLOTS,
        };
        let slots = names.iter().map(|name| (*name, vec![0.0; len])).collect();
        Optimizer { rule, steps: 0, slots }
    }

    /// Makes one step. The slices must be as long as the state: anything else is a bug of the caller.
    pub fn update(&mut self, parameters: &mut [f32], gradient: &[f32]) {
        self.steps += 1;
        match (self.rule, self.slots.as_mut_slice()) {
            (Rule::Sgd { lr }, _) => sgd::update(lr, parameters, gradient),
            (Rule::Momentum { lr, momentum }, [(_, velocity)]) => {
                momentum::update(lr, momentum, parameters, gradient, velocity);
            }
            (Rule::Adam { lr, beta1, beta2, epsilon }, [(_, first), (_, second)]) => {
                let step = adam::Step::new(lr, beta1, beta2, epsilon, self.steps);
                adam::update(&step, parameters, gradient, first, second);
            }
            (rule, slots) => unreachable!("{rule:?} with {} slots", slots.len()),
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
