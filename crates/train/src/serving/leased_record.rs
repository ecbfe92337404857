//! Strategies with leases against a reference: what the server of a simulated run applies is recorded in the order in which
//! it happens, and done again by the few lines of the papers' pseudo-code.

use crate::decentralized::gosgd::recorded::Digits;
use std::collections::BTreeMap;
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

/// An update that the server has applied: its worker, the rows of each piece with the number of rows of the step.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    pub(super) member: usize,
    pub(super) pieces: Vec<(Vec<u64>, usize)>,
}

/// The record of the one run that is watched, and what lets one be watched at a time.
static RECORD: Mutex<Option<Vec<Applied>>> = Mutex::new(None);
static WATCH: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn record(applied: impl FnOnce() -> Applied) {
    if let Some(record) = lock(&RECORD).as_mut() {
        record.push(applied());
    }
}

const RATE: f32 = 0.05;

fn job(settings: &[&str]) -> JobSpec {
    let mut layers = JobLayers::default();
    let own = ["train.optimizer={kind='sgd', lr=0.05}", "fault.checkpoint_every=0"];
    own.iter().chain(settings).for_each(|setting| layers.add_assignment(setting).expect("a setting"));
    crate::registry::resolve(layers).expect("a job").spec
}

/// What the server applied, the final model and the staleness that it reports. Rank i begins `i * offset` from the others.
fn run(job: &JobSpec, network: Simulated, offset: f32) -> (Vec<Applied>, Vec<f32>, Staleness) {
    let _watch = lock(&WATCH);
    let folder = tempfile::tempdir().expect("a folder");
    *lock(&RECORD) = Some(Vec::new());
    let deadline = Duration::from_secs(30);
    let limits = Limits { min: 1, max: 64, timeout: 10 * deadline, unit: u64::MAX };
    let config = MembershipConfig { elastic: true, limits, ..MembershipConfig::fixed(deadline) };
    let (ended, _) = simulate(network, &[], &config, |rank| {
        let components = Digits { job: job.clone(), offset: offset * rank.index() as f32 };
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
    let parameters = crate::modelfile::flatten(&model.tensors, network.layout()).expect("its parameters");
    (record, parameters, staleness.expect("a server's account"))
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

    /// `w - rate * gradient of the rows at w_at / divisor`
    fn descend(&mut self, w: &mut [f32], at: &[f32], rows: &[u64], divisor: usize) {
        let mut batch = self.data.training.empty_batch();
        self.data.training.load(rows, 0, &mut batch).expect("rows");
        let scale = 1.0 / divisor as f32;
        self.model.gradient(at, &batch, scale, &mut self.gradient, &mut NoHooks).expect("a gradient");
        w.iter_mut().zip(&self.gradient).for_each(|(value, gradient)| *value -= RATE * gradient);
    }
}

fn worst(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

#[test]
fn asynchronous_updates_follow_their_reference() {
    for (seed, workers) in [(0, 3), (1, 5)] {
        let job = job(&[
            "strategy.preset=parameter-server",
            "strategy.scheduling.kind=async",
            "train.epochs=3",
            &format!("engine.workers={workers}"),
        ]);
        let network = Simulated { jitter: 2.0, speed: 1e8, ..Simulated::ordinary(workers + 1, seed) };
        let (record, parameters, staleness) = run(&job, network, 0.0);
        let mut replay = Replay::of(&job);
        let mut w = replay.initial.clone();
        let mut pulled: BTreeMap<usize, Vec<f32>> = (0..workers).map(|i| (i, w.clone())).collect();
        let (all, mut computed) = (replay.data.training.len() as usize, 0);
        for Applied { member, pieces } in &record {
            let (rows, of_step) = &pieces[0];
            replay.descend(&mut w, &pulled[member], rows, *of_step);
            pulled.insert(*member, w.clone());
            computed += rows.len();
            if computed.is_multiple_of(all) {
                // All pull after the meeting at the end of an epoch.
                pulled.values_mut().for_each(|pulled| pulled.clone_from(&w));
            }
        }
        assert_eq!(worst(&w, &parameters), 0.0, "{workers} workers");
        assert_eq!(staleness.total(), record.len() as u64);
        // Every worker pulls right after its push, and all begin from the same version: between two meetings with U
        // updates the mean age is (n - 1)(1 - n/(2U)).
        let (n, epochs) = (workers as f64, 3.0);
        let updates = record.len() as f64 / epochs;
        let expected = (n - 1.0) * (1.0 - n / (2.0 * updates));
        assert!((staleness.mean() - expected).abs() < 0.02 * expected, "{} for {expected}", staleness.mean());
    }
}

#[test]
fn elastic_averaging_follows_its_reference() {
    let job = job(&["strategy.preset=easgd", "strategy.merge.every=3", "train.epochs=3", "engine.workers=4"]);
    let network = Simulated { jitter: 2.0, speed: 1e8, ..Simulated::ordinary(5, 2) };
    let (record, parameters, _) = run(&job, network, 0.0);
    let mut replay = Replay::of(&job);
    let mut centre = replay.initial.clone();
    let mut workers: BTreeMap<usize, Vec<f32>> = (0..4).map(|i| (i, centre.clone())).collect();
    let (alpha, beta) = (0.225f32, 0.225f32);
    for Applied { member, pieces } in &record {
        let mut w = workers[member].clone();
        for (rows, _) in pieces {
            let at = w.clone();
            replay.descend(&mut w, &at, rows, rows.len());
        }
        for (w, c) in w.iter_mut().zip(&mut centre) {
            let difference = *w - *c;
            *c += beta * difference;
            *w -= alpha * difference;
        }
        workers.insert(*member, w);
    }
    assert!(record.len() > 50, "{} merges", record.len());
    assert_eq!(worst(&centre, &parameters), 0.0);
}

/// Without learning the centre's motion is that of the models it is pulled by, and `sum of beta * w_i + alpha * c` stays.
#[test]
fn elastic_averaging_without_learning_conserves_its_weighted_sum() {
    let mut job =
        job(&["strategy.preset=easgd", "strategy.merge.every=2", "train.epochs=4", "engine.workers=3"]);
    job.optimizer.lr = 0.0;
    let network = Simulated { jitter: 2.0, speed: 1e8, ..Simulated::ordinary(4, 5) };
    let (record, parameters, _) = run(&job, network, 1.0);
    let initial = Replay::of(&job).initial[0];
    // Worker i begins i from the others, the centre 3.
    let (alpha, mut centre) = (0.3f32, initial + 3.0);
    let mut workers = [0.0, 1.0, 2.0].map(|offset| initial + offset);
    let conserved = |workers: &[f32; 3], centre: f32| workers.iter().sum::<f32>() + centre;
    let before = conserved(&workers, centre);
    for Applied { member, .. } in &record {
        let difference = workers[*member] - centre;
        centre += alpha * difference;
        workers[*member] -= alpha * difference;
    }
    assert!((conserved(&workers, centre) - before).abs() < 1e-4);
    assert!((parameters[0] - centre).abs() < 1e-5, "{} and {centre}", parameters[0]);
    assert!(workers.iter().all(|w| (w - centre).abs() < 1e-3), "they have come together");
}
