//! What a server keeps for the workers, and what their updates do to it.

use crate::envelope::Values;
use crate::state::State;
use std::ops::Range;
use thalweg_graph::optimizer::Moment;

/// The owner of parameters.
pub trait Owner {
    /// An update of one worker has its effect at once. The answer to that worker is left in `answer`.
    fn apply(&mut self, pushed: Values<'_>, moment: Moment, answer: &mut Vec<f32>);

    /// The updates of the next clock come now. What was added to one that did not end is forgotten.
    fn begin(&mut self);

    /// A part of a worker's update, from the element `start` on. For each element, workers follow each other in the order
    /// of ranks.
    fn add(&mut self, start: usize, pushed: Values<'_>);

    /// The updates of so many workers were added: they have their effect together. The same answer goes to all of them.
    fn commit(&mut self, workers: usize, moment: Moment, answer: &mut Vec<f32>);

    /// Whether the answer to an update of one worker is what any other worker would get at that moment.
    fn answers_alike(&self) -> bool {
        false
    }

    /// What a worker gets that asks for work without an update; nothing if it has all it needs.
    fn initial_answer(&self) -> &[f32];

    /// Of several servers: drops all but these elements of the parameters. Nothing is left to be dropped when it is called again.
    fn keep(&mut self, _range: &Range<usize>) {}

    /// Whether a worker that a change of the group has interrupted needs the last answer to all: it has trained a model
    /// of its own, which is not trained again.
    fn repeats_answer(&self) -> bool {
        false
    }

    /// The parameters that are evaluated, reported and saved.
    fn published(&self) -> &[f32];

    fn state(&self) -> &State;

    fn state_mut(&mut self) -> &mut State;

    /// Floating-point operations of the update of a value.
    fn operations(&self) -> u64 {
        10
    }
}
