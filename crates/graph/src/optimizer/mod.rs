//! Optimizers: update rules without state.
//!
//! The caller owns parameters and slots, counts their updates and passes both with each update, so that it may update
//! ranges in any order, keep the buffers in shared memory and restore them from a checkpoint.
//!
//! A rule is a pure function over equally long slices: element `i` of the parameters depends only on element `i` of the
//! gradient and of the rule's slots. So any range of the buffers can be updated alone, in any process, with the same
//! bits. LARS and LAMB are the exception: they need the norm of a whole tensor, and take the tensors from the layout.
//! The formulas are PyTorch's where PyTorch has the rule, else the papers'.
//!
//! The [`GradientTransform`] (penalties, clipping, weight decay) applies before the rule. Clipping by norm needs the
//! whole gradient. [`Optimizer::scope`] says which of these cases applies.

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
use span::TrainableSpan;
use std::ops::Range;
use std::sync::Arc;
use thalweg_core::Layout;
use thalweg_core::spec::optimizer::UpdateRule;

/// When an update happens: the caller counts, not the optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Updates of these parameters before this one; bias correction follows it.
    pub updates: u64,
    /// The learning rate, which the schedule gives for the job's position.
    pub rate: f32,
}

/// What the update of an element depends on besides its own parameter, slots and gradient. A wider scope includes the
/// narrower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Nothing: any range can be updated alone.
    Element,
    /// Its tensor: LARS and LAMB.
    Tensor,
    /// The whole gradient: clipping by norm.
    Gradient,
}

/// Parameters, then the slots in the order of [`slot_names`]; empty for missing slots.
pub type StateBuffers<T> = [T; 3];

/// The names of the slots that a rule keeps per parameter, as in checkpoints. They are 0 before the first update.
pub fn slot_names(rule: UpdateRule) -> &'static [&'static str] {
    match rule {
        UpdateRule::Sgd { .. } => &sgd::SLOTS,
        UpdateRule::Momentum { .. } => &momentum::SLOTS,
        UpdateRule::Nesterov { .. } => &nesterov::SLOTS,
        UpdateRule::Adagrad { .. } => &adagrad::SLOTS,
        UpdateRule::Rmsprop { .. } => &rmsprop::SLOTS,
        UpdateRule::Adam { .. } | UpdateRule::Adamw { .. } => &adam::SLOTS,
        UpdateRule::Lars { .. } => &lars::SLOTS,
        UpdateRule::Lamb { .. } => &lamb::SLOTS,
    }
}

/// An update rule for the tensors of a layout, with the transformation of the gradient before it. It has no state:
/// equal arguments give equal results.
#[derive(Clone, Debug)]
pub struct Optimizer {
    rule: UpdateRule,
    transform: GradientTransform,
    spans: Vec<TrainableSpan>,
    /// The ranges of running statistics.
    statistics: Vec<Range<usize>>,
    len: usize,
    team: Arc<Team>,
}

impl Optimizer {
    /// For `len` parameters, all of them trainable and one tensor to LARS and LAMB.
    pub fn new(rule: UpdateRule, len: usize) -> Optimizer {
        let spans = vec![TrainableSpan { range: 0..len, adapted: true }];
        Optimizer::over(rule, len, spans, Vec::new())
    }

    /// For the tensors of a layout.
    pub fn for_layout(rule: UpdateRule, layout: &Layout) -> Optimizer {
        Optimizer::over(rule, layout.len(), span::spans(rule, layout), span::statistics(layout))
    }

    fn over(
        rule: UpdateRule,
        len: usize,
        spans: Vec<TrainableSpan>,
        statistics: Vec<Range<usize>>,
    ) -> Optimizer {
        let transform = GradientTransform::default();
        Optimizer { rule, transform, spans, statistics, len, team: Arc::default() }
    }

    /// Transforms gradients before the rule.
    pub fn with_transform(self, transform: GradientTransform) -> Optimizer {
        Optimizer { transform, ..self }
    }

    /// Runs on the threads of `team`: element-wise rules give the same bits for any number of threads.
    pub fn with_team(self, team: Arc<Team>) -> Optimizer {
        Optimizer { team, ..self }
    }

    /// The same rule for a range of the elements alone, which are counted from its start: the update of all ranges, each by
    /// its part, has the bits of the whole. A rule of the scope [`Scope::Tensor`] needs ranges that cut no tensor; norms of
    /// the whole gradient ([`Scope::Gradient`]) are those of the range.
    pub fn part(&self, range: &Range<usize>) -> Optimizer {
        let within = |whole: &Range<usize>| Some(intersection(whole, range)).filter(|part| !part.is_empty());
        let span = |span: &TrainableSpan| {
            within(&span.range).map(|part| TrainableSpan { range: part, adapted: span.adapted })
        };
        Optimizer {
            spans: self.spans.iter().filter_map(span).collect(),
            statistics: self.statistics.iter().filter_map(within).collect(),
            len: range.len(),
            ..self.clone()
        }
    }

    pub fn rule(&self) -> UpdateRule {
        self.rule
    }

    pub fn transform(&self) -> &GradientTransform {
        &self.transform
    }

    /// The ranges of running statistics, whose gradients are their changes.
    pub fn statistics(&self) -> &[Range<usize>] {
        &self.statistics
    }

    /// The names of the rule's slots ([`slot_names`]).
    pub fn slot_names(&self) -> &'static [&'static str] {
        slot_names(self.rule)
    }

    pub fn scope(&self) -> Scope {
        if self.transform.clip_norm.is_some() {
            Scope::Gradient
        } else if self.rule.is_elementwise() {
            Scope::Element
        } else {
            Scope::Tensor
        }
    }

    /// One update of all elements, in place. The gradient of a running statistic is its change, which is subtracted
    /// whatever the rule. Panics if a slice has another length than the layout.
    pub fn apply(&self, moment: Moment, mut columns: StateBuffers<&mut [f32]>, gradient: &[f32]) {
        self.check_lengths(self.len, columns.each_ref().map(|values| values.len()), gradient);
        let squares = self.clipped_squares(columns[0], gradient);
        let step =
            StepContext { rule: self.rule, moment, transform: self.transform.element_transform(squares) };
        for span in &self.spans {
            let slices = BufferSlices::of(&mut columns, gradient, &span.range);
            apply_on_threads(&self.team, &step, span.adapted, slices);
        }
        self.move_statistics(0..self.len, columns[0], gradient);
    }

    /// The square of the norm that is clipped; 0 without clipping.
    fn clipped_squares(&self, parameters: &[f32], gradient: &[f32]) -> f64 {
        if self.transform.clip_norm.is_none() {
            return 0.0;
        }
        let ranges = self.spans.iter().map(|span| span.range.clone());
        ranges.map(|range| self.transform.sum_of_squares(&parameters[range.clone()], &gradient[range])).sum()
    }

    /// Subtracts the changes of running statistics in `range`; `parameters` and `gradient` are those of the range.
    fn move_statistics(&self, range: Range<usize>, parameters: &mut [f32], gradient: &[f32]) {
        for statistic in &self.statistics {
            let part = intersection(statistic, &range);
            for (value, change) in parameters[part.clone()].iter_mut().zip(&gradient[part]) {
                *value -= change;
            }
        }
    }

    /// Panics unless parameters, slots and gradient have `len` elements, and missing slots none.
    fn check_lengths(&self, len: usize, columns: StateBuffers<usize>, gradient: &[f32]) {
        assert_eq!(gradient.len(), len, "the gradient has another length than the parameters");
        let slots = self.slot_names().len();
        for (column, actual) in columns.into_iter().enumerate() {
            let wanted = if column <= slots { len } else { 0 };
            assert_eq!(actual, wanted, "column {column} of the state has a wrong length");
        }
    }
}

/// The part of `range` that lies in `whole`, counted from the start of `whole`.
fn intersection(range: &Range<usize>, whole: &Range<usize>) -> Range<usize> {
    range.start.clamp(whole.start, whole.end) - whole.start
        ..range.end.clamp(whole.start, whole.end) - whole.start
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
