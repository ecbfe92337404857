//! The state of a test's training: parameters, slots, and the number of their updates.

use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_graph::optimizer::{StateBuffers, slot_names};
use thalweg_graph::{Moment, Optimizer};

#[derive(Clone, Debug, PartialEq)]
pub struct TrainingState {
    pub columns: StateBuffers<Vec<f32>>,
    pub updates: u64,
}

impl TrainingState {
    /// Before the first update.
    pub fn new(rule: UpdateRule, parameters: Vec<f32>) -> TrainingState {
        let (len, slots) = (parameters.len(), slot_names(rule).len());
        let slot = |number| vec![0.0; if number < slots { len } else { 0 }];
        TrainingState { columns: [parameters, slot(0), slot(1)], updates: 0 }
    }

    /// The next update, in place.
    pub fn update(&mut self, optimizer: &Optimizer, rate: f32, gradient: &[f32]) {
        let columns = self.columns.each_mut().map(|values| &mut values[..]);
        optimizer.apply(Moment { updates: self.updates, rate }, columns, gradient);
        self.updates += 1;
    }
}
