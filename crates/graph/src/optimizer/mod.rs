//! Optimizers: update rules and their state.
//!
//! A rule is a pure function over equally long slices: element `i` of the parameters depends only on element `i` of the
//! gradient and of the rule's slots. So any range of the buffers can be updated alone, in any process, with the same
//! bits. LARS and LAMB are the exception: they need the norm of a whole tensor, and take the tensors from the layout.
//! The formulas are PyTorch's where PyTorch has the rule, else the papers'.
//!
//! The [`GradientTransform`] (penalties, clipping, weight decay) applies before the rule. The caller passes the learning
//! rate of each step.

mod adagrad;
mod adam;
mod apply;
mod gradient_transform;
mod lamb;
mod lars;
mod momentum;
mod nesterov;
mod norm;
mod out_of_place;
mod rmsprop;
mod sgd;
mod span;

pub use gradient_transform::GradientTransform;

use crate::partition;
use crate::team::{MAX_CHUNKS, Team};
use apply::{BufferSlices, StepContext, apply};
use gradient_transform::ElementTransform;
use span::TrainableSpan;
use std::sync::Arc;
use thalweg_core::Layout;
use thalweg_core::spec::optimizer::UpdateRule;

/// An update rule with its state: the step count, and flat slots as long as the parameters.
#[derive(Clone, Debug)]
pub struct Optimizer {
    rule: UpdateRule,
    spans: Vec<TrainableSpan>,
    len: usize,
    steps: u64,
    slots: Vec<(&'static str, Vec<f32>)>,
    team: Arc<Team>,
}

impl Optimizer {
    /// The initial state for `len` parameters, all of them trainable and one tensor to LARS and LAMB.
    pub fn new(rule: UpdateRule, len: usize) -> Optimizer {
        Optimizer::over(rule, len, vec![TrainableSpan { range: 0..len, adapted: true }])
    }

    /// The initial state for the tensors of a layout.
    pub fn for_layout(rule: UpdateRule, layout: &Layout) -> Optimizer {
        Optimizer::over(rule, layout.len(), span::spans(rule, layout))
    }

    fn over(rule: UpdateRule, len: usize, spans: Vec<TrainableSpan>) -> Optimizer {
        let names: &[&'static str] = match rule {
            UpdateRule::Sgd { .. } => &sgd::SLOTS,
            UpdateRule::Momentum { .. } => &momentum::SLOTS,
            UpdateRule::Nesterov { .. } => &nesterov::SLOTS,
            UpdateRule::Adagrad { .. } => &adagrad::SLOTS,
            UpdateRule::Rmsprop { .. } => &rmsprop::SLOTS,
            UpdateRule::Adam { .. } | UpdateRule::Adamw { .. } => &adam::SLOTS,
            UpdateRule::Lars { .. } => &lars::SLOTS,
            UpdateRule::Lamb { .. } => &lamb::SLOTS,
        };
        let slots = names.iter().map(|name| (*name, vec![0.0; len])).collect();
        Optimizer { rule, spans, len, steps: 0, slots, team: Arc::default() }
    }

    /// Runs on the threads of `team`: element-wise rules give the same bits for any number of threads.
    pub fn with_team(self, team: Arc<Team>) -> Optimizer {
        Optimizer { team, ..self }
    }

    /// Makes one step at the rule's own learning rate. Panics if the slices are not as long as the state.
    pub fn update(&mut self, parameters: &mut [f32], gradient: &[f32]) {
        self.step(self.rule.lr(), &GradientTransform::default(), parameters, gradient);
    }

    /// Makes one step at the given learning rate, with a transformed gradient.
    pub fn step(&mut self, lr: f32, transform: &GradientTransform, parameters: &mut [f32], gradient: &[f32]) {
        assert!(
            [parameters.len(), gradient.len()] == [self.len; 2],
            "slices differ in length from the state"
        );
        let squares = match transform.clip_norm {
            None => 0.0,
            Some(_) => {
                let ranges = self.spans.iter().map(|span| span.range.clone());
                ranges
                    .map(|range| transform.sum_of_squares(&parameters[range.clone()], &gradient[range]))
                    .sum()
            }
        };
        self.advance(lr, transform.element_transform(squares), parameters, gradient);
    }

    /// Whether an element's update depends only on that element, so that the buffers can be sharded.
    pub fn is_elementwise(&self, transform: &GradientTransform) -> bool {
        self.rule.is_elementwise() && transform.clip_norm.is_none()
    }

    fn advance(&mut self, lr: f32, transform: ElementTransform, parameters: &mut [f32], gradient: &[f32]) {
        self.steps += 1;
        let step = StepContext { rule: self.rule, lr, step_number: self.steps, transform };
        for span in &self.spans {
            let range = span.range.clone();
            let mut slots = self.slots.iter_mut().map(|(_, values)| &mut values[range.clone()]);
            let mut slot = || slots.next().unwrap_or_default();
            let slices = BufferSlices {
                parameters: &mut parameters[range.clone()],
                gradient: &gradient[range.clone()],
                first: slot(),
                second: slot(),
            };
            apply_on_threads(&self.team, &step, span.adapted, slices);
        }
    }

    pub fn rule(&self) -> UpdateRule {
        self.rule
    }

    /// The state by name, for checkpoints and parameter servers.
    pub fn slots(&self) -> Vec<(&'static str, &[f32])> {
        self.slots.iter().map(|(name, values)| (*name, values.as_slice())).collect()
    }

    /// The state by name, to restore it from a checkpoint.
    pub fn slots_mut(&mut self) -> Vec<(&'static str, &mut [f32])> {
        self.slots.iter_mut().map(|(name, values)| (*name, values.as_mut_slice())).collect()
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Sets the step count of a restored state.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }
}

/// Updates a range, on several threads if the rule is element-wise.
fn apply_on_threads(team: &Team, step: &StepContext, adapted: bool, mut slices: BufferSlices<'_>) {
    let len = slices.parameters.len();
    let count = if step.rule.is_elementwise() { partition::chunk_count(team, len, len) } else { 1 };
    if count == 1 {
        return apply(step, adapted, slices);
    }
    let mut parts: [Option<BufferSlices<'_>>; MAX_CHUNKS] = std::array::from_fn(|index| {
        (index < count).then(|| slices.split_off_front(partition::chunk_range(len, count, index).len()))
    });
    team.for_each(&mut parts[..count], |_, part| {
        if let Some(part) = part.take() {
            apply(step, adapted, part);
        }
    });
}
