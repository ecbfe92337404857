//! `[strategy.ensemble]`: models of several workers that answer as one.

use super::section::section;
use super::setting::{Setting as _, choice};
use super::{JobSpec, Refuse};

choice! {
    /// How the members of an ensemble answer together.
    Combine {
        /// The mean of their predictions: of class probabilities, or of numbers.
        Average = "average",
        /// Each member has a vote for its most probable class; the mean of their probabilities decides between classes with as many votes.
        Vote = "vote",
        /// A combination of their predictions that is learned, from rows that no member is trained on.
        Stack = "stack",
        /// They are one model, the mean of their parameters: of models that were merged on their way.
        Merge = "merge",
    }
}

impl Combine {
    /// The value of that name, in a model file.
    pub fn named(name: &str) -> Option<Combine> {
        Combine::read(&name.into()).ok()
    }
}

section! {
    /// Models of several workers that answer together.
    "strategy.ensemble" EnsembleSpec {
        /// How the members answer together.
        combine: Combine = Combine::Average;
        /// With combine stack: the share of the training rows that no member is trained on, from which the combination is learned.
        stack_share: f64 = 0.1;
    }
}

pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    let share = spec.ensemble.stack_share;
    if !(share > 0.0 && share < 1.0) {
        refuse("strategy.ensemble.stack_share", format!("must be between 0 and 1, is {share}"));
    }
}
