//! Strategies with a server against a reference: what the server of a simulated run does is recorded in the order in which
//! it happens, and done again by the few lines of the papers' pseudo-code.

mod bounded;
mod elastic_averaging;
mod implicit_momentum;
mod parameter_server;

use crate::decentralized::gosgd::recorded::Digits;
use crate::work::clock_table::Task;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thalweg_cluster::engine::simulated::simulate;
use thalweg_cluster::membership::Limits;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_comm::transport::sim::Network as Simulated;
use thalweg_core::event::{Event, Outcome};
use thalweg_core::model::NoHooks;
use thalweg_core::report::Staleness;
use thalweg_core::spec::JobLayers;
use thalweg_core::{JobSpec, Model};
use thalweg_data::Data;
use thalweg_graph::{Network, Options};

/// What a server has done; workers are named by member id.
#[derive(Clone, Debug)]
pub(super) enum Recorded {
    /// The update of a lease: the rows of each piece with the number of rows of the step, and its age in updates.
    Applied { member: usize, pieces: Vec<(Vec<u64>, usize)>, age: u64 },
    /// The versions that updates were computed from which wait for the server, if it orders them.
    Waiting(Vec<u64>),
    /// An update arrived that waits for the others of its step.
    Arrived(usize),
    /// All updates of a step in the order of ranks, and what the server publishes after them.
    AppliedAll { step: u64, pushed: Vec<Vec<f32>>, published: Vec<f32> },
    /// A worker may begin a clock, and reads the server's parameters or goes on with its copy.
    Began { member: usize, clock: u64, reads: bool },
    /// It is sent parameters while it computes.
    SentAhead { member: usize },
    /// The update of a task has had its effect alone.
    AppliedTask { member: usize, task: Task },
    /// A worker has left a task whose clock is closed.
    Abandoned { member: usize },
    /// Those of these workers have had their effect together, made of these rows.
    Closed { of_step: usize, shares: Vec<(usize, Vec<u64>)> },
}

/// The record of the one run that is watched, and what lets one be watched at a time.
static RECORD: Mutex<Option<Vec<Recorded>>> = Mutex::new(None);
static WATCH: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn record(what: impl FnOnce() -> Recorded) {
    if let Some(record) = lock(&RECORD).as_mut() {
        record.push(what());
    }
}

const RATE: f32 = 0.05;

fn job(settings: &[&str]) -> JobSpec {
    let mut layers = JobLayers::default();
    let own = ["train.optimizer={kind='sgd', lr=0.05}", "fault.checkpoint_every=0"];
    own.iter().chain(settings).for_each(|setting| layers.add_assignment(setting).expect("a setting"));
    crate::registry::resolve(layers).expect("a job").spec
}

/// A finished run: what the server did, the final model, the staleness that is reported.
struct Run {
    record: Vec<Recorded>,
    parameters: Vec<f32>,
    staleness: Option<Staleness>,
}

/// Trains on a network whose messages take up to `1 + jitter` times as long. The parameters of rank i begin at those of the
/// seed plus `offset(i)`.
fn run(job: &JobSpec, (jitter, seed): (f64, u64), offset: impl Fn(usize) -> f32 + Sync) -> Run {
    run_on(Simulated { jitter, ..network(job, seed) }, job, offset)
}

fn network(job: &JobSpec, seed: u64) -> Simulated {
    Simulated { speed: 1e8, ..Simulated::ordinary(crate::registry::ranks(job), seed) }
}

fn run_on(network: Simulated, job: &JobSpec, offset: impl Fn(usize) -> f32 + Sync) -> Run {
    let _watch = lock(&WATCH);
    let folder = tempfile::tempdir().expect("a folder");
    *lock(&RECORD) = Some(Vec::new());
    let deadline = Duration::from_secs(30);
    let limits = Limits { min: 1, max: 64, timeout: 10 * deadline, unit: u64::MAX };
    let config = MembershipConfig { elastic: true, limits, ..MembershipConfig::fixed(deadline) };
    let (ended, _) = simulate(network, &[], &config, |rank| {
        let components = Digits { job: job.clone(), offset: offset(rank.index()) };
        let assignment =
            crate::Assignment { job, components: &components, folder: folder.path(), resume: false };
        crate::run(rank, &assignment, None)
    });
    let record = lock(&RECORD).take().expect("a record");
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
    let staleness = ended.iter().flat_map(|ended| &ended.events).find_map(|event| match event {
        Event::Account { account } => account.staleness.clone(),
        _ => None,
    });
    let model = crate::SavedModel::read(&folder.path().join("model.safetensors")).expect("a model");
    let data = Data::open(&job.data, job.train.seed).expect("rows");
    let network = Network::for_schema(&job.model.layers, &data.schema, Options::of(job)).expect("a model");
    let parameters = crate::modelfile::flatten(&model.tensors, "", network.layout()).expect("its parameters");
    Run { record, parameters, staleness }
}

/// What the replays need of the job.
struct Replay {
    data: Data,
    model: Network,
    initial: Vec<f32>,
    gradient: Vec<f32>,
}

impl Replay {
    fn of(job: &JobSpec) -> Replay {
        let data = Data::open(&job.data, job.train.seed).expect("rows");
        let model = Network::for_schema(&job.model.layers, &data.schema, Options::of(job)).expect("a model");
        let mut initial = vec![0.0; model.layout().len()];
        model.initialize(job.train.seed, &mut initial);
        Replay { data, model, gradient: vec![0.0; initial.len()], initial }
    }

    /// The gradient of the rows at `at`, divided by `divisor`.
    fn gradient(&mut self, at: &[f32], rows: &[u64], divisor: usize) -> &[f32] {
        let mut batch = self.data.training.empty_batch();
        self.data.training.load(rows, 0, &mut batch).expect("rows");
        let scale = 1.0 / divisor as f32;
        self.model.gradient(at, &batch, scale, &mut self.gradient, &mut NoHooks).expect("a gradient");
        &self.gradient
    }
}

/// Parameters whose bits differ.
fn different(one: &[f32], other: &[f32]) -> usize {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).filter(|(one, other)| one.to_bits() != other.to_bits()).count()
}
