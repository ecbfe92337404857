//! The parameters of a server or its shard, and what pushes do to them.

use crate::envelope::Values;
use crate::state::{Spread, State};
use std::ops::Range;
use thalweg_core::spec::scheduling::Push;
use thalweg_graph::optimizer::{Moment, Optimizer};

pub struct Parameters {
    state: State,
    optimizer: Optimizer,
    push: Push,
    sum: Vec<f32>,
}

impl Parameters {
    pub fn new(optimizer: &Optimizer, parameters: usize, push: Push) -> Parameters {
        let state = State::with_parameters(Spread::OnServers, parameters);
        let state = state.with_columns(optimizer.slot_names(), Spread::OnServers);
        Parameters { state, optimizer: optimizer.clone(), push, sum: vec![0.0; parameters] }
    }

    /// These updates have their effect together, in this order, times `scale`.
    pub fn apply(&mut self, pushed: &[Values<'_>], scale: f32, moment: Moment) {
        self.sum.fill(0.0);
        pushed.iter().for_each(|values| values.add_to(&mut self.sum));
        if scale != 1.0 {
            self.sum.iter_mut().for_each(|value| *value *= scale);
        }
        update(self.push, &self.optimizer, &mut self.state, &self.sum, moment);
    }

    /// What a worker reads: with the effect that its own updates would have alone, which are held for their clocks.
    pub fn read(&self, own: &[(Values<'_>, Moment)]) -> Vec<f32> {
        let Some(((first, _), _)) = own.split_first() else { return self.state.parameters().to_vec() };
        let (mut state, mut values) = (self.state.clone(), vec![0.0; first.len()]);
        for (pushed, moment) in own {
            pushed.copy_to(&mut values);
            update(self.push, &self.optimizer, &mut state, &values, *moment);
        }
        std::mem::take(state.parameters_mut())
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// Of several servers: drops all but these elements. Nothing is left to be dropped when it is called again.
    pub fn keep(&mut self, range: &Range<usize>) {
        if range.len() < self.state.len() {
            self.state.keep(range);
            self.optimizer = self.optimizer.part(range);
            self.sum = vec![0.0; range.len()];
        }
    }
}

fn update(push: Push, optimizer: &Optimizer, state: &mut State, pushed: &[f32], moment: Moment) {
    match push {
        Push::Gradient => optimizer.apply(moment, state.buffers_mut(optimizer.slot_names()), pushed),
        Push::Delta => {
            state.parameters_mut().iter_mut().zip(pushed).for_each(|(value, delta)| *value += delta)
        }
    }
}
