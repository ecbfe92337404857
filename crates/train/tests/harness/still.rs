//! Models with the same gradient everywhere, by default none, which start differently on every worker: what they become is what merges make of them.

use std::sync::{Arc, Mutex};
use thalweg_core::batch::Targets;
use thalweg_core::model::{Density, Hooks, TensorRole};
use thalweg_core::{Batch, JobSpec, Layout, Model, Result, Schema, Tally};
use thalweg_data::Data;
use thalweg_graph::Team;
use thalweg_train::JobComponents;

/// The worker of each gradient, and its parameter, in the order of time.
pub type Seen = Arc<Mutex<Vec<(usize, f32)>>>;

/// A model of two parameters with a constant gradient, which starts differently on every worker.
struct Still {
    worker: usize,
    start: f64,
    slope: f32,
    layout: Layout,
    seen: Seen,
}

pub struct StillModels {
    pub worker: usize,
    pub start: f64,
    /// The gradient everywhere.
    pub slope: f32,
    pub rows: usize,
    pub seen: Seen,
}

impl JobComponents for StillModels {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        let targets = Targets::Classes((0..self.rows as u32).map(|row| row % 2).collect());
        Data::in_memory(1, vec![0.5; self.rows], targets, 0.0, job.train.seed)
    }
    fn model(&self, _: &Schema, _: &Arc<Team>) -> Result<Box<dyn Model>> {
        let mut layout = Layout::default();
        layout.push("w", &[2], TensorRole::Trainable, Density::Dense);
        let (worker, start, slope, seen) = (self.worker, self.start, self.slope, Arc::clone(&self.seen));
        Ok(Box::new(Still { worker, start, slope, layout, seen }))
    }
}

impl Model for Still {
    fn layout(&self) -> &Layout {
        &self.layout
    }
    fn initialize(&self, _: u64, parameters: &mut [f32]) {
        parameters.fill(self.start as f32);
    }
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        _: f32,
        gradient: &mut [f32],
        _: &mut dyn Hooks,
    ) -> Result<Tally> {
        gradient.fill(self.slope);
        self.seen.lock().unwrap().push((self.worker, parameters[0]));
        Ok(Tally { rows: batch.rows.len() as u64, ..Tally::default() })
    }
    fn evaluate(&mut self, _: &[f32], batch: &Batch) -> Result<Tally> {
        Ok(Tally { rows: batch.rows.len() as u64, ..Tally::default() })
    }
    fn predict(&mut self, _: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()> {
        outputs.extend(std::iter::repeat_n(0.5, 2 * batch.rows.len()));
        Ok(())
    }
    fn flops_per_row(&self) -> u64 {
        1000
    }
}
