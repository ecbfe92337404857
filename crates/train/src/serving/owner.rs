//! What a server keeps for the workers, and what their updates do to it.

use crate::envelope::Values;
use crate::state::State;
use thalweg_graph::optimizer::Moment;

/// The owner of parameters.
pub trait Owner {
    /// An update of one worker has its effect at once. The answer to that worker is left in `answer`.
    fn apply(&mut self, pushed: Values<'_>, moment: Moment, answer: &mut Vec<f32>);

    /// The updates of all workers for the same clock have their effect together, in the order of ranks. The same answer
    /// goes to all of them.
    fn apply_all(&mut self, pushed: &[Values<'_>], moment: Moment, answer: &mut Vec<f32>);

    /// What a worker gets that asks for work without an update; nothing if it has all it needs.
    fn greet(&self) -> &[f32];

    /// Whether a worker that a change of the group has interrupted needs the last answer to all: it has trained a model
    /// of its own, which is not trained again.
    fn repeats_answer(&self) -> bool {
        false
    }

    /// The parameters that are evaluated, reported and saved.
    fn published(&self) -> &[f32];

    fn state(&self) -> &State;

    fn state_mut(&mut self) -> &mut State;

    /// Floating-point operations of an update.
    fn operations(&self) -> u64 {
        10 * self.state().len() as u64
    }
}
