//! What a rank is to compute of a step.

use super::Step;
use crate::leaves::Leaves;
use crate::split::Share;
use thalweg_cluster::PartialSums;

/// The rows of a step and this rank's share of them.
#[derive(Clone)]
pub(crate) struct PlannedShare<'a> {
    pub(crate) step: Step,
    /// All rows of the step that do not count yet.
    pub(crate) rows: &'a [u64],
    /// The number of its rows, those included that count.
    pub(crate) of_step: usize,
    pub(crate) share: Share,
    pub(crate) leaves: Option<Leaves>,
    /// Slots for partial sums.
    pub(super) slots: usize,
    /// Partial sums that this rank holds after the step.
    pub(crate) held: usize,
    /// What gradients are divided by.
    pub(crate) divisor: f32,
}

impl PlannedShare<'_> {
    /// The layout of the partial sums: gradients of `parameters` elements with `tail` elements behind them.
    pub(crate) fn partial_sums(&self, parameters: usize, tail: usize) -> PartialSums {
        partial_sums(self.leaves, self.slots, parameters, tail)
    }
}

pub(super) fn partial_sums(
    leaves: Option<Leaves>,
    slots: usize,
    parameters: usize,
    tail: usize,
) -> PartialSums {
    let length = parameters + tail;
    match leaves {
        None => PartialSums::one(length),
        // The loss is summed along the tree like the gradient; the rest of the tail is each rank's own.
        Some(_) => PartialSums { count: slots, length, head: parameters + 1 },
    }
}
