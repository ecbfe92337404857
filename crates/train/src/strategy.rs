//! A strategy: one commit unit, the answer to a change of the group, the model it publishes, and its state.

use crate::context::Context;
use crate::reduction::Description;
use crate::state::State;
use crate::step_report::StepSummary;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::report::Staleness;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::Optimizer;

/// How training is distributed, on one rank. The driver calls it; the program is `step`.
pub trait Strategy {
    /// Runs one commit unit: a step, a round. Committed state changes only after the unit's last blocking call, or out
    /// of place with a swap. So a unit that fails, because the generation of the group is over, changes nothing. (A
    /// strategy that does not survive a loss need not keep to it: its job ends.)
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary>;

    /// Steps of the next unit, if it does not end early.
    fn unit(&self, _cx: &Context<'_>) -> u64 {
        1
    }

    /// With workers at their own speed: what this rank does next. It may wait for a server.
    fn next(&mut self, cx: &mut Context<'_>) -> Result<NextActivity> {
        match cx.meeting_is_due() {
            true => Ok(NextActivity::Meeting),
            false => Ok(NextActivity::Unit),
        }
    }

    /// With workers at their own speed, between two units of every worker: all meet. Makes the model that is published, of the models of
    /// all and of what is in flight between them. All ranks call it together.
    fn meet(&mut self, _cx: &mut Context<'_>) -> Result<()> {
        Ok(())
    }

    /// Releases what belongs to a generation that is over. With a step, the state committed after that step is in
    /// [`Strategy::state`] afterwards.
    fn suspend(&mut self, _step: Option<u64>) -> Result<()> {
        Ok(())
    }

    /// Answers a change: starts in the group as it is now, with the state of the group. All ranks call it together.
    fn change(&mut self, cx: &mut Context<'_>, change: &MembershipChange) -> Result<()>;

    /// The state in private memory.
    fn state(&self) -> &State;

    fn state_mut(&mut self) -> &mut State;

    /// A committed column of the state, wherever it lies.
    fn column(&self, index: usize) -> &[f32] {
        &self.state().columns()[index].values
    }

    /// The parameters that are evaluated, reported and saved.
    fn published(&self) -> &[f32] {
        self.state().published().unwrap_or_else(|| self.column(0))
    }

    /// Where workers have models of their own: goes on with the model that another rank has published.
    fn set_published(&mut self, model: Vec<f32>) {
        if self.state().has_own_parameters() {
            *self.state_mut().published_mut() = model;
        }
    }

    /// The pieces in which new members of this generation may take the state over while the others train. All ranks must
    /// call it, as it may run a collective. A new member with parameters of its own has nothing to update before it has all.
    fn agree_on_transfer_unit(&self, _cx: &mut Context<'_>) -> Result<TransferUnit> {
        match self.state().has_own_parameters() {
            true => Ok(TransferUnit::State),
            false => Ok(TransferUnit::Element),
        }
    }

    /// The window of the messages that it sends, in bytes: they are opened before the first collective of a generation, as
    /// members of the one before may send at once.
    fn message_window(&self, _job: &JobSpec) -> Option<usize> {
        None
    }

    /// With a server: values that this rank shows in shared memory to those that it exchanges messages with.
    fn shown_values(&self, _job: &JobSpec) -> usize {
        0
    }

    /// How old updates were, on a rank that receives them.
    fn staleness(&self) -> Option<&Staleness> {
        None
    }

    /// Vectors as long as the parameters that a rank keeps beside its state and a gradient, for the estimate of memory.
    fn working_columns(&self) -> usize {
        // A published model that is no column of the state.
        usize::from(self.published().as_ptr() != self.column(0).as_ptr())
    }

    /// How values are exchanged, for the report.
    fn describe(&self, cx: &Context<'_>) -> Description;
}

/// What a rank does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextActivity {
    Unit,
    /// It meets the others.
    Meeting,
}

/// The smallest part of the state that stays right, once received, by the updates that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferUnit {
    /// The update of an element needs that element and the exchanged values.
    Element,
    /// It needs the whole tensor.
    Tensor,
    /// It needs all of the state: members take it over at once, while all wait.
    State,
}

impl TransferUnit {
    /// For state that only this optimizer updates, from the summed gradient.
    pub fn of(optimizer: &Optimizer) -> TransferUnit {
        let transform = optimizer.transform();
        let penalties = transform.l1 != 0.0 || transform.l2 != 0.0;
        match optimizer.rule().is_elementwise() {
            // The norm of the penalized gradient depends on all parameters.
            _ if transform.clip_norm.is_some() && penalties => TransferUnit::State,
            true => TransferUnit::Element,
            false => TransferUnit::Tensor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::spec::optimizer::UpdateRule;
    use thalweg_graph::optimizer::GradientTransform;

    #[test]
    fn penalties_under_a_bound_of_the_norm_need_all_parameters() {
        let unit = |rule, transform| TransferUnit::of(&Optimizer::new(rule, 1).with_transform(transform));
        let sgd = UpdateRule::Sgd { lr: 0.1 };
        let lars = UpdateRule::Lars { lr: 0.1, momentum: 0.9, weight_decay: 0.0, trust: 1e-3 };
        let clipped = GradientTransform { clip_norm: Some(1.0), ..GradientTransform::default() };
        let penalized = GradientTransform { l2: 0.1, ..GradientTransform::default() };
        assert_eq!(unit(sgd, clipped), TransferUnit::Element);
        assert_eq!(unit(sgd, penalized), TransferUnit::Element);
        assert_eq!(unit(lars, clipped), TransferUnit::Tensor);
        assert_eq!(unit(sgd, GradientTransform { l1: 0.1, ..clipped }), TransferUnit::State);
    }
}
