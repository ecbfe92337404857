//! Jobs on threads: a folder, some settings, and what came of them.

// Every test program uses a part of it.
#![allow(dead_code)]

pub mod still;

use std::path::Path;
use std::sync::Arc;
use thalweg_cluster::RankStatus;
use thalweg_cluster::engine::simulated;
use thalweg_cluster::engine::threads::{self, RankObserver, RankOutcome};
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_comm::transport::sim::{Network as Simulated, SimulatedFault, SimulationControl, Trace};
use thalweg_core::event::Outcome;
use thalweg_core::spec::JobLayers;
use thalweg_core::{Batch, Gradient, Hooks, JobSpec, Layout, Model, Result, Schema, Tally};
use thalweg_data::Data;
use thalweg_graph::{Network, Options, Team};
use thalweg_train::registry;
use thalweg_train::{Assignment, JobComponents, SavedModel};

struct FromJob(Vec<String>, Options);

impl JobComponents for FromJob {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        let mut data = Data::open(&job.data, job.train.seed)?;
        data.schema.reconstruct = job.model.reconstructs();
        Ok(data)
    }
    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        Ok(Box::new(Network::for_schema(&self.0, schema, self.1)?.with_team(Arc::clone(team))))
    }
    fn layers(&self, _: &Schema) -> Result<Vec<String>> {
        Ok(self.0.clone())
    }
}

/// The job that these settings make.
fn job(settings: &[&str]) -> JobSpec {
    let mut layers = JobLayers::default();
    for setting in settings {
        layers.add_assignment(setting).unwrap();
    }
    registry::resolve(layers).unwrap().spec
}

/// Trains on that many workers (and those who serve them), going on from what is in the folder.
pub fn train(world: usize, folder: &Path, settings: &[&str]) -> Vec<RankOutcome<Outcome>> {
    train_with(world, folder, settings, Silence::Never)
}

/// The same with models that do not announce.
pub fn train_with(
    world: usize,
    folder: &Path,
    settings: &[&str],
    silence: Silence,
) -> Vec<RankOutcome<Outcome>> {
    let workers = format!("engine.workers={world}");
    let job = job(&[settings, &[workers.as_str()]].concat());
    threads::run(registry::ranks(&job), job.train.seed, |rank| {
        let network = FromJob(job.model.layers.clone(), Options::of(&job));
        let silent = match silence {
            Silence::Never => false,
            Silence::Always => true,
            Silence::Of(index) => index == rank.index(),
        };
        let components: Box<dyn JobComponents> =
            if silent { Box::new(Silenced(network)) } else { Box::new(network) };
        thalweg_train::run(
            rank,
            &Assignment { job: &job, components: &*components, folder, resume: true },
            None,
        )
    })
}

/// Which workers' models say nothing of their gradients during the pass.
#[derive(Clone, Copy)]
pub enum Silence {
    Never,
    Always,
    Of(usize),
}

/// Models that do not announce.
struct Silenced(FromJob);

impl JobComponents for Silenced {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        self.0.data(job)
    }
    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        Ok(Box::new(Silent(self.0.model(schema, team)?)))
    }
    fn layers(&self, schema: &Schema) -> Result<Vec<String>> {
        self.0.layers(schema)
    }
}

struct Silent(Box<dyn Model>);

/// Hears everything and passes on sums alone.
struct Deaf<'a>(&'a mut dyn Hooks);

impl Hooks for Deaf<'_> {
    fn gradient(&mut self, _: Gradient<'_>) -> Result<()> {
        Ok(())
    }
    fn reduce(&mut self, values: &mut [f32]) -> Result<()> {
        self.0.reduce(values)
    }
}

impl Model for Silent {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }
    fn initialize(&self, seed: u64, parameters: &mut [f32]) {
        self.0.initialize(seed, parameters);
    }
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<Tally> {
        self.0.gradient(parameters, batch, scale, gradient, &mut Deaf(hooks))
    }
    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally> {
        self.0.evaluate(parameters, batch)
    }
    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()> {
        self.0.predict(parameters, batch, outputs)
    }
    fn flops_per_row(&self) -> u64 {
        self.0.flops_per_row()
    }
}

/// Trains on simulated workers, one of which is asked to stop in its `gradients`-th pass.
pub fn simulate_stopped(
    network: Simulated,
    (stopped, gradients): (usize, u64),
    folder: &Path,
    settings: &[&str],
) -> Vec<Result<Outcome>> {
    let workers = format!("engine.workers={}", network.world);
    let job = job(&[settings, &[workers.as_str()]].concat());
    let statuses: Vec<Arc<RankStatus>> = (0..network.world).map(|_| RankStatus::new()).collect();
    let observer = |rank: usize, _: &SimulationControl| RankObserver {
        emit: Arc::new(|_| ()),
        rank_status: Arc::clone(&statuses[rank]),
    };
    let config = MembershipConfig::fixed(job.fault.step_deadline);
    let (results, _) = simulated::simulate_observed(network, (&[], 0), &config, &observer, |rank| {
        let network = FromJob(job.model.layers.clone(), Options::of(&job));
        let left = if rank.index() == stopped { gradients } else { u64::MAX };
        let components = Stopped { network, status: Arc::clone(&statuses[rank.index()]), left };
        thalweg_train::run(
            rank,
            &Assignment { job: &job, components: &components, folder, resume: true },
            None,
        )
    });
    results
}

/// Models that ask their rank to stop in a pass.
struct Stopped {
    network: FromJob,
    status: Arc<RankStatus>,
    left: u64,
}

impl JobComponents for Stopped {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        self.network.data(job)
    }
    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        let model = self.network.model(schema, team)?;
        Ok(Box::new(StoppedModel { model, status: Arc::clone(&self.status), left: self.left }))
    }
    fn layers(&self, schema: &Schema) -> Result<Vec<String>> {
        self.network.layers(schema)
    }
}

struct StoppedModel {
    model: Box<dyn Model>,
    status: Arc<RankStatus>,
    left: u64,
}

impl Model for StoppedModel {
    fn layout(&self) -> &Layout {
        self.model.layout()
    }
    fn initialize(&self, seed: u64, parameters: &mut [f32]) {
        self.model.initialize(seed, parameters);
    }
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<Tally> {
        if self.left == 1 {
            self.status.request_stop();
        }
        self.left = self.left.saturating_sub(1);
        self.model.gradient(parameters, batch, scale, gradient, hooks)
    }
    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally> {
        self.model.evaluate(parameters, batch)
    }
    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()> {
        self.model.predict(parameters, batch, outputs)
    }
    fn flops_per_row(&self) -> u64 {
        self.model.flops_per_row()
    }
}

/// The parameters of the finished model.
pub fn parameters(folder: &Path) -> Vec<f32> {
    SavedModel::read(folder).unwrap().network().unwrap().1
}

/// How far two sets of parameters are apart.
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
}

/// Trains on that many simulated workers.
pub fn simulate(
    network: Simulated,
    faults: &[SimulatedFault],
    folder: &Path,
    settings: &[&str],
) -> (Vec<RankOutcome<Outcome>>, Trace) {
    let workers = format!("engine.workers={}", network.world);
    let job = job(&[settings, &[workers.as_str()]].concat());
    let network = Simulated { world: registry::ranks(&job), ..network };
    simulated::simulate(network, faults, &MembershipConfig::fixed(job.fault.step_deadline), |rank| {
        let components = FromJob(job.model.layers.clone(), Options::of(&job));
        thalweg_train::run(
            rank,
            &Assignment { job: &job, components: &components, folder, resume: true },
            None,
        )
    })
}
